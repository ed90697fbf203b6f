"""Offers for a run in stages: the same slices for every stage, with the time and money of all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.formatting import DAY_S, HOUR_S
from orchestrator.plan.forecast import add, plus
from orchestrator.plan.odds import odds_of
from orchestrator.types.offers import Offer, OfferRequest
from orchestrator.types.plan import Extrapolation


@dataclass(frozen=True, kw_only=True)
class StageOffer:
    """An offer for one stage, the seconds of a change to it, and all rented chips."""

    offer: Offer
    change_s: float = 0.0
    rented_chips: float = 0.0


def joined_offer(stages: Sequence[StageOffer], wanted: OfferRequest) -> Offer:
    """The offer for all stages; mesh, step and batch are those of the longest. Without a plan for
    one of them there is no offer.
    """
    offers = [one.offer for one in stages]
    if without := next((one for one in offers if one.days is None), None):
        return without
    longest = max(offers, key=lambda one: one.days.likeliest if one.days else 0.0)
    changes_s = sum(one.change_s for one in stages[1:])
    days = plus(add([one.days for one in offers if one.days]), changes_s / DAY_S)
    paid, dollars = [one.dollars for one in offers if one.dollars], None
    if len(paid) == len(offers):
        price = longest.dollars_per_chip_hour or 0.0
        more = price * stages[0].rented_chips * changes_s / HOUR_S
        dollars = plus(add(paid), more)
    return replace(
        longest,
        days=days,
        dollars=dollars,
        odds=odds_of(days, dollars, wanted.by_days, wanted.budget_dollars),
        extrapolations=_farthest([axis for one in offers for axis in one.extrapolations]),
    )


def _farthest(extrapolations: Sequence[Extrapolation]) -> tuple[Extrapolation, ...]:
    """Of each axis the value that is farthest from the published runs."""
    kept: dict[str, Extrapolation] = {}
    for one in extrapolations:
        if one.axis not in kept or _beyond(one) > _beyond(kept[one.axis]):
            kept[one.axis] = one
    return tuple(kept.values())


def _beyond(one: Extrapolation) -> float:
    return one.value / one.high if one.value > one.high else one.low / one.value
