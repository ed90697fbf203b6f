"""What to rent for a spec: every chip, topology and number of slices, each with its plan.

Bounds come first: an offer that is too slow at the peak of its chips, or too small for the model,
is not planned. The others are searched together (`many_slices`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Topology
from orchestrator.errors import SpecError
from orchestrator.formatting import DAY_S, HOUR_S
from orchestrator.goodput.outlook import change_s
from orchestrator.planning import flops
from orchestrator.planning.feasibility import batch_range, replicas_in_pod, sizes_by_name
from orchestrator.planning.forecast import (
    Terms,
    add,
    extrapolated,
    mfu,
    plus,
    price_of,
    run_goodput,
    step_bounds,
    time_and_money,
)
from orchestrator.planning.many_slices import best_of_slices
from orchestrator.planning.nearest_specs import all_meshes, rentable
from orchestrator.planning.odds import (
    Offer,
    OfferReason,
    OfferReasonCode,
    OfferRequest,
    Offers,
    odds_of,
)
from orchestrator.planning.plan_warnings import (
    LEDGER_TRAINER,
    batch_warnings,
    critical_batch_tokens,
)
from orchestrator.planning.search import Choice, SearchRequest, layout_of_choice, search_request
from orchestrator.planning.spec_changes import (
    CHIP,
    MESH,
    PODS,
    PRICE,
    TOPOLOGY,
    Change,
    changed,
    divides,
    memory_that_shares,
    overrides,
    state_bytes,
)
from orchestrator.planning.stages import stage_specs
from orchestrator.planning.time import step_time, time_lines
from orchestrator.values.plan import Extrapolation
from orchestrator.values.spec import MeshRequest, Spec

# Offers for a run in stages: the same slices for every stage, with the time and money of all.


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


# Which offers to choose: the cheapest that is sure, the fastest in the budget, the frontier.


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
        warnings=tuple(batch_warnings(batch_tokens, spec.experiment.tokens)),
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


# The largest published job over several slices: 199 slices of v5e (Google Cloud, November 2023).
MOST_CHIPS = 50_944
HORIZON_DAYS = 365.0  # without a date, nobody waits longer


class UnknownCost(SpecError):
    """Days and dollars of another trainer's program are unknown."""

    def __init__(self, trainer: str) -> None:
        super().__init__(f"run.trainer is {trainer}, whose cost is unknown: offers are about llama")


@dataclass(frozen=True)
class Candidate:
    """Slices that may be rented, the spec on them, and what leads to it."""

    spec: Spec
    change: Change
    request: SearchRequest
    days_at_best: float

    @property
    def chips(self) -> int:
        return self.request.topology.chips * self.request.pods


def make_offers(spec: Spec, wanted: OfferRequest) -> Offers:
    """Every offer for a spec: those with a plan by their days, then the others."""
    if spec.run.trainer != LEDGER_TRAINER:
        raise UnknownCost(spec.run.trainer)
    stages = [list(all_candidates(one, wanted)) for one in stage_specs(spec) or [spec]]
    days = [sum(one.days_at_best for one in same) for same in zip(*stages, strict=True)]
    horizon = horizon_days(days, wanted)
    candidates = [
        [replace(one, days_at_best=all_days) for one, all_days in zip(stage, days, strict=True)]
        for stage in stages
    ]
    made = [offers_of(stage, wanted, horizon) for stage in candidates]
    joined = [joined_offer(same, wanted) for same in zip(*made, strict=True)]
    return collected(spec, wanted, joined)


def offers_of(
    candidates: Sequence[Candidate], wanted: OfferRequest, horizon: float
) -> list[StageOffer]:
    """The offer of each candidate, for one stage or for a run without any."""
    made: dict[int, StageOffer] = {}
    open_: list[int] = []
    for i, one in enumerate(candidates):
        reason = reason_at_once(one, wanted, horizon)
        if reason:
            made[i] = StageOffer(offer=offer_without_plan(one, wanted, reason))
        else:
            open_.append(i)
    for i, choice in best_choices_of(candidates, open_):
        made[i] = offer_of(candidates[i], choice, wanted)
    return [made[i] for i in range(len(candidates))]


# --- what may be rented


def all_candidates(spec: Spec, wanted: OfferRequest) -> Iterator[Candidate]:
    """All slices of the wanted chips, in all numbers."""
    for name in wanted.chips:
        chip = catalog.chip_of(spec.resources) if is_own(spec, name) else catalog.chip(name)
        for topology in sizes_to_rent(chip, spec):
            for pods in pods_to_rent(chip, topology):
                yield candidate(spec, wanted, chip, topology, pods)


def is_own(spec: Spec, chip: str) -> bool:
    return chip == spec.resources.chip


def sizes_to_rent(chip: Chip, spec: Spec) -> list[Topology]:
    """The slices that can be rented: powers of two and three times these; others lie between."""
    return [one for one in rentable(chip, spec.experiment.model) if is_round(one.chips)]


def pods_to_rent(chip: Chip, topology: Topology) -> list[int]:
    """Round numbers of slices, as many as the network joins."""
    joined = chip.multislice_chips
    most = int(joined.value if joined else max(MOST_CHIPS, prod(chip.largest_slice)))
    return [pods for pods in range(1, most // topology.chips + 1) if is_round(pods)]


def is_round(number: int) -> bool:
    """Whether it is a power of two, or three times one."""
    odd = number // (number & -number)
    return odd in (1, 3)


def candidate(
    spec: Spec, wanted: OfferRequest, chip: Chip, topology: Topology, pods: int
) -> Candidate:
    """The spec on these slices, at the wanted price; a requested mesh was for others."""
    change: dict[str, int | float | str] = {TOPOLOGY: str(topology), PODS: pods}
    if not is_own(spec, chip.name):
        change = {CHIP: chip.name, **change}
    if spec.resources.mesh != MeshRequest():
        change[MESH] = "auto"
    other = changed(spec, change)
    price = wanted.dollars_per_chip_hour.get(chip.name)
    if price is not None and price != price_of(chip, other.resources):
        change[PRICE] = price
        other = changed(spec, change)
    request = search_request(other)
    return Candidate(other, change, request, days_at_best(other, request))


def days_at_best(spec: Spec, request: SearchRequest) -> float:
    """Days at the peak of all chips: no plan takes less. Infinite where no peak is known."""
    experiment = spec.experiment
    peak = request.chip.peak_flops_per_s.get(experiment.precision.compute)
    if peak is None:
        return inf
    of_token = flops.model_flops_per_token(experiment.model, experiment.batch.length)
    chips = request.topology.chips * request.pods
    seconds = experiment.tokens * of_token / (chips * peak.value)
    return seconds / (spec.resources.goodput or 1.0) / DAY_S


# --- what needs no plan


def horizon_days(days_at_best: Sequence[float], wanted: OfferRequest) -> float:
    """The days beyond which offers are too slow; as many as the fastest needs, if none is fast
    enough.
    """
    horizon = wanted.by_days or HORIZON_DAYS
    least = min(days_at_best, default=0.0)
    return horizon if least <= horizon else 2 * least


def reason_at_once(one: Candidate, wanted: OfferRequest, horizon: float) -> OfferReason | None:
    """Why an offer needs no search: too slow or too small at best, without a price or a rate."""
    chip = one.request.chip
    if wanted.budget_dollars is not None and chip.name not in wanted.dollars_per_chip_hour:
        return reason("no_price", chip=chip.name, prices=wanted.prices)
    if one.days_at_best == inf:
        return reason("no_rate", chip=chip.name, compute=one.spec.experiment.precision.compute)
    if one.days_at_best > horizon:
        return reason("too_slow", days_at_best=one.days_at_best, days=horizon)
    needed, memory = state_bytes(one.spec.experiment), memory_that_shares(one.request)
    if needed > memory:
        return reason("memory", needed_bytes=needed, usable_bytes=memory)
    batch = one.spec.experiment.batch
    _, most = batch_range(batch)
    if one.request.pods > most:
        return reason("too_few_sequences", sequences=batch.sequences, least=one.request.pods)
    if not divides(one.request):
        return reason("batch_not_divisible", sequences=batch.sequences, pods=one.request.pods,
                      devices=one.request.torus.devices)  # fmt: skip
    return None


def reason(code: OfferReasonCode, **figures: int | float | str) -> OfferReason:
    return OfferReason(code=code, figures=figures)


def reason_after_search(one: Candidate) -> OfferReason:
    """Why a search found nothing."""
    request, batch = one.request, one.spec.experiment.batch
    meshes = all_meshes(request, request.mesh)
    if not len(meshes):
        return reason("no_mesh", devices=request.torus.devices)
    multiples = request.pods * (batch.microbatches or 1) * replicas_in_pod(sizes_by_name(meshes))
    low, high = batch_range(batch)
    if multiples.min() > high:
        return reason("too_few_sequences", sequences=batch.sequences, least=int(multiples.min()))
    if not (high // multiples * multiples >= low).any():
        return reason("batch_not_divisible", sequences=batch.sequences, pods=request.pods,
                      devices=request.torus.devices)  # fmt: skip
    usable = request.chip.hbm_usable_bytes.value
    return reason("memory", usable_bytes=usable * request.torus.devices)


# --- what is planned


def best_choices_of(
    candidates: Sequence[Candidate], places: Sequence[int]
) -> Iterator[tuple[int, Choice | None]]:
    """The choice for each of these places, the slices of a chip together."""
    names = dict.fromkeys(candidates[i].request.chip.name for i in places)
    for name in names:
        same = [i for i in places if candidates[i].request.chip.name == name]
        yield from zip(same, best_of_slices([candidates[i].request for i in same]), strict=True)


def offer_without_plan(one: Candidate, wanted: OfferRequest, why: OfferReason) -> Offer:
    name = one.request.chip.name
    return Offer(
        chip=name,
        topology=str(one.request.topology),
        pods=one.request.pods,
        chips=one.chips,
        overrides=overrides(one.change),
        dollars_per_chip_hour=wanted.dollars_per_chip_hour.get(name),
        reason=why,
    )


def offer_of(one: Candidate, choice: Choice | None, wanted: OfferRequest) -> StageOffer:
    """The offer with the figures of its plan."""
    if choice is None:
        return StageOffer(offer=offer_without_plan(one, wanted, reason_after_search(one)))
    layout = layout_of_choice(one.request, choice)
    lines = time_lines(layout)
    step_s = step_bounds(layout, lines, step_time(layout, lines))
    price = wanted.dollars_per_chip_hour.get(one.request.chip.name)
    terms = Terms(one.spec.experiment.tokens, run_goodput(layout, one.spec), price)
    goodput, days, _, dollars = time_and_money(layout, step_s, terms)
    offer = replace(
        offer_without_plan(one, wanted, reason("no_price")),
        reason=None,
        mesh=choice.mesh,
        sequences=choice.sequences,
        microbatches=choice.microbatches,
        tokens_per_chip=choice.sequences * layout.length / one.chips,
        remat=choice.remat,
        step_s=step_s,
        mfu=mfu(layout, step_s),
        days=days,
        dollars=dollars,
        odds=odds_of(days, dollars, wanted.by_days, wanted.budget_dollars),
        extrapolations=extrapolated(layout, lines, step_s),
    )
    return StageOffer(
        offer=offer, change_s=change_s(goodput), rented_chips=one.chips * terms.goodput.rented
    )
