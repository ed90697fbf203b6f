"""A folder of files numbered from 1, each written once.

The number is the fence: of all processes that write the next number, one succeeds and the others
get `FileExistsError`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import JournalUnreadable
from orchestrator.journal import boundary, files

NAME = re.compile(r"(\d{6,})\.json")


@dataclass(frozen=True)
class EventLog:
    """The records of a folder by number; `last` is the highest number, 0 when there is none.

    `problems` lists missing, unreadable and unexpected files.
    """

    contents: dict[int, bytes]
    last: int
    problems: tuple[str, ...]


def append(folder: Path, number: int, content: bytes) -> None:
    """Write the record of that number; `FileExistsError` when another process has."""
    files.write_new(folder / file_name(number), content)


def file_name(number: int) -> str:
    return f"{number:06d}.json"


def exists(folder: Path, number: int) -> bool:
    return (folder / file_name(number)).exists()


def printable(name: str) -> str:
    """A name of somebody else's choice, with what no terminal should get written out."""
    return name if name.isprintable() else ascii(name)


def read(folder: Path) -> EventLog:
    """All records of a folder, in order."""
    names = [path.name for path in files.entries(folder)]
    numbers = sorted(int(match[1]) for name in names if (match := NAME.fullmatch(name)))
    contents: dict[int, bytes] = {}
    problems = [
        f"{folder.name}/{printable(name)}: is not a file of the journal"
        for name in names
        if not NAME.fullmatch(name) and not name.endswith(files.PARTIAL)
    ]
    for previous, number in zip([0, *numbers], numbers, strict=False):
        if number > previous + 1:
            problems.append(f"{folder.name}/{file_name(previous + 1)}: is missing")
        try:
            contents[number] = files.read(folder / file_name(number), boundary.MAX_RECORD_BYTES)
        except (FileNotFoundError, JournalUnreadable) as error:
            problems.append(str(error))
    return EventLog(contents=contents, last=max(numbers, default=0), problems=tuple(problems))
