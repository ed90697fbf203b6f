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
from typing import TypeVar

import msgspec

from orchestrator.errors import (
    JournalUnreadable,
    JournalUnwritable,
    RunIsLive,
    UnknownName,
    Unservable,
)
from orchestrator.journal import files, liveness, numbered
from orchestrator.journal.finding import entries, find, journals
from orchestrator.journal.fold import UNCLAIMED_S, named
from orchestrator.journal.reading import Clock, Journal
from orchestrator.journal.writing import keep
from orchestrator.stations import codec
from orchestrator.stations.run import LIVE, Run, Tracking
from orchestrator.stations.study import Study, StudyOpened, TrialBegun

SCHEMA = 1
T = TypeVar("T")


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

    def opened(self) -> StudyOpened:
        """What the study began with; `JournalUnreadable` when this is no study's directory."""
        opened = _station(self.opening, StudyOpened)
        if opened.schema > SCHEMA:
            why = f"its schema is {opened.schema}, and this orch reads up to {SCHEMA}"
            raise JournalUnreadable(f"{self.path}: {why}")
        return opened

    def begun(self) -> list[TrialBegun]:
        """The runs that were begun, in order; one whose name cannot be read is left out."""
        found = []
        for text in numbered.read(self.trials).contents.values():
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                found.append(codec.from_json(text, TrialBegun))
        return found

    def run_of(self, begun: TrialBegun) -> Journal:
        """Where the run of a trial is, or would be."""
        return Journal(self.storage / begun.run)

    def tracking(self) -> Tracking | None:
        """The MLflow run of the study; None while none was noted."""
        path = self.path / "mlflow.json"
        return _station(path, Tracking) if path.exists() else None

    def track(self, tracking: Tracking) -> Tracking:
        """Note the MLflow run of the study; one that was noted before stays and comes back."""
        path = self.path / "mlflow.json"
        keep(path, codec.to_json(tracking))
        return _station(path, Tracking)


def open_study(
    storage: Path,
    study: Study,
    *,
    steps: int,
    devices: int | None,
    documents: dict[str, bytes],
    clock: Clock = time.time,
) -> StudyJournal:
    """The journal of a study: the one that was begun before, or a new one.

    The same study is the same key: its name, and the digest of all that is asked.
    """
    digest = codec.digest([study, steps, devices])
    journal = StudyJournal(storage / f"{study.name}-study-{codec.short(digest)}")
    opened = StudyOpened(
        schema=SCHEMA,
        id=uuid.uuid4().hex,
        digest=digest,
        at_s=clock(),
        study=study,
        steps=steps,
        devices=devices,
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
        raise Unservable(f"{journal.path}: is another study, of digest {codec.short(there.digest)}")
    return journal


def begin_trial(
    journal: StudyJournal, trial: int, repeat: int, clock: Clock = time.time
) -> TrialBegun:
    """Name the next run of a trial; `RunIsLive` while one of the study's runs goes on."""
    while True:
        before = numbered.read(journal.trials)
        begun = journal.begun()
        check_idle(journal, begun, clock)
        tried = sum(one.trial == trial and one.repeat == repeat for one in begun)
        entry = TrialBegun(
            at_s=clock(),
            trial=trial,
            repeat=repeat,
            run=f"{journal.key}-trial-{trial}.{repeat}" + (f".{tried + 1}" if tried else ""),
            by=liveness.this_process(),
        )
        with suppress(FileExistsError):  # somebody began one first: see whether it goes on
            numbered.append(journal.trials, before.last + 1, codec.to_json(entry))
            return entry


def check_idle(journal: StudyJournal, begun: Iterable[TrialBegun], clock: Clock) -> None:
    """`RunIsLive` while another process carries this study out, or one of its runs goes on."""
    for one in begun:
        run = run_of(journal, one, clock)
        if run and run.state in LIVE:
            raise RunIsLive(f"study {journal.key}: its run {run.run} is {run.state}")
        fresh = clock() - one.at_s < UNCLAIMED_S and one.by != liveness.this_process()
        if run is None and fresh and not liveness.is_gone(one.by):
            raise RunIsLive(f"study {journal.key}: {named(one.by)} begins its run {one.run}")


def run_of(journal: StudyJournal, begun: TrialBegun, clock: Clock = time.time) -> Run | None:
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
    except UnknownName as error:
        raise UnknownName("run or study", wanted, [*known, *error.known]) from None


def _station(path: Path, kind: type[T]) -> T:
    try:
        return codec.from_json(path.read_bytes(), kind)
    except OSError as error:
        raise JournalUnreadable(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise JournalUnreadable(f"{path}: is no {kind.__name__}: {error}") from error
