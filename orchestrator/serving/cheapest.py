"""The cheapest slices on which a spec is served as it wishes, over chips and topologies."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import inf

from orchestrator import catalog
from orchestrator.errors import NoSuchSlice, SpecError
from orchestrator.formatting import DAY_S, HOUR_S
from orchestrator.planning.offers import OfferRequest
from orchestrator.serving.planner import with_enough_replicas
from orchestrator.values.codec import Value
from orchestrator.values.serving import ANY_ENGINE, ServingPlan, ServingSpec

_MOST_CHIPS = 256  # of a slice that is tried; replicas serve more requests as well
_MONTH_DAYS = 30.0  # for which dollars are counted where no date is given


class ServingOffer(Value):
    """Slices of a chip with their plan, and dollars of the days; or why there is none."""

    chip: str
    topology: str
    replicas: int
    dollars: float | None
    dollars_per_million_output_tokens: float | None
    within_budget: bool
    plan: ServingPlan | None
    why: str


class ServingOffers(Value):
    """Offers, the cheapest first: by a million output tokens, or by the days where requests arrive
    at a rate; chips without a price are last. `cheapest` is the first within the budget. Dollars
    are of `days`.
    """

    name: str
    days: float
    budget_dollars: float | None
    cheapest: ServingOffer | None
    offers: tuple[ServingOffer, ...]


def serving_offers(spec: ServingSpec, request: OfferRequest) -> ServingOffers:
    """Return what one may rent: of each chip every slice of a power of two, as many as it takes."""
    days = request.by_days or _MONTH_DAYS
    budget = request.budget_dollars
    prices, found = request.dollars_per_chip_hour, []
    for candidate in chain.from_iterable(
        _candidates(spec, name, prices.get(name)) for name in request.chips
    ):
        resources, plan, why, dollars = candidate.resources, None, "", None
        try:
            plan = with_enough_replicas(candidate)
        except SpecError as error:
            why = error.message
        if plan is not None and resources.dollars_per_chip_hour is None:
            # The chip has no price of the kind that is asked for, but may have a list price.
            forecast = replace(
                plan.forecast, dollars_per_million_output_tokens=None, dollars_per_chip_hour=None
            )
            plan = replace(plan, forecast=forecast)
        if plan is not None and plan.forecast.dollars_per_chip_hour is not None:
            dollars = plan.chips * plan.forecast.dollars_per_chip_hour * days * DAY_S / HOUR_S
        per_million = plan.forecast.dollars_per_million_output_tokens if plan else None
        offer = ServingOffer(
            chip=resources.chip,
            topology=resources.topology,
            replicas=plan.replicas if plan else 1,
            dollars=dollars,
            dollars_per_million_output_tokens=per_million.expected if per_million else None,
            within_budget=budget is None or (dollars is not None and dollars <= budget),
            plan=plan,
            why=why,
        )
        found.append(offer)

    def cost(offer: ServingOffer) -> tuple[float, int, str]:
        by_rate = spec.serve.requests_per_s is not None
        value = offer.dollars if by_rate else offer.dollars_per_million_output_tokens
        chips = offer.plan.chips if offer.plan else 0
        return inf if value is None else float(f"{value:.4g}"), chips, offer.chip

    found.sort(key=cost)
    fitting = (offer for offer in found if offer.plan and offer.within_budget)
    return ServingOffers(
        name=spec.name, days=days, budget_dollars=budget, cheapest=next(fitting, None),
        offers=tuple(found),
    )  # fmt: skip


def _candidates(spec: ServingSpec, name: str, price: float | None) -> Iterator[ServingSpec]:
    """Yield the spec on each slice of a chip; an engine without runs there gives way to any."""
    own = name == spec.resources.chip
    definition = spec.resources.chip_definition if own else None
    chip = catalog.chip_of(replace(spec.resources, chip=name, chip_definition=definition))
    engine = spec.serve.engine if own else ANY_ENGINE
    for power in range(_MOST_CHIPS.bit_length()):
        count = 2**power * chip.slices.named_per_chip
        try:
            topology = catalog.topology(chip, f"{chip.slices.names[0]}-{count}")
        except NoSuchSlice:
            continue
        resources = replace(
            spec.resources, chip=name, chip_definition=definition, topology=str(topology),
            replicas=1, dollars_per_chip_hour=price, mesh=type(spec.resources.mesh)(),
        )  # fmt: skip
        yield replace(spec, serve=replace(spec.serve, engine=engine), resources=resources)
