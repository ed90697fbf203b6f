"""How likely an offer holds a date and a budget, from the intervals of its forecast."""

from orchestrator.goodput import odds_below
from orchestrator.plan.forecast import apply
from orchestrator.types.offers import DeadlineOdds, Odds
from orchestrator.types.plan import Estimate, Plan


def chance(estimate: Estimate, limit: float) -> float | None:
    """The probability of at most that much; None without an interval. None is below the bound."""
    known = odds_below(estimate, limit)
    return 0.0 if known is not None and limit < estimate.lower else known


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


def deadline_odds(plan: Plan, deadline: str, days: float) -> DeadlineOdds:
    """The odds that a run that begins now ends within so many days."""
    steps = apply(plan.forecast.days, lambda all_days: all_days * plan.run_share)
    return DeadlineOdds(deadline=deadline, days=days, odds=chance(steps, days))
