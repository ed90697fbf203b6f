"""The events of a run and the requests to its driver: as values, as numbered files, as a chain."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from orchestrator.errors import JournalUnreadable, JournalUnwritable
from orchestrator.journal import boundary, files
from orchestrator.journal.files import FileFault, RunPaths
from orchestrator.values import codec
from orchestrator.values import run as values
from orchestrator.values.slowdowns import HostCheck, Slowdown

SCHEMA = 4
T = TypeVar("T")
_NAME = re.compile(r"(\d{6,})\.json")


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A change of a run's state. `previous` is the sha256 of the file of the event before."""

    at_s: float
    previous: str = ""


class Submitted(_Event, frozen=True, kw_only=True, tag="submitted"):
    submission: values.Submission
    schema: int = SCHEMA


class Claimed(_Event, frozen=True, kw_only=True, tag="claimed"):
    """A driver has taken the run, and with it the right to write. It sends a heartbeat every
    `heartbeat_s`. `resumes` means that a person wants the run to go on: its retry budgets start
    again, and requests up to `settled_requests` no longer count. `adopted` is a checkpoint that the
    attempt before saved, and that its driver did not come to record.
    """

    driver: values.ProcessIdentity
    heartbeat_s: float
    resumes: bool = False
    settled_requests: int = 0
    adopted: values.SavedCheckpoint | None = None


class Pending(_Event, frozen=True, kw_only=True, tag="pending"):
    reason: values.StateReason


class AttemptStarted(_Event, frozen=True, kw_only=True, tag="attempt started"):
    """An attempt has its slices, and its processes are starting."""

    attempt: int
    plan_digest: str
    pods: int
    slices: tuple[str, ...] = ()
    plan_sha256: str = ""  # of its file


class CheckpointSaved(_Event, frozen=True, kw_only=True, tag="checkpoint saved"):
    """A checkpoint of the attempt that is running is whole, and counts from now on."""

    checkpoint: values.SavedCheckpoint

    @property
    def attempt(self) -> int:
        return self.checkpoint.attempt


class SlowdownSeen(_Event, frozen=True, kw_only=True, tag="slowdown seen"):
    """Steps of the running attempt are slow, or no longer: the newest event of a number counts."""

    slowdown: Slowdown

    @property
    def attempt(self) -> int:
        return self.slowdown.attempt


class HostsChecked(_Event, frozen=True, kw_only=True, tag="hosts checked"):
    """Every host of the running attempt was timed."""

    check: HostCheck

    @property
    def attempt(self) -> int:
        return self.check.attempt


class Stopping(_Event, frozen=True, kw_only=True, tag="stopping"):
    reason: values.StateReason


class AttemptEnded(_Event, frozen=True, kw_only=True, tag="attempt ended"):
    """No process of the attempt is left. `steps` is what it wrote of its steps."""

    attempt: int
    reason: values.AttemptReason
    error: str | None = None
    first_dead_rank: int | None = None
    steps: values.WrittenSteps | None = None


class Ended(_Event, frozen=True, kw_only=True, tag="ended"):
    """The run has ended, unless a person resumes it."""

    state: values.EndState
    reason: values.StateReason | None = None


class Repaired(_Event, frozen=True, kw_only=True, tag="repaired"):
    """A person goes on without events that are missing or damaged: all faults before this one."""

    by: values.ProcessIdentity
    faults: tuple[str, ...]


class TraceAsked(_Event, frozen=True, kw_only=True, tag="trace asked"):
    """The attempt that is running is to trace these steps, as request number `request` asks."""

    attempt: int
    first_step: int
    end_step: int
    request: int


_Seen = SlowdownSeen | HostsChecked | TraceAsked
_AttemptChange = AttemptStarted | CheckpointSaved | _Seen | Stopping | AttemptEnded
AnyEvent = Submitted | Claimed | Pending | _AttemptChange | Ended | Repaired


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="cancel"):
    """A request to stop the run, after a last checkpoint or at once. `source` names its origin."""

    at_s: float
    by: values.ProcessIdentity
    at_once: bool = False
    source: str = "cancel was requested"

    @property
    def reason(self) -> values.StateReason:
        return values.StateReason(code="cancel_requested", detail=self.source)


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="trace"):
    """A request to trace the next `steps` steps."""

    at_s: float
    by: values.ProcessIdentity
    steps: int


AnyRequest = CancelRequest | TraceRequest


def decode_request(text: bytes) -> AnyRequest:
    with codec.decoding():
        request: AnyRequest = msgspec.json.decode(text, type=AnyRequest)
        return request


def decode_event(text: bytes) -> AnyEvent:
    with codec.decoding():
        event: AnyEvent = msgspec.json.decode(text, type=AnyEvent)
        return event


def encode(record: AnyEvent | AnyRequest) -> bytes:
    return msgspec.json.encode(record) + b"\n"


# --- a folder of records: files numbered from 1, each written once


@dataclass(frozen=True)
class Fault(FileFault):
    """What is wrong with the record of a number, or with the file that should have it."""

    number: int


class _EventLog(msgspec.Struct, frozen=True):
    """The records of a folder up to the number `last`, or 0, and what is wrong there."""

    contents: dict[int, bytes]
    last: int
    faults: tuple[Fault, ...]
    unexpected: tuple[str, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self.unexpected, *map(str, self.faults))


def append(folder: Path, number: int, content: bytes) -> None:
    files.write_new(folder / file_name(number), content)


def file_name(number: int) -> str:
    return f"{number:06d}.json"


def exists(folder: Path, number: int) -> bool:
    """Return whether there is that record. Opening it asks the server, unlike a listing."""
    path = folder / file_name(number)
    try:
        with files.reading(path), boundary.reading_file(path):
            return True
    except FileNotFoundError:
        return False
    except JournalUnreadable:
        return True  # something has the name: reading it says what is wrong


def read(folder: Path) -> _EventLog:
    names = files.names(folder)
    numbers = {name: int(match[1]) for name in names if (match := _NAME.fullmatch(name))}
    last = max(numbers.values(), default=0)
    # A shared file system may list a folder as it was a minute ago: what comes after the last
    # record that is listed is asked for by its name.
    while exists(folder, last + 1):
        last += 1
        numbers[file_name(last)] = last
    contents: dict[int, bytes] = {}
    faults: list[Fault] = []
    for before, number in pairwise([0, *sorted(numbers.values())]):
        if number > before + 1:
            faults.append(fault(folder, before + 1, "is missing"))  # the first number of each gap
    if numbers:
        with files.looking(folder), boundary.folder_of(folder) as opened:
            for name, number in numbers.items():
                try:
                    contents[number] = boundary.read_in(opened, name, boundary.MAX_RECORD_BYTES)
                except OSError as error:
                    why = f"cannot be read: {error.strerror or error}"
                    faults.append(Fault(f"{folder.name}/{name}", why, number))
    others = [name for name in names if name not in numbers and not name.endswith(files.PARTIAL)]
    # Others choose the names: a terminal gets nothing that it would obey.
    shown = [name if name.isprintable() else ascii(name) for name in others]
    unexpected = [f"{folder.name}/{name}: is not a file of the journal" for name in shown]
    ordered = tuple(sorted(faults, key=lambda found: found.number))
    return _EventLog(dict(sorted(contents.items())), last, ordered, tuple(unexpected))


def read_one(folder: Path, number: int) -> dict[int, bytes]:
    try:
        return {number: files.read(folder / file_name(number), boundary.MAX_RECORD_BYTES)}
    except FileNotFoundError:
        return {}


def decoded(
    folder: Path, contents: Mapping[int, bytes], decode: Callable[[bytes], T]
) -> dict[int, T | Fault]:
    """Return the value of each record, or what is wrong with it."""
    records: dict[int, T | Fault] = {}
    for number, text in contents.items():
        try:
            records[number] = decode(text)
        except msgspec.DecodeError as error:
            records[number] = fault(folder, number, str(error))
    return records


def fault(folder: Path, number: int, what: str) -> Fault:
    return Fault(f"{folder.name}/{file_name(number)}", what, number)


# --- the chain of a run's events: each has the digest of the one before, and a note has the last


class Newest(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    sha256: str  # of its file


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def append_event(paths: RunPaths, number: int, event: AnyEvent, previous: str) -> str:
    """Write an event unless its number is taken (`FileExistsError`); return its digest."""
    content = encode(msgspec.structs.replace(event, previous=previous))
    append(paths.events, number, content)
    newest = Newest(number=number, sha256=digest(content))
    try:
        files.replace(paths.newest_event, msgspec.json.encode(newest), durably=True)
    except JournalUnwritable:
        if number == 1:
            raise  # a run is created whole, or not at all
        # Any other event is there, and the next one writes the note again.
    return newest.sha256


def read_newest(paths: RunPaths) -> Newest | FileFault:
    """Return the note, or what is wrong with it. Read it before the events: it may be behind."""
    where = paths.newest_event.name
    try:
        return codec.from_json(files.read(paths.newest_event, boundary.MAX_RECORD_BYTES), Newest)
    except FileNotFoundError:
        return FileFault(where, "is missing, and maybe events with it")
    except (JournalUnreadable, msgspec.DecodeError) as error:
        return FileFault(where, f"cannot be read, and events may be missing: {error}")


def faults(
    folder: Path, log: _EventLog, events: Mapping[int, AnyEvent | Fault], newest: Newest | FileFault
) -> Iterator[Fault]:
    """Yield what does not fit together, by the number of the event that is in doubt."""
    # An event that cannot be decoded is in doubt already.
    valid = {number: event for number, event in events.items() if not isinstance(event, Fault)}
    digests = {number: digest(log.contents[number]) for number in valid}
    for number, event in valid.items():
        if event.previous != digests.get(number - 1, event.previous):
            yield fault(folder, number - 1, f"is not the event that event {number} came after")
    if isinstance(newest, FileFault):
        yield Fault(newest.file, newest.what, log.last + 1)
    elif newest.number > log.last:
        yield fault(folder, log.last + 1, "is missing")
    elif newest.number in digests and newest.sha256 != digests[newest.number]:
        yield fault(folder, newest.number, "was changed after it was written")
