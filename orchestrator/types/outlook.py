"""What is left of a run that goes on. Plain values."""

from dataclasses import dataclass

from orchestrator.types.goodput import Uncertain


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What is left of a run, from its forecast and what it has measured so far.

    `step_s` and `goodput` are those of the steps that are left, each with an 80 % interval that
    narrows as steps come in. `ends_at_s` is when the run ends, in seconds since 1970-01-01 UTC.
    Dollars are for all rented chips since the first attempt began, None without a price. `odds` is
    the probability that the run ends by `deadline_at_s`, None without one.
    """

    steps_left: int
    step_s: Uncertain
    goodput: Uncertain
    days_left: Uncertain
    ends_at_s: Uncertain
    dollars_so_far: float | None
    dollars_left: Uncertain | None
    deadline_at_s: float | None
    odds: float | None
