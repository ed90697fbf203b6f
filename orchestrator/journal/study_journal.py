"""The journal of a study: what was requested, and which runs are its trials.

A study's folder lies next to the folders of its runs. A trial is named before its run starts, and
the number of that record is the fence, as for a run's events.
"""

import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.errors import JournalUnreadable, LossNotFinite, RunIsLive, SpecError, UnknownRun
from orchestrator.journal import events, files, liveness
from orchestrator.journal.boundary import settled
from orchestrator.journal.listing import find_run, folders_in, holds, list_journals, remove_run
from orchestrator.journal.run_journal import Clock, Journal, check_schema, read_value
from orchestrator.journal.run_paths import TRACKED, TRACKED_HERE, as_meant, as_stored, note_of
from orchestrator.journal.run_state import UNCLAIMED_S, process_name
from orchestrator.storage import copies
from orchestrator.storage.addresses import address
from orchestrator.values import codec
from orchestrator.values.run import LIVE, Run, TrackedRun
from orchestrator.values.study import Study, StudyState, StudyStatus, StudySubmission, TrialStart

SCHEMA = 3


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """What a study's journal is created from. The same request has the same journal."""

    study: Study
    steps: int | None
    devices: int | None = None
    rehearsal: bool = True

    @property
    def digest(self) -> str:
        return codec.digest([self.study, self.steps, self.devices, self.rehearsal])

    def journal_in(self, storage: Path) -> "StudyJournal":
        """Its journal in a storage directory, which may not exist yet."""
        return StudyJournal(storage / f"{self.study.name}-study-{codec.short(self.digest)}")


@dataclass(frozen=True)
class StudyJournal:
    """The folder of one study."""

    path: Path

    def __post_init__(self) -> None:
        """Follow the links above the folder, which are the user's own."""
        object.__setattr__(self, "path", settled(self.path))

    @property
    def key(self) -> str:
        """The name of the study: that of its folder."""
        return self.path.absolute().name

    @property
    def storage(self) -> Path:
        """The directory with the runs of its trials."""
        return self.path.absolute().parent

    @property
    def submission_path(self) -> Path:
        return self.path / "study.json"

    @property
    def trials(self) -> Path:
        """The runs started for the study, numbered."""
        return self.path / "trials"

    @property
    def documents(self) -> Path:
        return self.path / "documents"

    def submission(self) -> StudySubmission:
        """What was requested; `JournalUnreadable` when this is not the folder of a study."""
        submission = read_value(self.submission_path, StudySubmission)
        check_schema(self.path, "study", submission, SCHEMA)
        return submission

    def trial_starts(self) -> list[TrialStart]:
        """The runs that were started, in order; a record that cannot be read is left out."""
        starts = []
        for text in events.read(self.trials).contents.values():
            with suppress(msgspec.DecodeError):
                start = codec.from_json(text, TrialStart)
                if Path(start.run).name == start.run:  # no run elsewhere
                    starts.append(start)
        return starts

    def trial_journal(self, start: TrialStart) -> Journal:
        """The journal of a trial's run, which may not exist."""
        return Journal(self.storage / start.run)

    def trial_run(self, start: TrialStart, clock: Clock = time.time) -> Run | None:
        """The run of a trial; None where it never started, was removed, or is of no such study:
        whoever removes or cancels this study must not lose another run.
        """
        try:
            run = self.trial_journal(start).run(clock)
        except JournalUnreadable:
            return None
        return run if run.study == self.key else None

    def status(self, clock: Clock = time.time) -> StudyStatus:
        """The state of the study, derived from its runs."""
        submission, starts = self.submission(), self.trial_starts()
        runs = [(one, run) for one in starts if (run := self.trial_run(one, clock))]
        study = submission.study
        done = {(one.trial, one.repeat) for one, run in runs if is_settled(study, run)}
        total = len(study.trials) * study.repeats
        ended: StudyState = "succeeded" if len(done) == total else "stopped"
        return StudyStatus(
            study=self.key,
            id=submission.id,
            name=study.name,
            kind=study.kind,
            scaling=study.scaling,
            state="running" if _activity(self, starts, clock) else ended,
            journal=address(self.path.absolute()),
            submitted_at_s=submission.at_s,
            read_at_s=clock(),
            done=len(done),
            total=total,
            runs=tuple(run for _, run in runs),
        )

    def tracking(self) -> TrackedRun | None:
        """Where a tracker keeps its record of the study; None while none is noted."""
        for path in (self.path / TRACKED, self.path / TRACKED_HERE):
            with files.reading(path):
                is_noted = os.path.lexists(path)
            if is_noted:
                return as_meant(read_value(path, TrackedRun), self.storage)
        return None

    def track(self, tracking: TrackedRun) -> TrackedRun:
        """Note where a tracker keeps its record; an earlier note stays and comes back."""
        path = note_of(self.path.absolute(), tracking)
        files.write_once(path, codec.to_json(as_stored(tracking, self.storage)))
        return as_meant(read_value(path, TrackedRun), self.storage)


def is_settled(study: Study, run: Run) -> bool:
    """Whether a run of a trial need not be repeated: it succeeded or, in a sweep, its loss became
    infinite or NaN, as it would again.
    """
    error = run.attempts[-1].error if run.attempts else None
    diverged = run.state == "failed" and (error or "").startswith(LossNotFinite.__name__)
    return run.state == "succeeded" or (study.kind == "sweep" and diverged)


def open_study(
    storage: Path, request: StudyRequest, documents: dict[str, bytes], clock: Clock = time.time
) -> StudyJournal:
    """The journal of a study: the existing one, or a new one."""
    journal = request.journal_in(storage)
    with suppress(FileExistsError), files.building(storage) as prepared:
        _fill(StudyJournal(prepared), request, documents, clock)
        files.publish(prepared, journal.path, journal.submission_path.name)
    files.sweep(storage)
    if (existing := journal.submission()).digest != request.digest:
        digest = codec.short(existing.digest)
        raise SpecError(f"{journal.path}: is another study, with digest {digest}")
    return journal


def _fill(
    journal: StudyJournal, request: StudyRequest, documents: dict[str, bytes], clock: Clock
) -> None:
    """Write everything that a study starts from."""
    for folder in (journal.trials, journal.documents):
        files.make_folder(folder)
    for name, text in documents.items():
        files.write_once(journal.documents / name, text)
    submission = StudySubmission(
        schema=SCHEMA,
        id=uuid.uuid4().hex,
        digest=request.digest,
        at_s=clock(),
        study=request.study,
        steps=request.steps,
        devices=request.devices,
        rehearsal=request.rehearsal,
    )
    files.write_once(journal.submission_path, codec.to_pretty_json(submission).encode())


def start_trial(
    journal: StudyJournal, trial: int, repeat: int, clock: Clock = time.time
) -> TrialStart:
    """Name the next run of a trial; `RunIsLive` while another run of the study is active."""
    while True:
        number = events.read(journal.trials).last + 1
        starts = journal.trial_starts()
        _check_idle(journal, starts, clock)
        retries = sum(one.trial == trial and one.repeat == repeat for one in starts)
        start = TrialStart(
            at_s=clock(),
            trial=trial,
            repeat=repeat,
            run=f"{journal.key}-trial-{trial}.{repeat}" + (f".{retries + 1}" if retries else ""),
            by=liveness.this_process(),
        )
        with suppress(FileExistsError):  # another process started one first: look again
            events.append(journal.trials, number, codec.to_json(start))
            return start


def remove_study(journal: StudyJournal, clock: Clock = time.time) -> None:
    """Remove a study with all its runs; `RunIsLive` while one of them is active."""
    starts = journal.trial_starts()
    _check_idle(journal, starts, clock)
    for one in starts:
        if journal.trial_run(one, clock):
            remove_run(journal.trial_journal(one), clock)
    path = journal.path.absolute()
    if not copies.delete(path, first=journal.submission_path.name):
        files.delete(files.hide(path))
    files.sweep(journal.storage)


def _check_idle(journal: StudyJournal, starts: Sequence[TrialStart], clock: Clock) -> None:
    if activity := _activity(journal, starts, clock):
        raise RunIsLive(f"study {journal.key}: {activity}")


def _activity(journal: StudyJournal, starts: Sequence[TrialStart], clock: Clock) -> str | None:
    """The run of a study that is live or about to start; None where there is none."""
    for one in starts:
        run = journal.trial_run(one, clock)
        if run and run.state in LIVE:
            return f"its run {run.run} is {run.state}"
        recent = clock() - one.at_s < UNCLAIMED_S and one.by != liveness.this_process()
        if run is None and recent and not liveness.is_gone(one.by):
            return f"{process_name(one.by)} is starting its run {one.run}"
    return None


def list_studies(storage: Path) -> list[StudyJournal]:
    """The journals of all studies, by name."""
    return [StudyJournal(path) for path in folders_in(storage) if _is_study(path)]


def _is_study(path: Path) -> bool:
    """Whether this is the folder of a study that can be read."""
    if not holds(path, StudyJournal(path).submission_path.name):
        return False
    try:
        StudyJournal(path).submission()
    except JournalUnreadable:
        return False
    return True


def keys_in(storage: Path) -> list[str]:
    """The keys of all studies and runs."""
    studies, runs = list_studies(storage), list_journals(storage)
    return [*(study.key for study in studies), *(run.key for run in runs)]


def find_runs(storage: Path, name: str) -> list[Journal]:
    """The run with that name, or the runs of the study."""
    found = find_run_or_study(storage, name)
    if isinstance(found, Journal):
        return [found]
    return [found.trial_journal(one) for one in found.trial_starts() if found.trial_run(one)]


def find_run_or_study(storage: Path, name: str) -> Journal | StudyJournal:
    """The run or study with that key, the only one whose key begins so, or that in a folder.

    The keys of a study's trials begin with the study's key: then the study is meant.
    """
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
    except UnknownRun as error:
        raise UnknownRun("run or study", name, [*known, *error.known], storage) from None
