"""The events of a run and the requests to its driver, as they are written down. Plain values."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.errors import JournalUnreadable, JournalUnwritable
from orchestrator.journal import boundary, files
from orchestrator.journal.files import FileFault
from orchestrator.journal.run_paths import RunPaths
from orchestrator.values import codec
from orchestrator.values.run import (
    AttemptReason,
    EndState,
    ProcessIdentity,
    SavedCheckpoint,
    StateReason,
    Submission,
    WrittenSteps,
)

SCHEMA = 4


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A change of a run's state. `previous` is the sha256 of the file of the event before."""

    at_s: float
    previous: str = ""


class Submitted(Event, frozen=True, kw_only=True, tag="submitted"):
    """The first event of every journal."""

    submission: Submission
    schema: int = SCHEMA


class Claimed(Event, frozen=True, kw_only=True, tag="claimed"):
    """A driver has taken the run, and with it the right to write.

    It sends a heartbeat every `heartbeat_s`. `resumes` means that a person wants the run to go on:
    its retry budgets start again, and requests up to `settled_requests` no longer count. `adopted`
    is a checkpoint that the attempt before saved, and that its driver did not come to record.
    """

    driver: ProcessIdentity
    heartbeat_s: float
    resumes: bool = False
    settled_requests: int = 0
    adopted: SavedCheckpoint | None = None


class Pending(Event, frozen=True, kw_only=True, tag="pending"):
    """The run waits for something."""

    reason: StateReason


class AttemptStarted(Event, frozen=True, kw_only=True, tag="attempt started"):
    """An attempt has its slices, and its processes are starting."""

    attempt: int
    plan_digest: str
    pods: int
    slices: tuple[str, ...] = ()
    plan_sha256: str = ""  # of its file


class CheckpointSaved(Event, frozen=True, kw_only=True, tag="checkpoint saved"):
    """A checkpoint of the attempt that is running is whole, and counts from now on."""

    checkpoint: SavedCheckpoint


class Stopping(Event, frozen=True, kw_only=True, tag="stopping"):
    """The attempt was asked to stop."""

    reason: StateReason


class AttemptEnded(Event, frozen=True, kw_only=True, tag="attempt ended"):
    """No process of the attempt is left. `steps` is what it wrote of its steps."""

    attempt: int
    reason: AttemptReason
    error: str | None = None
    first_dead_rank: int | None = None
    steps: WrittenSteps | None = None


class Ended(Event, frozen=True, kw_only=True, tag="ended"):
    """The run has ended, unless a person resumes it."""

    state: EndState
    reason: StateReason | None = None


class Repaired(Event, frozen=True, kw_only=True, tag="repaired"):
    """A person goes on without events that are missing or damaged: all faults before this one."""

    by: ProcessIdentity
    faults: tuple[str, ...]


AnyEvent = (
    Submitted
    | Claimed
    | Pending
    | AttemptStarted
    | CheckpointSaved
    | Stopping
    | AttemptEnded
    | Ended
    | Repaired
)


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="cancel"):
    """A request to stop the run, after a last checkpoint or at once. `source` names its origin."""

    at_s: float
    by: ProcessIdentity
    at_once: bool = False
    source: str = "cancel was requested"

    @property
    def reason(self) -> StateReason:
        return StateReason(code="cancel_requested", detail=self.source)


def decode_event(text: bytes) -> AnyEvent:
    """The event in a file; `msgspec.DecodeError` when it holds none."""
    with codec.decoding():
        event: AnyEvent = msgspec.json.decode(text, type=AnyEvent)
        return event


def decode_request(text: bytes) -> CancelRequest:
    """The request in a file; `msgspec.DecodeError` when it holds none."""
    return codec.from_json(text, CancelRequest)


def encode(record: AnyEvent | CancelRequest) -> bytes:
    """The one line of a record's file."""
    return msgspec.json.encode(record) + b"\n"


# A folder of files numbered from 1, each written once.


NAME = re.compile(r"(\d{6,})\.json")


@dataclass(frozen=True)
class Fault(FileFault):
    """What is wrong with the record of a number, or with the file that should have it."""

    number: int


@dataclass(frozen=True)
class EventLog:
    """The records of a folder by number; `last` is the highest number, 0 when there is none.

    `faults` are records that are missing or cannot be read, `problems` these and unexpected files.
    """

    contents: dict[int, bytes]
    last: int
    faults: tuple[Fault, ...]
    unexpected: tuple[str, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self.unexpected, *map(str, self.faults))


def append(folder: Path, number: int, content: bytes) -> None:
    """Write the record of that number; `FileExistsError` when another process has."""
    files.write_new(folder / file_name(number), content)


def file_name(number: int) -> str:
    return f"{number:06d}.json"


def record_name(folder: Path, number: int) -> str:
    """The file of a record, by its name in the run's folder."""
    return f"{folder.name}/{file_name(number)}"


def exists(folder: Path, number: int) -> bool:
    """Whether there is a record of that number. Opening it asks the server, unlike a listing."""
    path = folder / file_name(number)
    try:
        with files.reading(path), boundary.reading_file(path):
            return True
    except FileNotFoundError:
        return False
    except JournalUnreadable:
        return True  # something has the name: reading it says what is wrong


def printable(name: str) -> str:
    """A name of somebody else's choice, with what no terminal should get written out."""
    return name if name.isprintable() else ascii(name)


def read(folder: Path) -> EventLog:
    """All records of a folder, in order.

    A shared file system may list a folder as it was a minute ago: what comes after the last record
    that is listed is asked for by its name.
    """
    names = files.names(folder)
    numbers = {name: int(match[1]) for name in names if (match := NAME.fullmatch(name))}
    numbers |= _unlisted(folder, max(numbers.values(), default=0))
    contents: dict[int, bytes] = {}
    faults = _gaps(folder, sorted(numbers.values()))
    if numbers:
        for name, content in files.read_all(folder, numbers, boundary.MAX_RECORD_BYTES):
            if isinstance(content, JournalUnreadable):
                faults.append(Fault(f"{folder.name}/{name}", content.why, numbers[name]))
            else:
                contents[numbers[name]] = content
    return EventLog(
        contents=dict(sorted(contents.items())),
        last=max(numbers.values(), default=0),
        faults=tuple(sorted(faults, key=lambda fault: fault.number)),
        unexpected=tuple(
            f"{folder.name}/{printable(name)}: is not a file of the journal"
            for name in names
            if name not in numbers and not files.is_partial(name)
        ),
    )


def _unlisted(folder: Path, last: int) -> dict[str, int]:
    """The records that are there and not listed."""
    found: dict[str, int] = {}
    while exists(folder, last + 1):
        last += 1
        found[file_name(last)] = last
    return found


def read_one(folder: Path, number: int) -> dict[int, bytes]:
    """The record of one number; empty when there is none."""
    try:
        return {number: files.read(folder / file_name(number), boundary.MAX_RECORD_BYTES)}
    except FileNotFoundError:
        return {}


def missing(folder: Path, number: int) -> Fault:
    return Fault(record_name(folder, number), "is missing", number)


def _gaps(folder: Path, numbers: list[int]) -> list[Fault]:
    """A fault for the first number of each gap."""
    pairs = zip([0, *numbers], numbers, strict=False)
    return [missing(folder, before + 1) for before, number in pairs if number > before + 1]


# The chain of a run's events: each has the digest of the one before, and a note has the last.


class Newest(msgspec.Struct, frozen=True, kw_only=True):
    """The newest event: its number, and the sha256 of its file."""

    number: int
    sha256: str


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def linked(event: AnyEvent, previous: str) -> bytes:
    """The file of an event that comes after the one with that digest."""
    return encode(msgspec.structs.replace(event, previous=previous))


def begin(paths: RunPaths, content: bytes) -> None:
    """Write the first event."""
    append(paths.events, 1, content)
    note_newest(paths, 1, digest(content))


def append_event(paths: RunPaths, number: int, content: bytes) -> None:
    """Write an event; `FileExistsError` when another process has written that number."""
    append(paths.events, number, content)
    try:
        note_newest(paths, number, digest(content))
    except JournalUnwritable:
        return  # the event is there, and the next one writes the note again


def note_newest(paths: RunPaths, number: int, sha256: str) -> None:
    """Note which event is the newest."""
    note = Newest(number=number, sha256=sha256)
    files.replace_durably(paths.newest_event, msgspec.json.encode(note))


def read_newest(paths: RunPaths) -> Newest | FileFault:
    """The note, or what is wrong with it. Read it before the events: it may be behind them."""
    where = paths.newest_event.name
    try:
        content = files.read(paths.newest_event, boundary.MAX_RECORD_BYTES)
        return codec.from_json(content, Newest)
    except FileNotFoundError:
        return FileFault(where, "is missing, and maybe events with it")
    except (JournalUnreadable, msgspec.DecodeError) as error:
        return FileFault(where, f"cannot be read, and events may be missing: {error}")


def faults(
    folder: Path, log: EventLog, events: Mapping[int, AnyEvent | Fault], newest: Newest | FileFault
) -> Iterator[Fault]:
    """What does not fit together, by the number of the event that is in doubt."""
    # An event that cannot be decoded is in doubt already.
    digests = {
        number: digest(content)
        for number, content in log.contents.items()
        if not isinstance(events[number], Fault)
    }
    for number, event in events.items():
        before = digests.get(number - 1)
        if before and not isinstance(event, Fault) and event.previous != before:
            what = f"is not the event that event {number} came after"
            yield Fault(record_name(folder, number - 1), what, number - 1)
    if isinstance(newest, FileFault):
        yield Fault(newest.file, newest.what, log.last + 1)
    elif newest.number > log.last:
        yield missing(folder, log.last + 1)
    elif newest.number in digests and newest.sha256 != digests[newest.number]:
        name = record_name(folder, newest.number)
        yield Fault(name, "was changed after it was written", newest.number)


def end_of(log: EventLog, newest: Newest | FileFault) -> str:
    """The digest that the next event has of the last one; empty where that cannot be read."""
    if isinstance(newest, Newest) and newest.number == log.last:
        return newest.sha256
    return digest(log.contents[log.last]) if log.last in log.contents else ""
