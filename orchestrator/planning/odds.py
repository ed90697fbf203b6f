"""What one may rent for a spec: each offer with its days, its dollars and its odds."""

from dataclasses import dataclass, fields
from typing import Literal

from orchestrator.goodput.losses import odds_below
from orchestrator.planning.forecast import apply
from orchestrator.values.plan import Estimate, Extrapolation, Plan, PlanWarning
from orchestrator.values.spec import Remat

# Why an offer is not for this spec, or was not planned.
OfferReasonCode = Literal[
    "too_slow",
    "memory",
    "too_few_sequences",
    "batch_not_divisible",
    "no_mesh",
    "no_price",
    "no_rate",
]


@dataclass(frozen=True, kw_only=True)
class OfferRequest:
    """What is wanted: the most days and dollars, the chips, and their prices.

    `prices` is a kind of the catalog, or the name of a file. A choice is sure where its odds are at
    least `sure`.
    """

    by_days: float | None = None
    budget_dollars: float | None = None
    chips: tuple[str, ...]
    prices: str
    dollars_per_chip_hour: dict[str, float]
    sure: float = 0.9


@dataclass(frozen=True, kw_only=True)
class Odds:
    """Probabilities of the plan's interval: done by the date, below the budget, and both.

    One is None where nothing was asked for it, or its figure is unknown.
    """

    by_date: float | None
    in_budget: float | None
    both: float | None


@dataclass(frozen=True, kw_only=True)
class DeadlineOdds:
    """The odds that a run from now on ends by its `run.deadline`, in `days`; None if unknown."""

    deadline: str
    days: float
    odds: float | None


class PlanWithOdds(Plan):
    """A plan, and the odds that it holds the spec's deadline; None without a deadline."""

    deadline: DeadlineOdds | None

    @classmethod
    def of(cls, plan: Plan, deadline: DeadlineOdds | None) -> "PlanWithOdds":
        return cls(
            **{each.name: getattr(plan, each.name) for each in fields(Plan)}, deadline=deadline
        )


@dataclass(frozen=True, kw_only=True)
class OfferReason:
    code: OfferReasonCode
    figures: dict[str, int | float | str]


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A number of slices of a chip, and the plan of the spec there, or why it has no plan.

    `overrides` make the spec of the offer. `on_frontier`: no other offer is both faster and
    cheaper. `extrapolations` are axes along which it leaves the range of published runs.
    """

    chip: str
    topology: str
    pods: int
    chips: int
    overrides: tuple[str, ...]
    dollars_per_chip_hour: float | None
    reason: OfferReason | None = None
    mesh: dict[str, int] | None = None
    sequences: int | None = None
    microbatches: int | None = None
    tokens_per_chip: float | None = None
    remat: Remat | None = None
    step_s: Estimate | None = None
    mfu: Estimate | None = None
    days: Estimate | None = None
    dollars: Estimate | None = None
    odds: Odds | None = None
    on_frontier: bool = False
    extrapolations: tuple[Extrapolation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Offers:
    """All offers for a spec, the planned ones first, by days.

    `cheapest` is the one with the least expected dollars that is sure, `fastest` the one with the
    least expected days that surely stays below the budget; None where no offer is. Without a date
    and a budget all are sure. `likeliest` is the one with the highest odds. Beyond a batch of
    `critical_batch_tokens` more sequences save few steps.
    """

    name: str
    tokens: int
    batch_tokens: int
    critical_batch_tokens: float
    request: OfferRequest
    cheapest: Offer | None
    fastest: Offer | None
    likeliest: Offer | None
    offers: tuple[Offer, ...]
    warnings: tuple[PlanWarning, ...]


def _chance(estimate: Estimate, limit: float) -> float | None:
    """Return the probability of at most the limit; None without an interval, 0 below the bound."""
    known = odds_below(estimate, limit)
    return 0.0 if known is not None and limit < estimate.lower else known


def odds_of(
    days: Estimate, dollars: Estimate | None, by_days: float | None, budget: float | None
) -> Odds:
    """Return an offer's odds. Dollars grow with days: both limits hold as often as the rarer."""
    by_date = None if by_days is None else _chance(days, by_days)
    in_budget = None if budget is None or dollars is None else _chance(dollars, budget)
    asked = [odds for odds, limit in ((by_date, by_days), (in_budget, budget)) if limit is not None]
    known = [odds for odds in asked if odds is not None]
    both = min(known) if known and len(known) == len(asked) else None
    return Odds(by_date=by_date, in_budget=in_budget, both=both)


def deadline_odds(plan: Plan, deadline: str, days: float) -> DeadlineOdds:
    """Return the odds that a run that begins now ends within `days` days."""
    steps = apply(plan.forecast.days, lambda all_days: all_days * plan.run_share)
    return DeadlineOdds(deadline=deadline, days=days, odds=_chance(steps, days))
