"""How amounts of work are timed: one after another, in rounds."""

import statistics
from collections.abc import Callable, Mapping

from orchestrator.types.chip_profile import Operation, Timing
from orchestrator.types.spec_fields import MatmulType

ROUNDS = 9


def in_rounds(
    operation: Operation, dtype: MatmulType, runs: Mapping[float, Callable[[], float]]
) -> Timing:
    """Time every amount once in each round, so that other programs disturb few runs of each.

    A run does its work once and returns the seconds.
    """
    rounds = [[run() for run in runs.values()] for _ in range(ROUNDS)]
    quartiles = [statistics.quantiles(seconds, n=4) for seconds in zip(*rounds, strict=True)]
    return Timing(
        operation=operation,
        dtype=dtype,
        points=tuple((amount, q[1]) for amount, q in zip(runs, quartiles, strict=True)),
        spread=max((high - low) / median for low, median, high in quartiles),
    )
