"""Which steps of a run count: of each step its last attempt, unless that was undone. Pure."""

from collections.abc import Container, Mapping, Sequence

import numpy as np

from orchestrator.journal.step_table import Integers, Mask, StepTable, joined
from orchestrator.types.run import TimedStep

StepsByAttempt = Mapping[int, StepTable]


def counted_rows(steps: StepsByAttempt) -> dict[int, Mask]:
    """The rows of each attempt that count."""
    return _counted({number: table.index for number, table in steps.items()})


def _counted(indexes: Mapping[int, Integers]) -> dict[int, Mask]:
    """Which of the steps that each attempt did count: no later attempt began before them.

    An attempt undoes the steps after those that it restored, also where a superseded attempt does
    some while it runs.
    """
    counted: dict[int, Mask] = {}
    undone_from = np.iinfo(np.int64).max
    for number in sorted(indexes, reverse=True):
        index = indexes[number]
        counted[number] = _last_of_each(index) & (index < undone_from)
        undone_from = min(undone_from, int(index.min(initial=undone_from)))
    return counted


def counted_steps(steps: StepsByAttempt, attempts: Container[int] | None = None) -> StepTable:
    """The steps that count, in order: of all attempts, or of these alone."""
    counted = counted_rows(steps)
    chosen = [number for number in sorted(steps) if attempts is None or number in attempts]
    table = joined(steps[number].rows(counted[number]) for number in chosen)
    if (table.index[1:] > table.index[:-1]).all():
        return table
    return table.rows(np.argsort(table.index, kind="stable"))


def counted_timed_steps(steps: Mapping[int, Sequence[TimedStep]]) -> list[TimedStep]:
    """The steps of all attempts that count, in order."""
    indexes = {
        number: np.array([one.step.index for one in done], np.int64)
        for number, done in steps.items()
    }
    counted = [
        one
        for number, mask in _counted(indexes).items()
        for one, counts in zip(steps[number], mask, strict=True)
        if counts
    ]
    return sorted(counted, key=lambda one: one.step.index)


def _last_of_each(index: Integers) -> Mask:
    """The last row of each index: an attempt does a step once, unless its file was damaged."""
    if (index[1:] > index[:-1]).all():
        return np.ones(len(index), bool)
    last = {int(step): row for row, step in enumerate(index)}
    mask = np.zeros(len(index), bool)
    mask[list(last.values())] = True
    return mask
