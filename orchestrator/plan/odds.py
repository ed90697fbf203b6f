"""How likely a run stays below a limit of days or dollars, from the interval of its forecast.

The interval is a factor up and down (`extrapolation.interval`), so the logarithm of the time is
taken as normal. No run is faster than the lower bound.
"""

from math import log
from statistics import NormalDist

from orchestrator.plan.extrapolation import STANDARD_DEVIATIONS
from orchestrator.types.offers import Odds
from orchestrator.types.plan import Estimate


def chance(estimate: Estimate, limit: float) -> float | None:
    """The probability of at most that much; None where no interval is known."""
    if estimate.expected is None or estimate.high is None:
        return None
    if limit < estimate.lower:
        return 0.0
    deviation = log(estimate.high / estimate.expected) / STANDARD_DEVIATIONS
    if not deviation:
        return float(limit >= estimate.expected)
    return NormalDist().cdf(log(limit / estimate.expected) / deviation)


def odds_of(
    days: Estimate, dollars: Estimate | None, by_days: float | None, budget: float | None
) -> Odds:
    """The odds of an offer. Dollars grow with days: both limits hold as often as the rarer one."""
    by_date = None if by_days is None else chance(days, by_days)
    in_budget = None if budget is None or dollars is None else chance(dollars, budget)
    asked = [one for one, given in ((by_date, by_days), (in_budget, budget)) if given is not None]
    known = [one for one in asked if one is not None]
    both = min(known) if known and len(known) == len(asked) else None
    return Odds(by_date=by_date, in_budget=in_budget, both=both)
