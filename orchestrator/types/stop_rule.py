"""The rule that stops trials of a sweep before their end: keys of a study's file."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from orchestrator.types.spec_fields import about


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """When a trial of a sweep stops before its end. Its loss at a check is the mean over the
    last `every` steps. Trials run in order, and each is compared with those before it.
    """

    rule: Annotated[
        Literal["median", "halving", "diverged"],
        about(
            "median: stop where the loss is worse than the median of the other trials at that step."
            " halving (asynchronous successive halving): stop where the loss is not among the best"
            " of a check, and check at every, every x reduction, every x reduction^2, ... steps."
            " diverged: stop trials that diverge, and no others."
        ),
    ] = "median"
    every: Annotated[int, about("The steps from one check to the next.", 50, ge=1, le=10**9)]
    after_trials: Annotated[
        int,
        about(
            "The number of other trials that must have reached a check before the rule stops one"
            " there.",
            ge=1,
            le=1_000,
        ),
    ] = 3
    reduction: Annotated[
        int, about("With halving, one of so many trials passes a check.", ge=2, le=100)
    ] = 3
    diverged_at: Annotated[
        float,
        Meta(gt=1),
        about(
            "A trial has diverged when its loss at a check is more than so many times that of its"
            " first step. One whose loss is not finite always has."
        ),
    ] = 1.5
