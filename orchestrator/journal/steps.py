"""The steps of an attempt, one line each with a checksum: written by one process, read by any."""

import hashlib
import math
import time
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from orchestrator.errors import Superseded
from orchestrator.journal import files
from orchestrator.journal.files import FileFault, RunPaths
from orchestrator.journal.run_state import StepSummary
from orchestrator.storage import segments
from orchestrator.values import codec
from orchestrator.values import run as values
from orchestrator.values.slowdowns import HostTimes

_SYNC_EVERY_S = 5.0
_RECENT_STEPS = 50
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(values.TimedStep)
# A line is a JSON object that begins with the checksum of the rest of it.
_CRC = b'{"crc32":"%08x",'
_CRC_BYTES = len(_CRC % 0)
_MAX_PROBLEMS = 20  # of a reader: a file may have a million damaged lines


class StepLog:
    """Writes the steps of an attempt, on one process. They survive its end; a power failure loses
    at most those of the last few seconds, and other machines see them late.
    """

    def __init__(self, run: Path, attempt: int, *, clock: Callable[[], float] = time.time) -> None:
        path = RunPaths(run).steps(attempt)
        try:
            with files.writing(path):
                self._lines = segments.lines(path) or files.LineWriter(path)
        except FileExistsError as error:
            raise Superseded(f"{path}: another process writes these steps") from error
        self._clock, self._synced_s = clock, clock()

    def __enter__(self) -> Self:
        self._lines.__enter__()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._lines.__exit__(kind, error, trace)

    def append(self, step: values.Step) -> None:
        """Write a step. Trainer metrics that are not finite are left out: JSON cannot hold them."""
        now_s = self._clock()
        known = step.trainer_metrics
        if not all(map(math.isfinite, known.values())):
            finite = {name: x for name, x in known.items() if math.isfinite(x)}
            step = replace(step, trainer_metrics=finite)
        self._lines.append(_encode(values.TimedStep(at_s=now_s, step=step)))
        if now_s - self._synced_s >= _SYNC_EVERY_S:
            self.sync()

    def sync(self) -> None:
        self._lines.sync()
        self._synced_s = self._clock()


def _encode(timed: values.TimedStep) -> bytes:
    rest = _ENCODER.encode(timed)[1:]
    return _CRC % zlib.crc32(rest) + rest


class StepReader:
    def __init__(self, run: Path, attempt: int) -> None:
        self._path, self._offset = RunPaths(run).steps(attempt), 0
        self.problems: list[FileFault] = []

    def skip(self) -> None:
        with suppress(FileNotFoundError):
            _, self._offset = files.last_lines(self._path, 1)

    def read(self) -> list[values.TimedStep]:
        """Return the steps since the last call; an incomplete last line waits for the next."""
        return [step for steps in self.in_parts() for step in steps]

    def in_parts(self) -> Iterator[list[values.TimedStep]]:
        """Yield the steps since the last call in parts of a bounded size."""
        with suppress(FileNotFoundError):
            for part in files.whole_lines(self._path, self._offset):
                self._offset += len(part)
                steps, problems = _decode(self._path, part.split(b"\n")[:-1])
                self.problems += problems[: max(0, _MAX_PROBLEMS - len(self.problems))]
                yield steps


def summarize_steps(run: Path, attempt: values.Attempt) -> tuple[StepSummary, list[FileFault]]:
    """Return the first and last steps of an attempt, and what is wrong there, at a fixed cost."""
    path = RunPaths(run).steps(attempt.number)
    summary, end = StepSummary(), 0
    problems: list[FileFault] = []
    with suppress(FileNotFoundError):
        first, (last, end) = files.lines_from(path, 0), files.last_lines(path, _RECENT_STEPS)
        whole = [line[:-1] for line in islice(first, 1) if line.endswith(b"\n")]
        opening, problems = _decode(path, whole)
        steps, more_problems = _decode(path, last[-_RECENT_STEPS:])
        problems += more_problems
        by_index = {timed.step.index: timed for timed in steps}
        if len(by_index) < len(steps):
            problems.append(_fault(path, "a step is there twice"))
        startup = opening[0].step.startup if opening else None
        summary = StepSummary(startup=startup, last_steps=tuple(by_index.values()))
    # The steps that were written and are not in the file, if its ends show that.
    written, saved = attempt.written, attempt.saved_steps
    if written and end < written.bytes:
        left = f"{end:,} of its {written.bytes:,} bytes are left"
        problems.append(_fault(path, f"steps are missing: {left}"))
    elif saved and summary.steps_done < saved:
        done = f"it ends after step {summary.steps_done:,}, and step {saved:,} was saved"
        problems.append(_fault(path, f"steps are missing: {done}"))
    return summary, list(dict.fromkeys(problems))


def _fault(path: Path, what: str) -> FileFault:
    return FileFault(f"{path.parent.name}/{path.name}", what)


def written_steps(run: Path, attempt: int) -> values.WrittenSteps:
    """Return what an attempt has written of its steps so far: whole lines."""
    summed, lines, end = hashlib.sha256(), 0, 0
    with suppress(FileNotFoundError):
        for part in files.whole_lines(RunPaths(run).steps(attempt)):
            summed.update(part)
            lines, end = lines + part.count(b"\n"), end + len(part)
    return values.WrittenSteps(lines=lines, bytes=end, sha256=summed.hexdigest())


def _decode(path: Path, lines: list[bytes]) -> tuple[list[values.TimedStep], list[FileFault]]:
    """Return the steps in the lines of a file, and what is wrong with other lines."""
    steps: list[values.TimedStep] = []
    problems: list[FileFault] = []
    for line in lines:
        try:
            with codec.decoding():
                step = _DECODER.decode(line)
            if not _has_checksum(line):
                raise msgspec.DecodeError("its checksum is not that of what follows")
            steps.append(step)
        except msgspec.DecodeError as error:
            problems.append(_fault(path, f"a line is not a step: {error}"))
    return steps, problems


def _has_checksum(line: bytes) -> bool:
    return line[:_CRC_BYTES] == _CRC % zlib.crc32(line[_CRC_BYTES:])  # a view takes longer


# --- the steps of an attempt as columns of numbers: a million of them fit in 80 MB

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class _Step(msgspec.Struct, gc=False):
    """The keys of a step that tables have, in their order: reading all would take twice as long."""

    index: values.Count
    step_s: values.StepSeconds
    data_s: values.Seconds
    checkpoint_s: values.Seconds
    tokens: values.Count
    loss: float
    learning_rate: float
    model_flops_per_s_per_chip: float | None = None
    mfu: float | None = None
    peak_hbm_bytes: values.Count | None = None
    startup: values.Startup | None = None
    evaluation: values.Evaluation | None = None
    hosts: HostTimes | None = None


class _Line(msgspec.Struct, gc=False):
    at_s: float
    step: _Step


_LINES = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, eq=False)
class StepTable:
    """Steps, a row for each, in the order in which they were done. What is unknown is NaN."""

    at_s: Floats
    index: Integers
    step_s: Floats
    data_s: Floats
    checkpoint_s: Floats
    tokens: Integers
    loss: Floats
    learning_rate: Floats
    model_flops_per_s_per_chip: Floats
    mfu: Floats
    peak_hbm_bytes: Floats
    startups: Mapping[int, values.Startup]  # by the row of the first step
    evaluations: Mapping[int, values.Evaluation]  # by the row of the step before
    hosts: Mapping[int, HostTimes]  # by the row of the step that they were told with

    def __len__(self) -> int:
        return len(self.index)

    @property
    def warm(self) -> Mask:
        mask = np.ones(len(self), bool)
        mask[list(self.startups)] = False
        return mask

    def rows(self, chosen: Mask | Integers) -> "StepTable":
        """The table of some rows, given by a mask or by their numbers."""
        if chosen.dtype == bool and chosen.all():
            return self
        numbers: Integers = np.asarray(np.flatnonzero(chosen) if chosen.dtype == bool else chosen)
        # Rows in a row need no copy.
        run = len(numbers) and int(numbers[-1]) - int(numbers[0]) + 1 == len(numbers)
        ordered = run and bool((numbers[1:] > numbers[:-1]).all())
        where = slice(int(numbers[0]), int(numbers[-1]) + 1) if ordered else numbers
        columns: dict[str, Any] = {name: getattr(self, name)[where] for name in _COLUMNS}
        for name in _BY_ROW:  # what some of these rows have, by its place among them
            by_row = getattr(self, name)
            places = np.flatnonzero(np.isin(numbers, list(by_row)))
            columns[name] = {int(place): by_row[int(numbers[place])] for place in places}
        return StepTable(**columns)


_BY_ROW = ("startups", "evaluations", "hosts")
_COLUMNS = tuple(field.name for field in fields(StepTable) if field.name not in _BY_ROW)
_INTEGERS = ("index", "tokens")


def _joined(parts: list[StepTable]) -> StepTable:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return _Rows().table()
    columns: dict[str, Any] = {name: {} for name in _BY_ROW}
    before = 0
    for part in parts:
        for name in _BY_ROW:
            by_row = getattr(part, name)
            columns[name] |= {before + row: found for row, found in by_row.items()}
        before += len(part)
    for name in _COLUMNS:
        columns[name] = np.concatenate([getattr(part, name) for part in parts])
    return StepTable(**columns)


def read_table(run: Path, attempt: values.Attempt) -> tuple[StepTable, list[FileFault]]:
    """Return an attempt's steps and its faulty lines, sought only where the sum of all is off."""
    return TableReader(run, attempt.number).read(attempt)


class TableReader:
    """Reads the steps of an attempt; of one that goes on, a later call reads only what is new."""

    def __init__(self, run: Path, attempt: int) -> None:
        self._path = RunPaths(run).steps(attempt)
        self._written: values.WrittenSteps | None = None
        self._rows, self._end, self._problems = _Rows(), 0, list[FileFault]()

    def read(self, attempt: values.Attempt) -> tuple[StepTable, list[FileFault]]:
        if attempt.written != self._written:  # it has ended, and the sum of all is known
            self._written = attempt.written
            self._read_written()
        with suppress(FileNotFoundError):
            # A process that was still alive somewhere may have written more.
            for text in files.whole_lines(self._path, self._end):
                self._end += len(text)
                self._add(text)
        return self._rows.table(), list(self._problems)

    def _read_written(self) -> None:
        """Start again with the lines that the end of the attempt names, if they are unchanged."""
        written, summed, trusted = self._written, hashlib.sha256(), False
        self._rows, self._end, self._problems = _Rows(), 0, []
        if written is None:
            return
        try:
            for text in files.whole_lines(self._path, size=written.bytes):
                summed.update(text)
                self._rows.add(_decoded(text))
            trusted = summed.hexdigest() == written.sha256
        except (FileNotFoundError, msgspec.DecodeError):
            trusted = written.lines == 0 and not self._path.exists()
        if trusted:
            self._end = written.bytes
        else:
            fault = _fault(self._path, "is not what its attempt wrote")
            self._rows, self._problems = _Rows(), [fault]

    def _add(self, text: bytes) -> None:
        lines = text[:-1].split(b"\n")
        if all(map(_has_checksum, lines)):
            with suppress(msgspec.DecodeError):
                self._rows.add(_decoded(text))
                return
        steps, faults = _decode(self._path, lines)  # all but the damaged ones
        self._problems += faults[: max(0, _MAX_PROBLEMS - len(self._problems))]
        self._rows.add(steps)


def _decoded(lines: bytes) -> list[_Line]:
    with codec.decoding():
        return _LINES.decode_lines(lines)


class _Rows:
    def __init__(self) -> None:
        self._parts = {name: [_column(name, [])] for name in _COLUMNS}
        self._startups: dict[int, values.Startup] = {}
        self._evaluations: dict[int, values.Evaluation] = {}
        self._hosts: dict[int, HostTimes] = {}
        self._rows = 0

    def add(self, lines: Sequence[_Line | values.TimedStep]) -> None:
        steps = [line.step for line in lines]
        for name in _COLUMNS:
            self._parts[name].append(_column(name, lines if name == "at_s" else steps))
        for row, step in enumerate(steps, self._rows):
            if step.startup:
                self._startups[row] = step.startup
            if step.evaluation and step.evaluation.steps_done == step.index + 1:
                self._evaluations[row] = step.evaluation
            if step.hosts:
                self._hosts[row] = step.hosts
        self._rows += len(lines)

    def table(self) -> StepTable:
        """Return the added rows as a table. Each column takes the place of its parts."""
        for parts in self._parts.values():
            parts[:] = [np.concatenate(parts)] if len(parts) > 1 else parts
        columns: dict[str, Any] = {name: parts[0] for name, parts in self._parts.items()}
        by_row: dict[str, Any] = {name: dict(getattr(self, f"_{name}")) for name in _BY_ROW}
        return StepTable(**columns, **by_row)


def _column(name: str, rows: Sequence[object]) -> NDArray[Any]:
    kind: type = np.int64 if name in _INTEGERS else np.float64
    cells = map(attrgetter(name), rows)
    try:
        return np.fromiter(cells, kind, len(rows))
    except TypeError:  # not every row has it, and mostly none
        known = list(map(attrgetter(name), rows))
        nothing = known.count(None) == len(known)
        return np.full(len(known), np.nan) if nothing else np.array(known, kind)


# --- which steps of a run count: of each step its last attempt, unless that was undone

_StepsByAttempt = Mapping[int, StepTable]


def counted_rows(steps: _StepsByAttempt) -> dict[int, Mask]:
    """Return the rows of each attempt that count: an attempt undoes the steps after those that it
    restored, also those that a superseded attempt does while it runs.
    """
    counted: dict[int, Mask] = {}
    undone_from = np.iinfo(np.int64).max
    for number in sorted(steps, reverse=True):
        index = steps[number].index
        counted[number] = index < undone_from
        if not (index[1:] > index[:-1]).all():
            # An attempt does a step once, unless its file was damaged: then the last row counts.
            last = {int(step): row for row, step in enumerate(index)}
            mask = np.zeros(len(index), bool)
            mask[list(last.values())] = True
            counted[number] &= mask
        undone_from = min(undone_from, int(index.min(initial=undone_from)))
    return counted


def counted_steps(steps: _StepsByAttempt, attempts: Container[int] | None = None) -> StepTable:
    """Return the steps that count, in order: of all attempts, or of these only."""
    counted = counted_rows(steps)
    chosen = [number for number in sorted(steps) if attempts is None or number in attempts]
    table = _joined([steps[number].rows(counted[number]) for number in chosen])
    if (table.index[1:] > table.index[:-1]).all():
        return table
    return table.rows(np.argsort(table.index, kind="stable"))
