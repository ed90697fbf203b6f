"""The chain of a run's events: each has the digest of the one before, and a note has the last.

So a changed event shows in the next one or in the note, and the note shows that the last events
are missing. The note is written after its event: where a writer died in between, it is one behind.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from orchestrator.errors import JournalUnreadable, JournalUnwritable
from orchestrator.journal import boundary, event_log, files
from orchestrator.journal.event_log import EventLog, Fault
from orchestrator.journal.events import AnyEvent, encode
from orchestrator.journal.file_fault import FileFault
from orchestrator.journal.run_paths import RunPaths
from orchestrator.types import codec


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
    event_log.append(paths.events, 1, content)
    note_newest(paths, 1, digest(content))


def append(paths: RunPaths, number: int, content: bytes) -> None:
    """Write an event; `FileExistsError` when another process has written that number."""
    event_log.append(paths.events, number, content)
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
            yield Fault(event_log.record_name(folder, number - 1), what, number - 1)
    if isinstance(newest, FileFault):
        yield Fault(newest.file, newest.what, log.last + 1)
    elif newest.number > log.last:
        yield event_log.missing(folder, log.last + 1)
    elif newest.number in digests and newest.sha256 != digests[newest.number]:
        name = event_log.record_name(folder, newest.number)
        yield Fault(name, "was changed after it was written", newest.number)


def end_of(log: EventLog, newest: Newest | FileFault) -> str:
    """The digest that the next event has of the last one; empty where that cannot be read."""
    if isinstance(newest, Newest) and newest.number == log.last:
        return newest.sha256
    return digest(log.contents[log.last]) if log.last in log.contents else ""
