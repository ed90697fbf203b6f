"""The runs in a storage directory: listing, finding and removing them. And its studies: a journal
says what was requested, and which runs are the trials. A trial is named before its run starts; the
number of that record is the fence, as for a run.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from orchestrator import errors
from orchestrator.errors import JournalUnreadable, RunIsLive, SpecError, UnknownRun
from orchestrator.journal import events, files, liveness, run_state
from orchestrator.journal.boundary import settled
from orchestrator.journal.files import TRACKED, TRACKED_HERE
from orchestrator.journal.run_journal import (
    Clock,
    Journal,
    noted_tracking,
    read_value,
    relative_uri,
)
from orchestrator.storage import copies
from orchestrator.storage.addresses import address, folder, is_address, is_copy
from orchestrator.values import codec
from orchestrator.values import study as values
from orchestrator.values.codec import Value
from orchestrator.values.run import LIVE, Run, TrackedRun

POLL_S = 0.25
_MAX_KEYS = 12  # in a message
_LOOKS = 16  # at a time, of runs on a bucket
T = TypeVar("T")
_R = TypeVar("_R")


def list_journals(storage: Path) -> list[Journal]:
    folders = _folders_in(storage)
    looks = _each(storage, is_run, folders)
    return [Journal(path) for path, run in zip(folders, looks, strict=True) if run]


def _each(storage: Path, look: Callable[[T], _R], items: Sequence[T]) -> list[_R]:
    if not is_copy(storage):
        return [look(item) for item in items]
    # A bucket is slow: several at a time.
    with ThreadPoolExecutor(_LOOKS) as pool:
        return list(pool.map(look, items))


def _folders_in(storage: Path) -> list[Path]:
    names = files.names(Path(os.path.realpath(storage)))
    return [storage / name for name in names if name.isprintable() and not name.startswith(".")]


def is_run(path: Path) -> bool:  # or looks like one: reading it says what is wrong with it
    return holds(path, "events")


def holds(folder: Path, name: str) -> bool:
    try:
        with files.looking(folder):
            copied = copies.names_in(folder)
        return name in copied if copied is not None else bool(os.lstat(folder / name))
    except (PermissionError, JournalUnreadable):
        return True  # it cannot be examined
    except OSError:
        return False


def list_runs(storage: Path) -> tuple[list[Run], list[str]]:
    """Return every run, newest first, and what is wrong with folders that cannot be read."""

    def look(journal: Journal) -> Run | str:
        try:
            return journal.run()
        except JournalUnreadable as error:
            return str(error)

    found = _each(storage, look, list_journals(storage))
    runs = [run for run in found if isinstance(run, Run)]
    problems = [problem for problem in found if isinstance(problem, str)]
    names = files.names(Path(os.path.realpath(storage)))
    unprintable = [name for name in names if not name.isprintable()]
    problems += [f"{storage}: {name!a} is not the name of a run" for name in unprintable]
    return sorted(runs, key=lambda run: (-run.submitted_at_s, run.run)), problems


def find_run(storage: Path, name: str) -> Journal:
    """Return the run with that key, the only one whose key begins so, or that in a folder."""
    known = {journal.key: journal for journal in list_journals(storage)}
    if name in known:
        return known[name]
    if is_address(name) and is_run(folder(name)):
        return Journal(folder(name))
    is_path = os.sep in name or name in {".", ".."}
    if is_path and is_run(path := Path(os.path.realpath(name))):
        return Journal(path)  # a link that the user names is theirs
    matching = [key for key in known if name and key.startswith(name) and not is_path]
    if len(matching) == 1:
        return known[matching[0]]
    keys = matching or list(known)
    if (more := len(keys) - _MAX_KEYS) > 0:
        keys = [*keys[:_MAX_KEYS], f"and {more} more"]
    if matching:
        raise SpecError(f"run {name!r} is ambiguous: {', '.join(keys)}")
    raise UnknownRun("run", name, keys, address(storage))


def check_silence(journal: Journal, state: run_state.RunState) -> None:
    """Watch a run that looks abandoned; refuse it if its driver, elsewhere, shows that it lives."""
    claim = state.claim
    if state.ended or claim is None or liveness.is_known(claim.driver):
        return
    path = journal.paths.driver_heartbeat(state.writer)
    first = liveness.read(path)
    for _ in range(round(claim.heartbeat_s * run_state.MISSING_HEARTBEATS / POLL_S) + 1):
        time.sleep(POLL_S)
        if events.exists(journal.paths.events, state.last + 1) or liveness.read(path) != first:
            why = f"run {journal.key}: its driver ({run_state.process_name(claim.driver)}) goes on"
            raise RunIsLive(f"{why}; the clocks of its machine and of this one differ")


def remove_run(journal: Journal, clock: Clock = time.time) -> None:
    """Remove a run with all its files; `RunIsLive` while something drives it, or may start to."""
    key, path = journal.key, journal.path.absolute()
    state = journal.state()
    advice = "cancel it first, and wait until it has ended"
    check_not_live(journal, advice, clock)
    # Its driver may exist on this machine, however silent it is; before a driver, its submitter.
    claim, submitter = state.claim, state.submitted.submission.submitter
    writer, role = (claim.driver, "its driver") if claim else (submitter, "orch submit")
    if state.ended is None and liveness.is_alive(writer):
        why = f"{role} ({run_state.process_name(writer)}) exists, and may go on"
        raise RunIsLive(f"run {key}: {why}: end that process first")
    check_silence(journal, state)
    if is_copy(path):
        # A bucket renames nothing: claim the run, so that no driver can, and delete its first event
        # before all others. A run is there while its first event is.
        me = liveness.this_process()
        claimed = events.Claimed(at_s=clock(), driver=me, heartbeat_s=run_state.HEARTBEAT_S)
        try:
            events.append_event(journal.paths, state.last + 1, claimed, state.digest)
        except FileExistsError as error:
            raise RunIsLive(f"run {key}: another process has just written to it") from error
        with files.writing(journal.path):
            copies.delete(journal.paths.root, first=files.FIRST_EVENT)
        return
    hidden = files.hide(path)
    try:
        check_not_live(Journal(hidden), advice, clock, key)  # a driver may just have claimed it
    except RunIsLive:
        files.publish(hidden, path, files.FIRST_EVENT)
        raise
    files.delete(hidden)
    files.sweep(path.parent)


def check_not_live(journal: Journal, advice: str, clock: Clock, key: str | None = None) -> None:
    run = journal.run(clock)
    if run.state in LIVE:
        raise RunIsLive(f"run {key or run.run} is {run.state}: {advice}")


@contextmanager
def shared_marker(storage: Path) -> Iterator[Path]:
    """Yield a temporary folder in the storage: another machine that sees it shares this storage."""
    copied = copies.trial(storage)
    with nullcontext(copied) if copied else files.building(storage) as marker:
        yield marker
        files.delete(marker)


_SCHEMA = 3
_SUBMISSION = "study.json"  # without it there is no study


class StudyRequest(Value):
    """The request from which a study's journal is created. Equal requests have one journal."""

    study: values.Study
    steps: int | None
    devices: int | None = None
    rehearsal: bool = True

    @property
    def digest(self) -> str:
        return codec.digest([self.study, self.steps, self.devices, self.rehearsal])

    def journal_in(self, storage: Path) -> "StudyJournal":
        return StudyJournal(storage / f"{self.study.name}-study-{codec.short(self.digest)}")


@dataclass
class StudyJournal:
    path: Path

    def __post_init__(self) -> None:
        self.path = settled(self.path)
        self.key, self.storage = self.path.name, self.path.parent
        self.submission_path = self.path / _SUBMISSION
        self.trials, self.documents = self.path / "trials", self.path / "documents"

    def submission(self) -> values.StudySubmission:
        """Return what was requested; `JournalUnreadable` if this is not the folder of a study."""
        submission = read_value(self.submission_path, values.StudySubmission)
        if submission.schema != _SCHEMA:
            raise errors.OtherVersion(self.path, "study", written=submission.schema, read=_SCHEMA)
        return submission

    def trial_starts(self) -> list[values.TrialStart]:
        """Return the runs that were started, in order, without records that cannot be read."""
        starts = []
        for text in events.read(self.trials).contents.values():
            with suppress(msgspec.DecodeError):
                start = codec.from_json(text, values.TrialStart)
                if Path(start.run).name == start.run:  # no run elsewhere
                    starts.append(start)
        return starts

    def trial_journal(self, start: values.TrialStart) -> Journal:
        return Journal(self.storage / start.run)

    def trial_run(self, start: values.TrialStart, clock: Clock = time.time) -> Run | None:
        """Return the run of a trial; None where it never started, was removed, or is not of it."""
        with suppress(errors.JournalUnreadable):
            run = self.trial_journal(start).run(clock)
            # Whoever removes or cancels this study must not lose another run.
            return run if run.study == self.key else None
        return None

    def status(self, clock: Clock = time.time, listed: Sequence[Run] = ()) -> values.StudyStatus:
        """Return the state of the study; runs that are `listed` are not read."""
        submission, known = self.submission(), {run.run: run for run in listed}
        every = [
            (start, run if run and run.study == self.key else self.trial_run(start, clock))
            for start in self.trial_starts()
            for run in [known.get(start.run)]
        ]
        runs = [(start, run) for start, run in every if run]
        study = submission.study
        done = {(start.trial, start.repeat) for start, run in runs if is_settled(study, run)}
        total = len(study.trials) * study.repeats
        ended: values.StudyState = "succeeded" if len(done) == total else "stopped"
        return values.StudyStatus(
            study=self.key,
            id=submission.id,
            name=study.name,
            kind=study.kind,
            scaling=study.scaling,
            state="running" if _activity(every, clock) else ended,
            journal=address(self.path),
            submitted_at_s=submission.at_s,
            read_at_s=clock(),
            done=len(done),
            total=total,
            runs=tuple(run for _, run in runs),
        )


def is_settled(study: values.Study, run: Run) -> bool:
    """Return whether a run of a trial succeeded or, in a sweep, diverged, as it would again."""
    error = run.attempts[-1].error if run.attempts else None
    diverged = run.state == "failed" and (error or "").startswith(errors.LossNotFinite.__name__)
    return run.state == "succeeded" or (study.kind == "sweep" and diverged)


def open_study(
    storage: Path, request: StudyRequest, documents: dict[str, bytes], clock: Clock = time.time
) -> StudyJournal:
    """Return the journal of a study: the existing one, or a new one."""
    journal = request.journal_in(storage)
    with suppress(FileExistsError), files.building(storage) as folder:
        prepared = StudyJournal(folder)
        for part in (prepared.trials, prepared.documents):
            files.make_folder(part)
        for name, text in documents.items():
            files.write_once(prepared.documents / name, text)
        submission = values.StudySubmission(
            schema=_SCHEMA,
            id=uuid.uuid4().hex,
            digest=request.digest,
            at_s=clock(),
            study=request.study,
            steps=request.steps,
            devices=request.devices,
            rehearsal=request.rehearsal,
        )
        files.write_once(prepared.submission_path, codec.to_pretty_json(submission).encode())
        files.publish(folder, journal.path, _SUBMISSION)
    files.sweep(storage)
    if (existing := journal.submission()).digest != request.digest:
        digest = codec.short(existing.digest)
        raise errors.SpecError(f"{journal.path}: is another study, with digest {digest}")
    return journal


def start_trial(
    journal: StudyJournal, trial: int, repeat: int, clock: Clock = time.time
) -> values.TrialStart:
    """Name the next run of a trial; `RunIsLive` while another run of the study is active."""
    starter = liveness.this_process()
    while True:
        number = events.read(journal.trials).last + 1
        starts = _idle_starts(journal, clock)
        retries = sum((start.trial, start.repeat) == (trial, repeat) for start in starts)
        name = f"{journal.key}-trial-{trial}.{repeat}" + (f".{retries + 1}" if retries else "")
        start = values.TrialStart(at_s=clock(), trial=trial, repeat=repeat, run=name, by=starter)
        with suppress(FileExistsError):  # another process started one first: look again
            events.append(journal.trials, number, codec.to_json(start))
            return start


def remove_study(journal: StudyJournal, clock: Clock = time.time) -> None:
    """Remove a study with all its runs; `RunIsLive` while one of them is active."""
    for start in _idle_starts(journal, clock):
        if journal.trial_run(start, clock):
            remove_run(journal.trial_journal(start), clock)
    if not copies.delete(journal.path, first=_SUBMISSION):
        files.delete(files.hide(journal.path))
    files.sweep(journal.storage)


def track(
    journal: Journal | StudyJournal, tracking: TrackedRun, *, instead: bool = False
) -> TrackedRun:
    """Note where a tracker keeps its record, `instead` of an earlier note; return what is noted."""
    root = settled(journal.path)
    uri = relative_uri(tracking.uri, journal.path.parent)
    # A database next to the copy of a bucket is of this machine, and so is its note.
    name = TRACKED_HERE if is_copy(root) and uri != tracking.uri else TRACKED
    stored = codec.to_json(replace(tracking, uri=uri))
    if instead:
        files.replace(root / name, stored)
    files.write_once(root / name, stored)
    return noted_tracking(journal.path, (name,)) or tracking


def _idle_starts(journal: StudyJournal, clock: Clock) -> list[values.TrialStart]:
    starts = journal.trial_starts()
    if activity := _activity(((s, journal.trial_run(s, clock)) for s in starts), clock):
        raise errors.RunIsLive(f"study {journal.key}: {activity}")
    return starts


def _activity(starts: Iterable[tuple[values.TrialStart, Run | None]], clock: Clock) -> str | None:
    """Say which run of a study is live or about to start; None if no run is."""
    for start, run in starts:
        if run and run.state in LIVE:
            return f"its run {run.run} is {run.state}"
        recent = (
            clock() - start.at_s < run_state.UNCLAIMED_S and start.by != liveness.this_process()
        )
        if run is None and recent and not liveness.is_gone(start.by):
            return f"{run_state.process_name(start.by)} is starting its run {start.run}"
    return None


# --- finding studies, and runs by the name of a study


def list_studies(storage: Path) -> list[StudyJournal]:
    return [StudyJournal(path) for path in _folders_in(storage) if _is_study(path)]


def _is_study(path: Path) -> bool:
    try:
        return holds(path, _SUBMISSION) and bool(StudyJournal(path).submission())
    except errors.JournalUnreadable:
        return False


def find_runs(storage: Path, name: str) -> list[Journal]:
    found = find_run_or_study(storage, name)
    if isinstance(found, Journal):
        return [found]
    return [found.trial_journal(start) for start in found.trial_starts() if found.trial_run(start)]


def trial_of(journal: Journal, study: str | None) -> tuple[values.Study, values.Trial] | None:
    """Return the study and the trial that a run belongs to; None for any other run."""
    if study is None:
        return None
    recorded = StudyJournal(journal.path.absolute().parent / Path(study).name)
    with suppress(errors.JournalUnreadable, OSError):  # it was removed
        found, starts = recorded.submission().study, recorded.trial_starts()
        number = next((start.trial for start in starts if start.run == journal.key), None)
        return next(((found, trial) for trial in found.trials if trial.number == number), None)
    return None


def find_run_or_study(storage: Path, name: str) -> Journal | StudyJournal:
    """Return the run or study of that key, a unique beginning, or folder; studies before trials."""
    known = {study.key: study for study in list_studies(storage)}
    if name in known:
        return known[name]
    if _is_study(Path(name)):
        return StudyJournal(Path(name))
    matching = [key for key in known if name and key.startswith(name)]
    runs = [run.key for run in list_journals(storage) if name and run.key.startswith(name)]
    if len(matching) == 1 and all(run.startswith(matching[0]) for run in runs):
        return known[matching[0]]
    try:
        return find_run(storage, name)
    except errors.UnknownRun as error:
        keys = [*known, *error.known]
        raise errors.UnknownRun("run or study", name, keys, address(storage)) from None
