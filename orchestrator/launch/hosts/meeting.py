"""The folder in which the hosts of a run's slices and its driver meet: files, whole or not at all.
It may be a place in a bucket.

Each host replaces one file with its state again and again. A driver gives orders, numbered and
created exclusively: of two drivers that give an order of one number, one fails and looks again.
Nobody lists the folder to learn of an order, because a directory may be cached for a minute.
Only files of the user and of the folder's owner count: others may be able to write there.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from orchestrator import storage
from orchestrator.errors import JournalUnreadable
from orchestrator.journal import boundary, files
from orchestrator.launch.backend import WorkerArgs
from orchestrator.launch.preflight import PreflightHost
from orchestrator.storage import copies
from orchestrator.types import codec

T = TypeVar("T")
VARIABLE = "ORCH_HOSTS"  # the driver's environment names the folder


@dataclass(frozen=True, kw_only=True)
class HostName:
    """One host of a slice, counted from 0."""

    slice_name: str
    index: int

    def __str__(self) -> str:
        return f"{self.slice_name}-{self.index}"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a driver wants of the hosts: `ranks` name a host each, and other hosts do nothing.

    Without `args` nobody has anything to do. The first rank's host says where the others meet it.
    After an order of a later claim of the same run, one of an earlier claim is never given.
    """

    number: int
    run: str
    claim: int
    worker: str = ""
    args: WorkerArgs | None = None
    ranks: tuple[HostName, ...] = ()
    coordinator: str = ""
    coordinator_host: str = ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a preflight asks every host: does it see this file, and which variables does it lack."""

    id: str
    secrets: tuple[str, ...]
    file: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A host's answer to the question of that id."""

    id: str
    host: PreflightHost


@dataclass(frozen=True, kw_only=True)
class HostState:
    """A host as it is: `size` hosts make its slice of that `kind`, and `beat` counts states.

    `order` is the last order that it has obeyed. While a process of it runs, `run` names the run;
    `code` is what the last process exited with.
    """

    host: HostName
    size: int
    kind: str
    address: str
    free_port: int
    beat: int
    order: int = 0
    run: str | None = None
    code: int | None = None
    answer: Answer | None = None

    def answer_to(self, question: Question) -> PreflightHost | None:
        """What the host answered to that question; None while it has not."""
        return self.answer.host if self.answer and self.answer.id == question.id else None


@dataclass
class Meeting:
    """The folder, as one of those who meet there sees it."""

    folder: Path
    newest: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Follow the links to the folder, which are the user's own."""
        self.folder = Path(os.path.realpath(storage.folder(self.folder)))

    def join(self, state: HostState) -> None:
        """Show the state of a host."""
        files.replace(self.folder / f"host-{state.host}.json", codec.to_json(state))

    def hosts(self) -> tuple[HostState, ...]:
        """The last state of every host, in order; one that cannot be read now is left out.

        A look into the folder reads those of a bucket that have changed.
        """
        try:
            paths = [path for path in files.entries(self.folder) if path.name.startswith("host-")]
        except (FileNotFoundError, JournalUnreadable):
            return ()
        states = [_read(path, HostState) for path in paths]
        known = [state for state in states if state]
        return tuple(sorted(known, key=lambda one: (one.host.slice_name, one.host.index)))

    def ask(self, question: Question) -> None:
        """Ask every host."""
        files.replace(self.folder / "question.json", codec.to_json(question))

    def question(self) -> Question | None:
        """The last question."""
        return _read_now(self.folder / "question.json", Question)

    def order(self) -> Order | None:
        """The newest order; None where there is none yet."""
        while files.exists(self._path(self.newest + 1)):
            self.newest += 1
        return _read_now(self._path(self.newest), Order) if self.newest else None

    def give(self, order: Order) -> None:
        """Give an order; `FileExistsError` when somebody else has given one of that number."""
        files.write_new(self._path(order.number), codec.to_json(order))

    def _path(self, number: int) -> Path:
        return self.folder / f"order-{number:06d}.json"


def _read(path: Path, kind: type[T]) -> T | None:
    """What a file says; None where it cannot be read now, or somebody else has written it: an
    order says what hosts run.
    """
    try:
        return codec.from_json(boundary.read_trusted(path, boundary.MAX_RECORD_BYTES), kind)
    except (OSError, msgspec.DecodeError):
        return None


def _read_now(path: Path, kind: type[T]) -> T | None:
    """The same of a file that may be of a bucket, which is asked first."""
    with suppress(OSError):
        copies.refresh_file(path)
    return _read(path, kind)
