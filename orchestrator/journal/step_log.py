"""The steps of an attempt, one line each: written by one process, read by any."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from orchestrator.errors import Superseded
from orchestrator.journal import files, line_files
from orchestrator.journal.run_paths import RunPaths
from orchestrator.journal.run_status import StepSummary
from orchestrator.types.run import Step, TimedStep

SYNC_EVERY_S = 5.0
RECENT_STEPS = 50
DECODER = msgspec.json.Decoder(TimedStep)


class StepLog:
    """Writes the steps of an attempt. A trainer emits steps to its `append`, on one process.

    Appended steps survive the end of the process. A power failure loses at most the steps of the
    last few seconds; other machines see steps as late.
    """

    def __init__(self, run: Path, attempt: int, *, clock: Callable[[], float] = time.time) -> None:
        path = RunPaths(run).steps(attempt)
        try:
            self._lines = line_files.LineWriter(path)
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
        self._lines.append(msgspec.json.encode(timed))
        if now_s - self._synced_s >= SYNC_EVERY_S:
            self._lines.sync()
            self._synced_s = now_s


class StepReader:
    """Reads the steps of an attempt as they are written."""

    def __init__(self, run: Path, attempt: int) -> None:
        self._path, self._offset = RunPaths(run).steps(attempt), 0
        self.problems: list[str] = []

    def read(self) -> list[TimedStep]:
        """The steps since the last call; an incomplete last line waits for the next."""
        try:
            text = files.read_from(self._path, self._offset)
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        steps, problems = _decode(self._path, whole.split(b"\n")[:-1])
        self.problems += problems
        return steps


def summarize_steps(run: Path, attempt: int) -> tuple[StepSummary, list[str]]:
    """The first and last steps of an attempt, and what is wrong there.

    The cost does not depend on the number of steps.
    """
    path = RunPaths(run).steps(attempt)
    try:
        first, (last, _) = line_files.first_line(path), line_files.last_lines(path, RECENT_STEPS)
    except FileNotFoundError:
        return StepSummary(), []
    opening, problems = _decode(path, [first] if first is not None else [])
    steps, more_problems = _decode(path, last[-RECENT_STEPS:])
    startup = opening[0].step.startup if opening else None
    summary = StepSummary(startup=startup, last_steps=tuple(steps))
    return summary, list(dict.fromkeys([*problems, *more_problems]))


def merge_attempts(attempts: Iterable[Iterable[TimedStep]]) -> list[TimedStep]:
    """The steps of the whole run in order; the last attempt at a step counts."""
    newest: dict[int, TimedStep] = {}
    for steps in attempts:
        newest.update((timed.step.index, timed) for timed in steps)
    return [newest[index] for index in sorted(newest)]


def _decode(path: Path, lines: Iterable[bytes]) -> tuple[list[TimedStep], list[str]]:
    """The steps in the lines of a file, and what is wrong with other lines."""
    steps: list[TimedStep] = []
    problems: list[str] = []
    for line in lines:
        try:
            steps.append(DECODER.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            problems.append(f"{path.parent.name}/{path.name}: a line is not a step: {error}")
    return steps, problems
