"""A folder of files numbered from 1, each written once.

The number is the fence: of all processes that write the next number, one succeeds and the others
get `FileExistsError`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import JournalUnreadable
from orchestrator.journal import boundary, files
from orchestrator.journal.file_fault import FileFault

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
