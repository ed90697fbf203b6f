"""The folder, maybe of a bucket, in which the hosts of a run's slices and its driver meet. Each
host replaces one file with its state. Orders are numbered and created exclusively: the slower of
two drivers fails and looks again. Nobody lists the folder: a listing may be cached for a minute.
Only files of the user and of the folder's owner count; other orders are reported and skipped.
"""

import errno
import os
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from orchestrator import storage
from orchestrator.errors import JournalUnreadable
from orchestrator.journal import boundary, files
from orchestrator.launch.backend import PreflightHost, PreflightReport, WorkerArgs
from orchestrator.storage import copies
from orchestrator.values import codec
from orchestrator.values.codec import Value

T = TypeVar("T")
VARIABLE = "ORCH_HOSTS"  # the driver's environment names the folder
# Why a file can never be read as an order. Any other error may be gone at the next look.
_REFUSED = {errno.EPERM, errno.EACCES, errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.EFBIG}


class HostName(Value):
    """One host of a slice, counted from 0."""

    slice_name: str
    index: int

    def __str__(self) -> str:
        return f"{self.slice_name}-{self.index}"


class Order(Value):
    """What a driver wants of the hosts: `ranks` name a host each, and others do nothing; nor do any
    without `args`. The first rank's host says where to meet it. `run_id` tells runs in the same
    folder apart. After an order of a later claim, one of an earlier claim does not count.
    """

    number: int
    run: str
    run_id: str
    claim: int
    worker: str = ""
    args: WorkerArgs | None = None
    ranks: tuple[HostName, ...] = ()
    coordinator: str = ""
    coordinator_host: str = ""


class Question(Value):
    """What a preflight asks every host: does it see this file, and which variables does it lack."""

    id: str
    secrets: tuple[str, ...]
    file: str


class Answer(Value):
    id: str
    host: PreflightHost


class HostState(Value):
    """One of the `size` hosts of a slice of that `kind`; `beat` counts its states. `order` is the
    last that it obeyed, `run` the run of its process, `code` the last exit status.
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
        return self.answer.host if self.answer and self.answer.id == question.id else None


@dataclass
class Meeting:
    """The folder, as one of those who meet there sees it."""

    folder: Path
    _seen: int = field(default=0, init=False)  # the number of the newest file of an order
    _newest: Order | None = field(default=None, init=False)
    _claims: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Follow the links to the folder, which are the user's own."""
        self.folder = Path(os.path.realpath(storage.folder(self.folder)))

    def join(self, state: HostState) -> None:
        files.replace(self.folder / f"host-{state.host}.json", codec.to_json(state))

    def hosts(self) -> tuple[HostState, ...]:
        """The last state of every host, in order; one that cannot be read now is left out."""
        try:
            names = [name for name in files.names(self.folder) if name.startswith("host-")]
        except (FileNotFoundError, JournalUnreadable):
            return ()
        known = [state for name in names if (state := _read(self.folder / name, HostState))]
        return tuple(sorted(known, key=lambda state: (state.host.slice_name, state.host.index)))

    def ask(self, question: Question) -> None:
        files.replace(self.folder / "question.json", codec.to_json(question))

    def question(self) -> Question | None:
        path = self.folder / "question.json"
        with suppress(OSError):  # it may be of a bucket, which is asked first
            copies.refresh_file(path)
        return _read(path, Question)

    def order(self) -> Order | None:
        """Return the newest valid order, or None before the first."""
        while self._exists(number := self._seen + 1):
            try:
                content = boundary.read_trusted(self._path(number), boundary.MAX_RECORD_BYTES)
                order = codec.from_json(content, Order)
                if order.number != number:
                    raise ValueError(f"says that it is order {order.number}")
                if order.claim < (later := self._claims.get(order.run_id, 0)):
                    raise ValueError(f"is of claim {order.claim} of a run that claim {later} has")
            except (OSError, msgspec.DecodeError, ValueError) as error:
                if isinstance(error, OSError) and error.errno not in _REFUSED:
                    break
                why = f"it {getattr(error, 'strerror', None) or error}"
                name = self._path(number).name
                print(f"{name} is passed over: {why}", file=sys.stderr, flush=True)
            else:
                self._newest, self._claims[order.run_id] = order, order.claim
            self._seen += 1
        return self._newest

    @property
    def next_number(self) -> int:
        """The number of the next order, as far as the last look at the newest showed."""
        return self._seen + 1

    def _exists(self, number: int) -> bool:
        """Whether anything has the name of that order, if only a link to nowhere."""
        path = self._path(number)
        try:
            copies.refresh_file(path)
            return bool(path.lstat())
        except OSError:
            return False

    def give(self, order: Order) -> None:
        """Give an order; `FileExistsError` when somebody else has given one of that number."""
        files.write_new(self._path(order.number), codec.to_json(order))

    def _path(self, number: int) -> Path:
        return self.folder / f"order-{number:06d}.json"


def _read(path: Path, kind: type[T]) -> T | None:
    """What a file says; None where it cannot be read now, or somebody else has written it."""
    try:
        return codec.from_json(boundary.read_trusted(path, boundary.MAX_RECORD_BYTES), kind)
    except (OSError, msgspec.DecodeError):
        return None


def report(hosts: list[HostState], question: Question, kind: str) -> PreflightReport:
    """Return what the hosts offer together: whole slices of a kind, and each host's answer."""
    mine = [state for state in hosts if state.kind == kind]
    heads = {state.host.slice_name: state for state in mine if state.host.index == 0}
    count = Counter(state.host.slice_name for state in mine)
    whole = {name for name, head in heads.items() if count[name] == head.size}
    busy = {state.host.slice_name for state in mine if state.run}
    others = Counter(state.kind for state in hosts if state.kind != kind and state.host.index == 0)
    answers = [state.answer_to(question) or PreflightHost(name=str(state.host)) for state in mine]
    present, free = len(whole), len(whole - busy)
    return PreflightReport(present=present, free=free, others=dict(others), hosts=tuple(answers))
