"""The steps of an attempt, one line each: written by one process, read by any.

Each line has a checksum of its own. The end of an attempt has the count and the sha256 of all.
"""

import hashlib
import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from orchestrator.errors import Superseded
from orchestrator.journal import files, line_files
from orchestrator.journal.file_fault import FileFault
from orchestrator.journal.run_paths import RunPaths
from orchestrator.journal.run_status import StepSummary
from orchestrator.storage import segments
from orchestrator.types import codec
from orchestrator.types.run import Attempt, Step, TimedStep, WrittenSteps

SYNC_EVERY_S = 5.0
RECENT_STEPS = 50
DECODER = msgspec.json.Decoder(TimedStep)
# A line is a JSON object that begins with the checksum of the rest of it.
_CRC = b'{"crc32":"%08x",'
_CRC_BYTES = len(_CRC % 0)
MAX_PROBLEMS = 20  # of a reader: a file may have a million damaged lines


class StepLog:
    """Writes the steps of an attempt. A trainer emits steps to its `append`, on one process.

    Appended steps survive the end of the process. A power failure loses at most the steps of the
    last few seconds; other machines see steps as late.
    """

    def __init__(self, run: Path, attempt: int, *, clock: Callable[[], float] = time.time) -> None:
        path = RunPaths(run).steps(attempt)
        try:
            with files.writing(path):
                self._lines = segments.lines(path) or line_files.LineWriter(path)
        except FileExistsError as error:
            raise Superseded(f"{path}: another process writes these steps") from error
        self._clock, self._synced_s = clock, clock()

    def __enter__(self) -> Self:
        self._lines.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lines.__exit__(kind, error, trace)

    def append(self, step: Step) -> None:
        """Write a step. Trainer metrics that are not finite are left out: JSON has none."""
        now_s = self._clock()
        finite = {name: x for name, x in step.trainer_metrics.items() if math.isfinite(x)}
        timed = TimedStep(at_s=now_s, step=replace(step, trainer_metrics=finite))
        self._lines.append(encode(timed))
        if now_s - self._synced_s >= SYNC_EVERY_S:
            self.sync()

    def sync(self) -> None:
        """Make the steps survive a power failure, and show them to other machines."""
        self._lines.sync()
        self._synced_s = self._clock()


def encode(timed: TimedStep) -> bytes:
    """The line of a step, without its end."""
    rest = msgspec.json.encode(timed)[1:]
    return _CRC % zlib.crc32(rest) + rest


class StepReader:
    """Reads the steps of an attempt as they are written."""

    def __init__(self, run: Path, attempt: int) -> None:
        self._path, self._offset = RunPaths(run).steps(attempt), 0
        self.problems: list[FileFault] = []

    def skip(self) -> None:
        """Pass over the steps that are there."""
        with suppress(FileNotFoundError):
            _, self._offset = line_files.last_lines(self._path, 1)

    def read(self) -> list[TimedStep]:
        """The steps since the last call; an incomplete last line waits for the next."""
        return [step for steps in self.in_parts() for step in steps]

    def in_parts(self) -> Iterator[list[TimedStep]]:
        """The same in parts of a bounded size."""
        try:
            for part in line_files.whole_lines(self._path, self._offset):
                self._offset += len(part)
                steps, problems = decode(self._path, part.split(b"\n")[:-1])
                self.problems += problems[: max(0, MAX_PROBLEMS - len(self.problems))]
                yield steps
        except FileNotFoundError:
            return


def summarize_steps(run: Path, attempt: Attempt) -> tuple[StepSummary, list[FileFault]]:
    """The first and last steps of an attempt, and what is wrong there.

    The cost does not depend on the number of steps.
    """
    path = RunPaths(run).steps(attempt.number)
    try:
        first, (last, end) = line_files.first_line(path), line_files.last_lines(path, RECENT_STEPS)
    except FileNotFoundError:
        return StepSummary(), _shortfall(path, attempt, StepSummary(), 0)
    opening, problems = decode(path, [first] if first is not None else [])
    steps, more_problems = decode(path, last[-RECENT_STEPS:])
    startup = opening[0].step.startup if opening else None
    once = {one.step.index: one for one in steps}
    if len(once) < len(steps):
        more_problems.append(fault(path, "a step is there twice"))
    summary = StepSummary(startup=startup, last_steps=tuple(once.values()))
    problems += [*more_problems, *_shortfall(path, attempt, summary, end)]
    return summary, list(dict.fromkeys(problems))


def _shortfall(path: Path, attempt: Attempt, summary: StepSummary, size: int) -> list[FileFault]:
    """The steps that were written and are not in the file, if its ends show that."""
    written = attempt.written
    if written and size < written.bytes:
        left = f"{size:,} of its {written.bytes:,} bytes are left"
        return [fault(path, f"steps are missing: {left}")]
    if attempt.saved_steps and summary.steps_done < attempt.saved_steps:
        done = f"it ends after step {summary.steps_done:,}"
        saved = f"step {attempt.saved_steps:,} was saved"
        return [fault(path, f"steps are missing: {done}, and {saved}")]
    return []


def fault(path: Path, what: str) -> FileFault:
    """What is wrong with a file of steps."""
    return FileFault(f"{path.parent.name}/{path.name}", what)


def written_steps(run: Path, attempt: int) -> WrittenSteps:
    """What an attempt has written of its steps so far: whole lines."""
    return _sum_lines(RunPaths(run).steps(attempt), None)


def _sum_lines(path: Path, size: int | None) -> WrittenSteps:
    """The sum of the whole lines of a file, or of so many bytes of it."""
    summed, lines, end = hashlib.sha256(), 0, 0
    try:
        for part in line_files.whole_lines(path, size=size):
            summed.update(part)
            lines, end = lines + part.count(b"\n"), end + len(part)
    except FileNotFoundError:
        pass
    return WrittenSteps(lines=lines, bytes=end, sha256=summed.hexdigest())


def decode(path: Path, lines: Iterable[bytes]) -> tuple[list[TimedStep], list[FileFault]]:
    """The steps in the lines of a file, and what is wrong with other lines."""
    steps: list[TimedStep] = []
    problems: list[FileFault] = []
    for line in lines:
        try:
            with codec.decoding():
                step = DECODER.decode(line)
            why = None if has_checksum(line) else "its checksum is not that of what follows"
        except msgspec.DecodeError as error:
            why = str(error)
        if why is None:
            steps.append(step)
        else:
            problems.append(fault(path, f"a line is not a step: {why}"))
    return steps, problems


def has_checksum(line: bytes) -> bool:
    """Whether a line begins with the checksum of what follows."""
    return line[:_CRC_BYTES] == _CRC % zlib.crc32(memoryview(line)[_CRC_BYTES:])
