"""Journal room: files numbered from 1 in a folder, each made once. Knows `files` alone.

The number is the fence: of all who would write the next one, one does, and the others learn it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.journal import files

NAME = re.compile(r"(\d{6,})\.json")


@dataclass(frozen=True)
class EventLog:
    """What a folder of numbered files holds; `last` is the highest number, 0 when there is none.

    `problems` are what it should not hold, cannot show, or lacks.
    """

    contents: dict[int, bytes]
    last: int
    problems: tuple[str, ...]


def append(folder: Path, number: int, content: bytes) -> None:
    """Write the file of that number; `FileExistsError` when another has."""
    files.write_new(folder / name_of(number), content)


def name_of(number: int) -> str:
    return f"{number:06d}.json"


def exists(folder: Path, number: int) -> bool:
    return (folder / name_of(number)).exists()


def read(folder: Path) -> EventLog:
    """Every numbered file, in order."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    numbers = sorted(int(match[1]) for name in names if (match := NAME.fullmatch(name)))
    contents: dict[int, bytes] = {}
    problems = [
        f"{folder.name}/{name}: is none of the journal's"
        for name in names
        if not NAME.fullmatch(name) and not name.endswith(files.PARTIAL)
    ]
    for before, number in zip([0, *numbers], numbers, strict=False):
        if number > before + 1:
            problems.append(f"{folder.name}/{name_of(before + 1)}: is missing")
        try:
            contents[number] = (folder / name_of(number)).read_bytes()
        except OSError as error:
            problems.append(f"{folder.name}/{name_of(number)}: cannot be read: {error.strerror}")
    return EventLog(contents=contents, last=max(numbers, default=0), problems=tuple(problems))
