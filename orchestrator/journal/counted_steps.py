"""Which steps of a run count: of each step its last attempt, unless that was undone. Pure."""

from collections.abc import Container, Mapping

import numpy as np

from orchestrator.journal.step_table import Mask, StepTable, joined

StepsByAttempt = Mapping[int, StepTable]


def counted_rows(steps: StepsByAttempt) -> dict[int, Mask]:
    """The rows of each attempt that count: no later attempt began before them.

    An attempt undoes the steps after those that it restored, also where a superseded attempt does
    some while it runs.
    """
    counted: dict[int, Mask] = {}
    undone_from = np.iinfo(np.int64).max
    for number in sorted(steps, reverse=True):
        table = steps[number]
        counted[number] = _last_of_each(table) & (table.index < undone_from)
        if len(table):
            undone_from = min(undone_from, int(table.index.min()))
    return counted


def counted_steps(steps: StepsByAttempt, attempts: Container[int] | None = None) -> StepTable:
    """The steps that count, in order: of all attempts, or of these alone."""
    counted = counted_rows(steps)
    chosen = [number for number in sorted(steps) if attempts is None or number in attempts]
    table = joined(steps[number].rows(counted[number]) for number in chosen)
    if (table.index[1:] > table.index[:-1]).all():
        return table
    return table.rows(np.argsort(table.index, kind="stable"))


def _last_of_each(table: StepTable) -> Mask:
    """The last row of each index: an attempt does a step once, unless its file was damaged."""
    if (table.index[1:] > table.index[:-1]).all():
        return np.ones(len(table), bool)
    last = {int(index): row for row, index in enumerate(table.index)}
    mask = np.zeros(len(table), bool)
    mask[list(last.values())] = True
    return mask
