"""Journal room: a study's own record: what was asked, and which runs are its trials.

The directory lies among the runs of its storage and is none of them. A trial is named before its
run begins; the number of the name is the fence, as it is for a run's events.
"""

import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.errors import (
    JournalUnreadable,
    JournalUnwritable,
    RunIsLive,
    SpecError,
    UnknownRun,
)
from orchestrator.journal import event_log, files, liveness
from orchestrator.journal.listing import entries, find, journals, remove
from orchestrator.journal.reading import Clock, Journal, station
from orchestrator.journal.run_status import UNCLAIMED_S, named
from orchestrator.journal.writing import keep
from orchestrator.types import codec
from orchestrator.types.run import LIVE, Run, TrackedRun
from orchestrator.types.study import Study, StudyState, StudyStatus, StudySubmission, TrialStart

SCHEMA = 1


@dataclass(frozen=True)
class StudyJournal:
    """The directory of one study."""

    path: Path

    @property
    def key(self) -> str:
        """What the study is called: the name of its directory."""
        return self.path.absolute().name

    @property
    def storage(self) -> Path:
        """Where its trials' runs are."""
        return self.path.absolute().parent

    @property
    def opening(self) -> Path:
        return self.path / "study.json"

    @property
    def trials(self) -> Path:
        """The runs begun for it, numbered."""
        return self.path / "trials"

    @property
    def documents(self) -> Path:
        return self.path / "documents"

    def opened(self) -> StudySubmission:
        """What the study began with; `JournalUnreadable` when this is no study's directory."""
        opened = station(self.opening, StudySubmission)
        if opened.schema > SCHEMA:
            why = f"its schema is {opened.schema}, and this orch reads up to {SCHEMA}"
            raise JournalUnreadable(f"{self.path}: {why}")
        return opened

    def begun(self) -> list[TrialStart]:
        """The runs that were begun, in order; one whose name cannot be read is left out."""
        found = []
        for text in event_log.read(self.trials).contents.values():
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                found.append(codec.from_json(text, TrialStart))
        return found

    def run_of(self, begun: TrialStart) -> Journal:
        """Where the run of a trial is, or would be."""
        return Journal(self.storage / begun.run)

    def tracking(self) -> TrackedRun | None:
        """Where a tracker keeps its record of the study; None while none is noted."""
        path = self.path / "tracking.json"
        return station(path, TrackedRun) if path.exists() else None

    def track(self, tracking: TrackedRun) -> TrackedRun:
        """Note where a tracker keeps its record; one that was noted before stays and comes back."""
        path = self.path / "tracking.json"
        keep(path, codec.to_json(tracking))
        return station(path, TrackedRun)


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """What a study's journal is made from. The same is the same journal, whose key is the study's
    name and the digest of all that is asked.
    """

    study: Study
    steps: int | None
    devices: int | None = None
    rehearsal: bool = True

    @property
    def digest(self) -> str:
        real = [] if self.rehearsal else ["on a cluster"]
        return codec.digest([self.study, self.steps, self.devices, *real])

    def place(self, storage: Path) -> StudyJournal:
        """Where its journal is, or would be."""
        return StudyJournal(storage / f"{self.study.name}-study-{codec.short(self.digest)}")


def open_study(
    storage: Path, asked: StudyRequest, documents: dict[str, bytes], clock: Clock = time.time
) -> StudyJournal:
    """The journal of a study: the one that was begun before, or a new one."""
    digest, journal = asked.digest, asked.place(storage)
    opened = StudySubmission(
        schema=SCHEMA,
        id=uuid.uuid4().hex,
        digest=digest,
        at_s=clock(),
        study=asked.study,
        steps=asked.steps,
        devices=asked.devices,
        rehearsal=asked.rehearsal,
    )
    prepared = StudyJournal(files.prepare_folder(storage / "study"))
    try:
        for folder in (prepared.trials, prepared.documents):
            files.make_folder(folder)
        for name, text in documents.items():
            keep(prepared.documents / name, text)
        keep(prepared.opening, codec.to_pretty_json(opened).encode())
        files.publish(prepared.path, journal.path)
    except FileExistsError:
        files.delete(prepared.path)
    except BaseException:
        with suppress(JournalUnwritable):  # swept later; the first error is the one told
            files.delete(prepared.path)
        raise
    files.sweep(storage)
    if (there := journal.opened()).digest != digest:
        raise SpecError(f"{journal.path}: is another study, of digest {codec.short(there.digest)}")
    return journal


def begin_trial(
    journal: StudyJournal, trial: int, repeat: int, clock: Clock = time.time
) -> TrialStart:
    """Name the next run of a trial; `RunIsLive` while one of the study's runs goes on."""
    while True:
        before = event_log.read(journal.trials)
        begun = journal.begun()
        check_idle(journal, begun, clock)
        tried = sum(one.trial == trial and one.repeat == repeat for one in begun)
        entry = TrialStart(
            at_s=clock(),
            trial=trial,
            repeat=repeat,
            run=f"{journal.key}-trial-{trial}.{repeat}" + (f".{tried + 1}" if tried else ""),
            by=liveness.this_process(),
        )
        with suppress(FileExistsError):  # somebody began one first: see whether it goes on
            event_log.append(journal.trials, before.last + 1, codec.to_json(entry))
            return entry


def check_idle(journal: StudyJournal, begun: Iterable[TrialStart], clock: Clock) -> None:
    """`RunIsLive` while another process carries this study out, or one of its runs goes on."""
    if why := _goes_on(journal, begun, clock):
        raise RunIsLive(f"study {journal.key}: {why}")


def _goes_on(journal: StudyJournal, begun: Iterable[TrialStart], clock: Clock) -> str | None:
    """What of a study goes on; None where nothing does."""
    for one in begun:
        run = run_of(journal, one, clock)
        if run and run.state in LIVE:
            return f"its run {run.run} is {run.state}"
        fresh = clock() - one.at_s < UNCLAIMED_S and one.by != liveness.this_process()
        if run is None and fresh and not liveness.is_gone(one.by):
            return f"{named(one.by)} begins its run {one.run}"
    return None


def study_status(journal: StudyJournal, clock: Clock = time.time) -> StudyStatus:
    """How a study stands, from its runs alone."""
    opened, begun = journal.opened(), journal.begun()
    runs = [(one, run) for one in begun if (run := run_of(journal, one, clock))]
    done = {(one.trial, one.repeat) for one, run in runs if run.state == "succeeded"}
    asked = len(opened.study.trials) * opened.study.repeats
    state: StudyState = "succeeded" if len(done) == asked else "stopped"
    return StudyStatus(
        study=journal.key,
        id=opened.id,
        name=opened.study.name,
        scaling=opened.study.scaling,
        state="running" if _goes_on(journal, begun, clock) else state,
        journal=str(journal.path.absolute()),
        begun_at_s=opened.at_s,
        read_at_s=clock(),
        done=len(done),
        asked=asked,
        runs=tuple(run for _, run in runs),
    )


def remove_study(journal: StudyJournal, clock: Clock = time.time) -> None:
    """Remove a study with every run that was begun for it; `RunIsLive` while one goes on."""
    check_idle(journal, journal.begun(), clock)
    for one in journal.begun():
        with suppress(JournalUnreadable):  # it was removed before, or never came to be
            remove(journal.run_of(one), clock)
    files.delete(files.hide(journal.path.absolute()))
    files.sweep(journal.storage)


def run_of(journal: StudyJournal, begun: TrialStart, clock: Clock = time.time) -> Run | None:
    """How a trial's run stands; None where it never began, or was removed."""
    try:
        return journal.run_of(begun).run(clock)
    except JournalUnreadable:
        return None


def studies(storage: Path) -> list[StudyJournal]:
    """The directories of studies, by name."""
    return [StudyJournal(path) for path in entries(storage) if _holds_study(path)]


def _holds_study(path: Path) -> bool:
    return not path.name.startswith(".") and StudyJournal(path).opening.is_file()


def find_either(storage: Path, wanted: str) -> Journal | StudyJournal:
    """The run or the study of that key, or of the only key that begins so, or in that directory.

    A study comes before its trials, whose keys begin with its own.
    """
    known = {study.key: study for study in studies(storage)}
    if wanted in known:
        return known[wanted]
    if _holds_study(Path(wanted)):
        return StudyJournal(Path(wanted))
    matching = [key for key in known if wanted and key.startswith(wanted)]
    runs = [run.key for run in journals(storage) if wanted and run.key.startswith(wanted)]
    if len(matching) == 1 and all(run.startswith(matching[0]) for run in runs):
        return known[matching[0]]
    try:
        return find(storage, wanted)
    except UnknownRun as error:
        raise UnknownRun("run or study", wanted, [*known, *error.known], storage) from None
