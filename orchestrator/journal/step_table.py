"""The steps of an attempt as columns of numbers: a million of them fit in 80 MB."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from orchestrator.journal import line_files, step_log
from orchestrator.journal.run_paths import RunPaths
from orchestrator.types.run import Attempt, Startup, TimedStep

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Step(msgspec.Struct, gc=False):
    """The keys of a step that tables have, in their order: reading all would take twice as long."""

    index: Count
    step_s: float
    data_s: float
    checkpoint_s: float
    tokens: Count
    loss: float
    model_flops_per_s_per_chip: float | None = None
    mfu: float | None = None
    peak_hbm_bytes: Count | None = None
    startup: Startup | None = None


class _Line(msgspec.Struct, gc=False):
    at_s: float
    step: _Step


_LINES = msgspec.json.Decoder(list[_Line])


@dataclass(frozen=True, eq=False)
class StepTable:
    """Steps, a row for each, in the order in which they were done. What is unknown is NaN.

    `startups` has that of the first step of an attempt, by its row.
    """

    at_s: Floats
    index: Integers
    step_s: Floats
    data_s: Floats
    checkpoint_s: Floats
    tokens: Integers
    loss: Floats
    model_flops_per_s_per_chip: Floats
    mfu: Floats
    peak_hbm_bytes: Floats
    startups: Mapping[int, Startup]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def warm(self) -> Mask:
        """The rows of all steps but the first of each attempt."""
        mask = np.ones(len(self), bool)
        mask[list(self.startups)] = False
        return mask

    def rows(self, chosen: Mask | Integers) -> "StepTable":
        """The table of some rows, given by a mask or by their numbers."""
        if chosen.dtype == bool and chosen.all():
            return self
        numbers = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        columns = {name: getattr(self, name)[numbers] for name in COLUMNS}
        startups = {
            int(place): startup
            for row, startup in self.startups.items()
            for place in np.flatnonzero(numbers == row)
        }
        return replace(self, **columns, startups=startups)


COLUMNS = tuple(field.name for field in fields(StepTable) if field.name != "startups")
OF_STEPS = COLUMNS[1:]  # in the order of a `_Step`
INTEGERS = ("index", "tokens")


def table_of(steps: Sequence[TimedStep]) -> StepTable:
    """The table of these steps."""
    table = _Rows(len(steps))
    table.add([_line_of(one) for one in steps])
    return table.done()


def joined(tables: Iterable[StepTable]) -> StepTable:
    """The rows of several tables, one after another."""
    parts = list(tables)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return table_of(())
    startups: dict[int, Startup] = {}
    before = 0
    for part in parts:
        startups |= {before + row: startup for row, startup in part.startups.items()}
        before += len(part)
    columns = {name: np.concatenate([getattr(one, name) for one in parts]) for name in COLUMNS}
    return StepTable(**columns, startups=startups)


def read_table(run: Path, attempt: Attempt) -> tuple[StepTable, list[str]]:
    """The steps of an attempt, and what is wrong with its lines.

    Where all lines together are those that the attempt's end counted, none is checked by itself.
    """
    path = RunPaths(run).steps(attempt.number)
    written = step_log.written_steps(run, attempt.number)
    is_whole = attempt.written == written or step_log.begins_whole(run, attempt)
    problems: list[str] = []
    if attempt.written and not is_whole:
        problems.append(f"{path.parent.name}/{path.name}: is not what its attempt wrote")
    table = _Rows(written.lines)
    with suppress(FileNotFoundError):
        for text in line_files.whole_lines(path, size=written.bytes):
            steps, faults = _decode(path, text, is_whole=attempt.written == written)
            problems += faults[: max(0, step_log.MAX_PROBLEMS - len(problems))]
            table.add(steps)
    return table.done(), problems


def _decode(path: Path, text: bytes, *, is_whole: bool) -> tuple[list[_Line], list[str]]:
    """The steps in some lines, and what is wrong with the others."""
    if is_whole or all(map(step_log.has_checksum, text[:-1].split(b"\n"))):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return _LINES.decode(b"[" + text[:-1].replace(b"\n", b",") + b"]"), []
    steps, faults = step_log.decode(path, text[:-1].split(b"\n"))  # all but the damaged ones
    return [_line_of(one) for one in steps], faults


def _line_of(timed: TimedStep) -> _Line:
    values = {name: getattr(timed.step, name) for name in OF_STEPS}
    return _Line(timed.at_s, _Step(**values, startup=timed.step.startup))


class _Rows:
    """A table that is filled: its columns have room for all rows from the start."""

    def __init__(self, rows: int) -> None:
        self._columns: dict[str, NDArray[Any]] = {
            name: np.empty(rows, np.int64 if name in INTEGERS else np.float64) for name in COLUMNS
        }
        self._startups: dict[int, Startup] = {}
        self._rows = 0

    def add(self, lines: Sequence[_Line]) -> None:
        """Add steps after the others."""
        rows = slice(self._rows, self._rows + len(lines))
        self._columns["at_s"][rows] = [line.at_s for line in lines]
        steps = [line.step for line in lines]
        for name in OF_STEPS:
            self._columns[name][rows] = list(map(attrgetter(name), steps))
        opening = enumerate(map(attrgetter("startup"), steps), self._rows)
        self._startups |= {row: startup for row, startup in opening if startup}
        self._rows = rows.stop

    def done(self) -> StepTable:
        """The table of the rows that were added."""
        columns = {name: column[: self._rows] for name, column in self._columns.items()}
        return StepTable(**columns, startups=self._startups)
