"""What to rent for a spec: every chip, topology and number of slices, each with its plan. Offers
whose bound is too slow or too small are not planned; the rest are searched together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import inf, prod
from typing import Literal

from orchestrator import catalog
from orchestrator.errors import SpecError
from orchestrator.formatting import DAY_S, HOUR_S
from orchestrator.goodput.losses import change_s, odds_below
from orchestrator.network.mesh_axes import named_sizes
from orchestrator.planning import flops, forecast, nearest_specs, search
from orchestrator.planning.feasibility import (
    batch_range,
    check_experts,
    multiplies_in,
    sizes_by_name,
)
from orchestrator.planning.many_slices import best_of_slices
from orchestrator.planning.memory import peak_bytes
from orchestrator.planning.plan_warnings import (
    LEDGER_TRAINER,
    batch_warnings,
    critical_batch_tokens,
)
from orchestrator.planning.planner import stage_specs
from orchestrator.planning.step_work import step_work
from orchestrator.planning.time import step_time, time_lines
from orchestrator.values.codec import Value
from orchestrator.values.plan import Estimate, Extrapolation, Plan, PlanWarning
from orchestrator.values.spec import MeshRequest, Remat, Spec

# Why an offer is not for this spec, or was not planned.
OfferReasonCode = Literal[
    "too_slow",
    "memory",
    "too_few_sequences",
    "batch_not_divisible",
    "no_mesh",
    "no_price",
    "no_rate",
    "more_than_needed",
]


class OfferRequest(Value):
    """What is wanted: the most days and dollars, the chips, and their prices. `prices` is a kind of
    the catalog, or the name of a file. A choice is sure where its odds are at least `sure`.
    """

    by_days: float | None = None
    budget_dollars: float | None = None
    chips: tuple[str, ...]
    prices: str
    dollars_per_chip_hour: dict[str, float]
    sure: float = 0.9


class Odds(Value):
    """Probabilities of the plan's interval: done by the date, below the budget, and both.

    One is None where nothing was asked for it, or its figure is unknown.
    """

    by_date: float | None
    in_budget: float | None
    both: float | None


class DeadlineOdds(Value):
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


class OfferReason(Value):
    code: OfferReasonCode
    figures: dict[str, int | float | str]


class Offer(Value):
    """A number of slices of a chip, and the plan of the spec there, or why it has no plan.

    `overrides` make the spec of the offer. `memory_share`: the peak on a device, as a share of what
    programs may use there. `on_frontier`: no other offer is both faster and
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
    memory_share: float | None = None
    step_s: Estimate | None = None
    mfu: Estimate | None = None
    days: Estimate | None = None
    dollars: Estimate | None = None
    odds: Odds | None = None
    on_frontier: bool = False
    extrapolations: tuple[Extrapolation, ...] = ()


class Offers(Value):
    """All offers for a spec, the planned ones first, by days.

    `cheapest` is the one with the least expected dollars that is sure, `fastest` the one with the
    least expected days that surely stays below the budget; None where no offer is. Without a date
    and a budget all are sure. `likeliest` is the one with the highest odds. `best_of_chips` has of
    each chip its cheapest (without a price, that of the fewest chip-days), or else its likeliest or
    fastest: those that are sure first, the cheapest of them at the top. Chips without any plan come
    last, each with an offer that has the reason.
    Beyond a batch of `critical_batch_tokens` more sequences save few steps.
    """

    name: str
    tokens: int
    batch_tokens: int
    critical_batch_tokens: float
    request: OfferRequest
    cheapest: Offer | None
    fastest: Offer | None
    likeliest: Offer | None
    best_of_chips: tuple[Offer, ...]
    offers: tuple[Offer, ...]
    warnings: tuple[PlanWarning, ...]


# --- making offers

# The largest published job over several slices: 199 slices of v5e (Google Cloud, November 2023).
_MOST_CHIPS = 50_944
_HORIZON_DAYS = 365.0  # without a date, nobody waits longer


class UnknownCost(SpecError):
    """Days and dollars of another trainer's program are unknown."""


@dataclass(frozen=True)
class _Candidate:
    spec: Spec
    change: nearest_specs.Change
    request: search.SearchRequest
    days_at_best: float


# An offer for one stage, the seconds of a change to it, and all rented chips.
_StageOffer = tuple[Offer, float, float]


def make_offers(
    spec: Spec, wanted: OfferRequest, report: Callable[[int, int], None] = lambda *_: None
) -> Offers:
    """Return every offer for a spec: those with a plan by their days, then the others. `report` is
    told how many are done, those of each stage, and of how many.
    """
    if spec.run.trainer != LEDGER_TRAINER:
        raise UnknownCost(
            f"run.trainer is {spec.run.trainer}, whose cost is unknown: offers are about llama"
        )
    check_experts(spec.experiment.model, spec.experiment.precision.compute)
    stages = [list(_candidates(stage, wanted)) for stage in stage_specs(spec) or [spec]]
    # A run in stages takes as long as all of them, on the same slices.
    days = [sum(stage.days_at_best for stage in same) for same in zip(*stages, strict=True)]
    # Days beyond which offers are too slow; twice what the fastest needs, if none is fast enough.
    horizon, least = wanted.by_days or _HORIZON_DAYS, min(days, default=0.0)
    horizon = horizon if least <= horizon else 2 * least
    reasons = [
        [
            _reason_at_once(candidate, wanted, all_days, horizon)
            for candidate, all_days in zip(stage, days, strict=True)
        ]
        for stage in stages
    ]
    done, total = 0, sum(map(len, stages))

    def count(more: int) -> None:
        nonlocal done
        done += more
        report(done, total)

    # All slices of a TPU are searched together, numbers of GPUs one by one, the fewest first.
    groups: dict[tuple[str, str, int], list[int]] = {}
    for i, candidate in enumerate(stages[0]):
        one = candidate.request
        own = (str(one.topology), one.pods) if one.chip.switched else ("", 0)
        groups.setdefault((one.chip.name, *own), []).append(i)
    made: list[Offer] = []
    for (name, topology, _), places in groups.items():
        fewer = [offer for offer in made if (offer.chip, offer.topology) == (name, topology)]
        needless = _reason_of_more(fewer, wanted)
        of_stages = []
        for stage, at_once in zip(stages, reasons, strict=True):
            why = {i: at_once[i] or needless for i in places}
            left = [i for i in places if why[i] is None]
            count(len(places) - len(left))
            found = best_of_slices([stage[i].request for i in left], count)
            choices = dict(zip(left, found, strict=True))
            of_stages.append(
                [_stage_offer(stage[i], choices.get(i), why[i], wanted) for i in places]
            )
        made += [_joined(same, wanted) for same in zip(*of_stages, strict=True)]
    return _collected(spec, wanted, made)


def _candidates(spec: Spec, wanted: OfferRequest) -> Iterator[_Candidate]:
    """Yield the spec on all slices of the wanted chips, in all numbers, at the wanted price. Sizes
    are powers of two and three times these, and numbers are as large as the network joins. GPUs
    are also a whole domain; several domains are whole or a power of two, and so is their number.
    """
    for name in wanted.chips:
        own = name == spec.resources.chip
        chip = catalog.chip_of(spec.resources) if own else catalog.chip(name)
        joined = chip.multislice_chips
        most = int(joined.value if joined else max(_MOST_CHIPS, prod(chip.largest_slice)))
        domain = int(chip.pod_chips.value) if chip.switched else 0
        slices = [
            (topology, pods)
            for topology in nearest_specs.rentable(chip, spec.experiment.model)
            if _is_round(topology.chips) or topology.chips == domain
            for pods in filter(_is_round, range(1, most // topology.chips + 1))
            if pods == 1
            or not chip.switched
            or (_is_power(pods) and topology.chips in (domain, 1 << domain.bit_length() - 1))
        ]
        for topology, pods in slices:
            change: dict[str, int | float | str] = {} if own else {nearest_specs.CHIP: name}
            change |= {nearest_specs.TOPOLOGY: str(topology), nearest_specs.PODS: pods}
            if spec.resources.mesh != MeshRequest():
                change[nearest_specs.MESH] = "auto"  # a requested mesh was for others
            other = nearest_specs.changed(spec, change)
            price = wanted.dollars_per_chip_hour.get(name)
            if price is not None and price != forecast.price_of(
                chip, other.resources.dollars_per_chip_hour
            ):
                change[nearest_specs.PRICE] = price
                other = nearest_specs.changed(spec, change)
            request, experiment = search.search_request(other), other.experiment
            # Days at the peak of all chips: no plan takes less. Infinite where no peak is known.
            days, compute = inf, experiment.precision.compute
            if multiplies_in(chip, compute):
                peak = chip.peak_flops_per_s[compute]
                of_token = flops.model_flops_per_token(experiment.model, experiment.batch.length)
                seconds = experiment.tokens * of_token / (topology.chips * pods * peak.value)
                days = seconds / (other.resources.goodput or 1.0) / DAY_S
            yield _Candidate(other, change, request, days)


def _is_round(number: int) -> bool:
    return _is_power(number) or (number % 3 == 0 and _is_power(number // 3))


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0


# --- what needs no plan


def _reason_at_once(
    candidate: _Candidate, wanted: OfferRequest, days: float, horizon: float
) -> OfferReason | None:
    """Return why an offer needs no search: too slow or too small at best, no price or no rate."""
    request, experiment = candidate.request, candidate.spec.experiment
    chip, batch = request.chip.name, experiment.batch
    if wanted.budget_dollars is not None and chip not in wanted.dollars_per_chip_hour:
        return _reason("no_price", chip=chip, prices=wanted.prices)
    if days == inf:
        return _reason("no_rate", chip=chip, compute=experiment.precision.compute)
    if days > horizon:
        return _reason("too_slow", days_at_best=days, days=horizon)
    needed = nearest_specs.state_bytes(experiment)
    memory = _memory_of_all(request)
    if needed > memory:
        return _reason("memory", needed_bytes=needed, usable_bytes=memory)
    if request.torus.switched:  # domains may share everything: the search knows
        return None
    if request.pods > batch_range(batch)[1]:
        return _reason("too_few_sequences", sequences=batch.sequences, least=request.pods)
    return None if nearest_specs.divides(request) else _batch_reason(request)


def _memory_of_all(request: search.SearchRequest) -> float:
    """Return what programs may use of all devices that may share one replica of the weights."""
    domains = request.pods if request.torus.switched else 1
    return domains * nearest_specs.memory_that_shares(request)


def _reason_of_more(fewer: Sequence[Offer], wanted: OfferRequest) -> OfferReason | None:
    """Return why more GPUs are not planned: the last number surely holds the date, and it costs
    more than the one before. The more GPUs share a batch, the less each of them does.
    """
    planned = [offer for offer in fewer if offer.days][-2:]
    by_date = planned[-1].odds.by_date if planned and planned[-1].odds else None
    costs = [_chip_days(offer) for offer in planned]
    if (by_date or 0.0) < wanted.sure or len(costs) == 1 or costs[0] >= costs[1]:
        return None
    return _reason("more_than_needed", chips=planned[-1].chips, days=_days(planned[-1]))


def _reason_after_search(request: search.SearchRequest) -> OfferReason:
    batch = request.experiment.batch
    if request.torus.switched:
        _, meshes, _ = search.every_mesh(request)
    else:
        meshes = nearest_specs.all_meshes(request, request.mesh)
    if not len(meshes):
        return _reason("no_mesh", devices=request.torus.devices)
    multiples = search.multiple_of(request, sizes_by_name(meshes))
    low, high = batch_range(batch)
    if multiples.min() > high:
        return _reason("too_few_sequences", sequences=batch.sequences, least=int(multiples.min()))
    if not (high // multiples * multiples >= low).any():
        return _batch_reason(request)
    return _reason("memory", usable_bytes=_memory_of_all(request))


def _batch_reason(request: search.SearchRequest) -> OfferReason:
    return _reason(
        "batch_not_divisible",
        sequences=request.experiment.batch.sequences,
        pods=request.pods,
        devices=request.torus.devices,
    )


def _reason(code: OfferReasonCode, **figures: int | float | str) -> OfferReason:
    return OfferReason(code=code, figures=figures)


def _stage_offer(
    candidate: _Candidate,
    choice: search.Choice | None,
    reason: OfferReason | None,
    wanted: OfferRequest,
) -> _StageOffer:
    """Return the offer with the figures of its plan, or why it has no plan."""
    request, spec = candidate.request, candidate.spec
    price = wanted.dollars_per_chip_hour.get(request.chip.name)
    chips = request.topology.chips * request.pods
    offer = Offer(
        chip=request.chip.name,
        topology=str(request.topology),
        pods=request.pods,
        chips=chips,
        overrides=nearest_specs.overrides(candidate.change),
        dollars_per_chip_hour=price,
    )
    if choice is None:
        return replace(offer, reason=reason or _reason_after_search(request)), 0.0, 0.0
    layout = search.layout_of_choice(request, choice)
    lines = time_lines(layout)
    work = step_work(layout, lines)
    step_s = forecast.step_bounds(layout, lines, step_time(layout, lines), work)
    terms = forecast.Terms(spec.experiment.tokens, forecast.run_goodput(layout, spec), price)
    goodput, days, _, dollars = forecast.time_and_money(layout, step_s, terms)
    offer = replace(
        offer,
        mesh=named_sizes(choice.mesh),
        sequences=choice.sequences,
        microbatches=choice.microbatches,
        tokens_per_chip=choice.sequences * layout.length / chips,
        remat=choice.remat,
        memory_share=float(peak_bytes(layout)) / layout.chip.hbm_usable_bytes.value,
        step_s=step_s,
        mfu=forecast.mfu(layout, step_s),
        days=days,
        dollars=dollars,
        extrapolations=forecast.extrapolated(layout, work, step_s),
    )
    return offer, change_s(goodput), chips * terms.goodput.rented


def _joined(stages: Sequence[_StageOffer], wanted: OfferRequest) -> Offer:
    """Return the offer of all stages, with the longest's mesh and step, or one without a plan."""
    offers = [offer for offer, _, _ in stages]
    if without := next((offer for offer in offers if offer.days is None), None):
        return without
    longest = max(offers, key=lambda offer: offer.days.likeliest if offer.days else 0.0)
    changes_s = sum(seconds for _, seconds, _ in stages[1:])
    days = forecast.plus(
        forecast.add([offer.days for offer in offers if offer.days]), changes_s / DAY_S
    )
    paid, dollars = [offer.dollars for offer in offers if offer.dollars], None
    if len(paid) == len(offers):
        price = longest.dollars_per_chip_hour or 0.0
        dollars = forecast.plus(forecast.add(paid), price * stages[0][2] * changes_s / HOUR_S)

    def distance(axis: Extrapolation) -> float:
        return forecast.beyond(axis.value, axis.low, axis.high)

    # Along each axis, the value that is farthest from the published runs.
    farthest: dict[str, Extrapolation] = {}
    for axis in (axis for offer in offers for axis in offer.extrapolations):
        farthest[axis.axis] = max(farthest.get(axis.axis, axis), axis, key=distance)
    return replace(
        longest,
        days=days,
        dollars=dollars,
        odds=_odds_of(
            days, dollars, wanted.by_days, wanted.budget_dollars, extrapolates=bool(farthest)
        ),
        extrapolations=tuple(farthest.values()),
    )


def _collected(spec: Spec, wanted: OfferRequest, made: Sequence[Offer]) -> Offers:
    """Return the offers in their order, with the frontier and those that are chosen."""
    planned = sorted((offer for offer in made if offer.days), key=lambda o: (_days(o), _dollars(o)))
    shown: list[Offer] = []
    cheapest = inf
    for offer in planned:
        # No faster one is as cheap.
        shown.append(replace(offer, on_frontier=_dollars(offer) < cheapest))
        cheapest = min(cheapest, _dollars(offer))
    first, likeliest, fastest = _chosen(shown, wanted)
    best, without = [], []
    for name in wanted.chips:
        if of_chip := [offer for offer in shown if offer.chip == name]:
            cost = _dollars if of_chip[0].dollars else _chip_days
            best.append(next(filter(None, (*_chosen(of_chip, wanted, cost), of_chip[0]))))
        elif refused := [offer for offer in made if offer.chip == name]:
            without.append(max(refused, key=lambda offer: offer.chips))
    best.sort(key=lambda o: (-min(_both(o), wanted.sure), _dollars(o)))
    parts = spec.experiment.stages or (spec.experiment,)
    batch_tokens = max(part.batch.sequences * part.batch.length for part in parts)
    return Offers(
        name=spec.name,
        tokens=spec.experiment.tokens,
        batch_tokens=batch_tokens,
        critical_batch_tokens=critical_batch_tokens(spec.experiment.tokens),
        request=wanted,
        cheapest=first,
        fastest=fastest,
        likeliest=likeliest,
        best_of_chips=(*best, *without),
        offers=(*shown, *(offer for offer in made if offer.days is None)),
        warnings=tuple(batch_warnings(batch_tokens, spec.experiment.tokens)),
    )


def _chosen(
    shown: Sequence[Offer], wanted: OfferRequest, cost: Callable[[Offer], float] | None = None
) -> list[Offer | None]:
    """Return the cheapest offer that is sure, the likeliest, and the fastest surely in budget."""
    cost = cost or _dollars
    unlimited = wanted.by_days is None and wanted.budget_dollars is None

    def stays_in_budget(offer: Offer) -> bool:
        in_budget = offer.odds.in_budget if offer.odds else None
        return wanted.budget_dollars is None or (in_budget or 0.0) >= wanted.sure

    sure = [o for o in shown if cost(o) < inf and (unlimited or _both(o) >= wanted.sure)]
    known = [o for o in shown if o.odds and o.odds.both is not None]
    return [
        min(sure, key=cost, default=None),
        max(known, key=lambda o: (_both(o), -_dollars(o) if o.dollars else 0.0), default=None),
        min(filter(stays_in_budget, shown), key=_days, default=None),
    ]


def _both(offer: Offer) -> float:
    return (offer.odds.both if offer.odds else None) or 0.0


def _days(offer: Offer) -> float:
    assert offer.days
    return offer.days.likeliest


def _chip_days(offer: Offer) -> float:
    return _days(offer) * offer.chips


def _dollars(offer: Offer) -> float:
    return offer.dollars.likeliest if offer.dollars else inf


# --- odds


# The intervals of plans outside of published runs say nothing of their tails: no odds above those
# of an interval's end.
_MOST_OUTSIDE = 0.9


def chance(estimate: Estimate, limit: float, *, extrapolates: bool) -> float | None:
    """Return the probability of at most the limit; None without an interval, 0 below the bound."""
    known = odds_below(estimate, limit)
    if known is None:
        return None
    known = min(known, _MOST_OUTSIDE) if extrapolates else known
    return known if limit >= estimate.lower else 0.0


def _odds_of(
    days: Estimate,
    dollars: Estimate | None,
    by_days: float | None,
    budget: float | None,
    *,
    extrapolates: bool,
) -> Odds:
    """Return an offer's odds. Dollars grow with days: both limits hold as often as the rarer."""

    def within(estimate: Estimate | None, limit: float | None) -> float | None:
        if estimate is None or limit is None:
            return None
        return chance(estimate, limit, extrapolates=extrapolates)

    by_date, in_budget = within(days, by_days), within(dollars, budget)
    asked = [odds for odds, limit in ((by_date, by_days), (in_budget, budget)) if limit is not None]
    known = [odds for odds in asked if odds is not None]
    both = min(known) if known and len(known) == len(asked) else None
    return Odds(by_date=by_date, in_budget=in_budget, both=both)
