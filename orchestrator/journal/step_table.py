"""The steps of an attempt as columns of numbers: a million of them fit in 80 MB."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from orchestrator.journal import line_files, step_log
from orchestrator.journal.file_fault import FileFault
from orchestrator.journal.run_paths import RunPaths
from orchestrator.types import codec
from orchestrator.types.run import (
    Attempt,
    Count,
    Evaluation,
    Seconds,
    Startup,
    StepSeconds,
    TimedStep,
    WrittenSteps,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
T = TypeVar("T")
Mask = NDArray[np.bool_]


class _Step(msgspec.Struct, gc=False):
    """The keys of a step that tables have, in their order: reading all would take twice as long."""

    index: Count
    step_s: StepSeconds
    data_s: Seconds
    checkpoint_s: Seconds
    tokens: Count
    loss: float
    model_flops_per_s_per_chip: float | None = None
    mfu: float | None = None
    peak_hbm_bytes: Count | None = None
    startup: Startup | None = None
    evaluation: Evaluation | None = None


class _Line(msgspec.Struct, gc=False):
    at_s: float
    step: _Step


_LINES = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, eq=False)
class StepTable:
    """Steps, a row for each, in the order in which they were done. What is unknown is NaN.

    `startups` has that of the first step of an attempt, by its row, and `evaluations` those after a
    step, by its row.
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
    evaluations: Mapping[int, Evaluation]

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
        numbers: Integers = np.asarray(np.flatnonzero(chosen) if chosen.dtype == bool else chosen)
        columns = {name: getattr(self, name)[numbers] for name in COLUMNS}
        return replace(
            self,
            **columns,
            startups=_of_rows(self.startups, numbers),
            evaluations=_of_rows(self.evaluations, numbers),
        )


def _of_rows(by_row: Mapping[int, T], numbers: Integers) -> dict[int, T]:
    """What some rows of a table have, by their places among these rows."""
    if not by_row or not len(numbers):
        return {}
    places = np.full(max(int(numbers.max()), *by_row) + 1, -1)
    places[numbers] = np.arange(len(numbers))
    return {int(places[row]): one for row, one in by_row.items() if places[row] >= 0}


BY_ROW = ("startups", "evaluations")
COLUMNS = tuple(field.name for field in fields(StepTable) if field.name not in BY_ROW)
OF_STEPS = COLUMNS[1:]  # in the order of a `_Step`
INTEGERS = ("index", "tokens")


def table_of(steps: Sequence[TimedStep]) -> StepTable:
    """The table of these steps."""
    rows = _Rows()
    rows.add([_line_of(one) for one in steps])
    return rows.done()


def joined(tables: Iterable[StepTable]) -> StepTable:
    """The rows of several tables, one after another."""
    parts = list(tables)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return table_of(())
    startups: dict[int, Startup] = {}
    evaluations: dict[int, Evaluation] = {}
    before = 0
    for part in parts:
        startups |= {before + row: startup for row, startup in part.startups.items()}
        evaluations |= {before + row: one for row, one in part.evaluations.items()}
        before += len(part)
    columns = {name: np.concatenate([getattr(one, name) for one in parts]) for name in COLUMNS}
    return StepTable(**columns, startups=startups, evaluations=evaluations)


def read_table(run: Path, attempt: Attempt) -> tuple[StepTable, list[FileFault]]:
    """The steps of an attempt, and what is wrong with its lines.

    Where all lines together are those that the attempt's end counted, none is checked by itself.
    """
    path = RunPaths(run).steps(attempt.number)
    rows, problems = _Rows(), list[FileFault]()
    written, end = attempt.written, 0
    if written:
        if _add_trusted(rows, path, written):
            end = written.bytes
        else:
            rows = _Rows()
            problems.append(step_log.fault(path, "is not what its attempt wrote"))
    with suppress(FileNotFoundError):
        # A process that was still alive somewhere may have written more.
        for text in line_files.whole_lines(path, end):
            steps, faults = _checked(path, text)
            problems += faults[: max(0, step_log.MAX_PROBLEMS - len(problems))]
            rows.add(steps)
    return rows.done(), problems


def _add_trusted(rows: "_Rows", path: Path, written: WrittenSteps) -> bool:
    """Add the steps that an attempt wrote; False where the file does not begin with them."""
    summed = hashlib.sha256()
    try:
        for text in line_files.whole_lines(path, size=written.bytes):
            summed.update(text)
            rows.add(_decoded(text))
    except (FileNotFoundError, msgspec.DecodeError):
        return written.lines == 0 and not path.exists()
    return summed.hexdigest() == written.sha256


def _checked(path: Path, text: bytes) -> tuple[list[_Line], list[FileFault]]:
    """The steps in some lines, and what is wrong with the others."""
    lines = text[:-1].split(b"\n")
    if all(map(step_log.has_checksum, lines)):
        with suppress(msgspec.DecodeError):
            return _decoded(text), []
    steps, faults = step_log.decode(path, lines)  # all but the damaged ones
    return [_line_of(one) for one in steps], faults


def _decoded(lines: bytes) -> list[_Line]:
    with codec.decoding():
        return _LINES.decode_lines(lines)


def _line_of(timed: TimedStep) -> _Line:
    values = {name: getattr(timed.step, name) for name in OF_STEPS}
    step = timed.step
    return _Line(timed.at_s, _Step(**values, startup=step.startup, evaluation=step.evaluation))


class _Rows:
    """A table that grows by some rows at a time."""

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in COLUMNS}
        self._startups: dict[int, Startup] = {}
        self._evaluations: dict[int, Evaluation] = {}
        self._rows = 0

    def add(self, lines: Sequence[_Line]) -> None:
        """Add steps after the others."""
        steps = [line.step for line in lines]
        self._parts["at_s"].append(np.array([line.at_s for line in lines], np.float64))
        for name in OF_STEPS:
            self._parts[name].append(_column(name, list(map(attrgetter(name), steps))))
        opening = enumerate(map(attrgetter("startup"), steps), self._rows)
        self._startups |= {row: startup for row, startup in opening if startup}
        evaluated = enumerate(map(attrgetter("evaluation"), steps), self._rows)
        self._evaluations |= {
            row: one
            for row, one in evaluated
            if one and one.steps_done == steps[row - self._rows].index + 1
        }
        self._rows += len(lines)

    def done(self) -> StepTable:
        """The table of the rows that were added. Each column takes the place of its parts."""
        columns = {}
        for name in COLUMNS:
            empty = _column(name, [])
            columns[name] = np.concatenate([empty, *self._parts.pop(name)])
        return StepTable(**columns, startups=self._startups, evaluations=self._evaluations)


def _column(name: str, values: list[Any]) -> NDArray[Any]:
    """Values of a column; those that are unknown are NaN."""
    if values and values.count(None) == len(values):
        return np.full(len(values), np.nan)
    return np.array(values, np.int64 if name in INTEGERS else np.float64)
