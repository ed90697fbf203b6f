"""Which offers to choose: the cheapest that is sure, the fastest in the budget, the frontier."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from orchestrator.plan.plan_warnings import critical_batch_tokens, large_batch
from orchestrator.types.offers import Offer, OfferRequest, Offers
from orchestrator.types.spec import Spec


def collected(spec: Spec, wanted: OfferRequest, made: Sequence[Offer]) -> Offers:
    """The offers in their order, with the frontier and the two that are chosen."""
    planned = sorted((one for one in made if one.days), key=days_and_dollars)
    best = set(map(id, frontier(planned)))
    shown = [replace(one, on_frontier=id(one) in best) for one in planned]
    priced = [one for one in shown if one.dollars]
    batch_tokens = largest_batch_tokens(spec)
    return Offers(
        name=spec.name,
        tokens=spec.experiment.tokens,
        batch_tokens=batch_tokens,
        critical_batch_tokens=critical_batch_tokens(spec.experiment.tokens),
        request=wanted,
        cheapest=min((one for one in priced if is_sure(one, wanted)), key=dollars_of, default=None),
        fastest=min(
            (one for one in shown if stays_in_budget(one, wanted)), key=days_of, default=None
        ),
        likeliest=max(
            (one for one in shown if one.odds and one.odds.both is not None),
            key=lambda one: (odds_of_both(one), -dollars_of(one) if one.dollars else 0.0),
            default=None,
        ),
        offers=(*shown, *(one for one in made if one.days is None)),
        warnings=tuple(large_batch(batch_tokens, spec.experiment.tokens)),
    )


def largest_batch_tokens(spec: Spec) -> int:
    """The tokens of a step, in the stage that has most."""
    parts = spec.experiment.stages or (spec.experiment,)
    return max(one.batch.sequences * one.batch.length for one in parts)


def frontier(planned: Sequence[Offer]) -> list[Offer]:
    """Offers, by days, of which no faster one is as cheap."""
    best: list[Offer] = []
    for one in planned:
        if one.dollars and (not best or dollars_of(one) < dollars_of(best[-1])):
            best.append(one)
    return best


def days_of(one: Offer) -> float:
    """What is expected, or the bound."""
    assert one.days
    return one.days.lower if one.days.expected is None else one.days.expected


def dollars_of(one: Offer) -> float:
    assert one.dollars
    return one.dollars.lower if one.dollars.expected is None else one.dollars.expected


def days_and_dollars(one: Offer) -> tuple[float, float]:
    return days_of(one), dollars_of(one) if one.dollars else inf


def is_sure(one: Offer, wanted: OfferRequest) -> bool:
    """Whether it surely holds all that was asked for."""
    if wanted.by_days is None and wanted.budget_dollars is None:
        return True
    return odds_of_both(one) >= wanted.sure


def odds_of_both(one: Offer) -> float:
    return (one.odds.both if one.odds else None) or 0.0


def stays_in_budget(one: Offer, wanted: OfferRequest) -> bool:
    if wanted.budget_dollars is None:
        return True
    return one.odds is not None and (one.odds.in_budget or 0.0) >= wanted.sure
