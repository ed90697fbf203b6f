"""Journal room: the steps of an attempt, a line each. Written by one process, read by anybody."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from orchestrator.errors import Superseded
from orchestrator.journal import files
from orchestrator.journal.run_paths import RunPaths
from orchestrator.journal.run_status import Trace
from orchestrator.types.run import Step, TimedStep

SYNC_EVERY_S = 5.0
RECENT_STEPS = 50
DECODER = msgspec.json.Decoder(TimedStep)


class StepLog:
    """Writes the steps of an attempt: its `append` is what a trainer emits to, on one process.

    What was appended survives the end of the process; a power failure takes at most the steps of
    the last few seconds, which is also how late other machines see them.
    """

    def __init__(self, run: Path, attempt: int, *, clock: Callable[[], float] = time.time) -> None:
        path = RunPaths(run).steps(attempt)
        try:
            self._lines = files.Lines(path)
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
        """Write a step down. A metric of the trainer's own that is no finite number is left out:
        JSON has none.
        """
        now_s = self._clock()
        finite = {name: x for name, x in step.trainer_metrics.items() if math.isfinite(x)}
        timed = TimedStep(at_s=now_s, step=replace(step, trainer_metrics=finite))
        self._lines.append(msgspec.json.encode(timed))
        if now_s - self._synced_s >= SYNC_EVERY_S:
            self._lines.sync()
            self._synced_s = now_s


class StepReader:
    """Reads the steps of an attempt as they come: each call gives those since the one before."""

    def __init__(self, run: Path, attempt: int) -> None:
        self._path, self._offset = RunPaths(run).steps(attempt), 0
        self.problems: list[str] = []

    def read(self) -> list[TimedStep]:
        """The steps that were not read yet; a torn last line waits until it is whole."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        steps, faults = _decoded(whole.split(b"\n")[:-1])
        self.problems += [f"{self._path.parent.name}/{self._path.name}: {why}" for why in faults]
        return steps


def trace(run: Path, attempt: int) -> tuple[Trace, list[str]]:
    """The two ends of an attempt's steps, however many they are, and what is wrong there."""
    path = RunPaths(run).steps(attempt)
    try:
        first, (last, _) = files.first_line(path), files.last_lines(path, RECENT_STEPS)
    except FileNotFoundError:
        return Trace(), []
    opened, faults = _decoded([first] if first is not None else [])
    steps, later_faults = _decoded(last[-RECENT_STEPS:])
    problems = [f"{path.parent.name}/{path.name}: {why}" for why in {*faults, *later_faults}]
    opening = opened[0].step.opening if opened else None
    return Trace(opening=opening, last_steps=tuple(steps)), problems


def history(attempts: Iterable[Iterable[TimedStep]]) -> list[TimedStep]:
    """The steps of the whole run in their order: of one that was redone, the newest."""
    newest: dict[int, TimedStep] = {}
    for steps in attempts:
        newest.update((timed.step.index, timed) for timed in steps)
    return [newest[index] for index in sorted(newest)]


def _decoded(lines: Iterable[bytes]) -> tuple[list[TimedStep], list[str]]:
    steps: list[TimedStep] = []
    faults: list[str] = []
    for line in lines:
        try:
            steps.append(DECODER.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            faults.append(f"a line is no step: {error}")
    return steps, faults
