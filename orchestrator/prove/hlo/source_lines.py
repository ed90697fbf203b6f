"""Find the trainer's line that an instruction comes from."""

import re
from dataclasses import dataclass, field

FRAME = re.compile(r"(\d+) \{file_location_id=(\d+) parent_frame_id=(\d+)\}")
LOCATION = re.compile(r"(\d+) \{file_name_id=(\d+) function_name_id=(\d+) line=(\d+)")
NAME = re.compile(r'(\d+) "(.*)"')
NO_TRAINERS = ("/jax/", "/lib/python", "/site-packages/", "/orchestrator/")
CALLER = "contract.py"  # it lowers every trainer's step
LIBRARIES = {"jax", "jaxlib", "flax", "orchestrator"}
TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


@dataclass(frozen=True)
class SourceLine:
    """A line of a file, in a function."""

    file: str
    function: str
    line: int


@dataclass(frozen=True)
class SourceTables:
    """The tables at the head of a module."""

    files: dict[int, str] = field(default_factory=dict)
    functions: dict[int, str] = field(default_factory=dict)
    locations: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    frames: dict[int, tuple[int, int]] = field(default_factory=dict)

    def stack(self, frame: int | None) -> list[SourceLine]:
        """The calls that led to an instruction, the innermost first.

        A frame names its parent by the parent's number plus one; zero is no parent.
        """
        places = []
        while frame in self.frames:
            location, parent = self.frames[frame]
            file, function, line = self.locations[location]
            places.append(SourceLine(self.files[file], self.functions[function], line))
            frame = parent - 1 if parent > 1 else None
        return places

    def program_lines(self, frame: int | None) -> tuple[str, ...]:
        """The lines that led to an instruction, the outermost first: those of a trainer, and where
        there is none, those of packages other than the libraries that trace programs.
        """
        stack = once_each(self.stack(frame)[::-1])
        of_trainer = tuple(filter(None, map(trainer_line, stack)))
        return of_trainer or tuple(filter(None, map(package_line, stack)))

    def trainer_line(self, frame: int | None) -> str:
        """The innermost line of the trainer that led to an instruction; empty if there is none."""
        return next(filter(None, map(trainer_line, self.stack(frame))), "")


def once_each(stack: list[SourceLine]) -> list[SourceLine]:
    """The calls, the outermost first, without those that a loop's body repeats."""
    calls: list[SourceLine] = []
    for place in stack:
        if place in calls:
            del calls[calls.index(place) :]
        calls.append(place)
    return calls


def trainer_line(place: SourceLine) -> str:
    """`trainers/llama/collectives.py:62 (reduced)`; empty for a line of a library or of orch."""
    path = _trainer_path(place.file)
    function = place.function.replace("<locals>.", "")
    return f"{path}:{place.line} ({function})" if path else ""


def package_line(place: SourceLine) -> str:
    """`maxtext/layers/decoders.py:62 (apply)` of an installed package; empty for a library."""
    _, folder, inside = place.file.rpartition("/site-packages/")
    is_library = not folder or inside.split("/")[0] in LIBRARIES
    return "" if is_library else f"{inside}:{place.line} ({place.function})"


def _trainer_path(file: str) -> str:
    """Its path below `trainers/`; for a trainer from elsewhere, its last folder and its name."""
    _, folder, inside = file.rpartition("trainers/")
    if folder:
        return "" if inside == CALLER else f"{folder}{inside}"
    is_trainer = file.startswith("/") and not any(part in file for part in NO_TRAINERS)
    return "/".join(file.rsplit("/", 2)[1:]) if is_trainer else ""


def source_tables(lines: list[str]) -> SourceTables:
    """The tables, which come before the first computation."""
    rows: dict[str, list[str]] = {table: [] for table in TABLES}
    table = None
    for line in lines[1:]:
        if line in rows:
            table = line
        elif line.endswith("{"):
            break
        elif table and line:
            rows[table].append(line)
    return SourceTables(
        files=_names(rows["FileNames"]),
        functions=_names(rows["FunctionNames"]),
        locations={
            int(i): (int(a), int(b), int(c))
            for i, a, b, c in _groups(LOCATION, rows["FileLocations"])
        },
        frames={int(i): (int(a), int(b)) for i, a, b in _groups(FRAME, rows["StackFrames"])},
    )


def _names(lines: list[str]) -> dict[int, str]:
    return {int(match[1]): match[2] for line in lines if (match := NAME.fullmatch(line))}


def _groups(pattern: re.Pattern[str], lines: list[str]) -> list[tuple[str, ...]]:
    return [match.groups() for line in lines if (match := pattern.match(line))]
