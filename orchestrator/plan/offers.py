"""What to rent for a spec: every chip, topology and number of slices, each with its plan.

Bounds come first: an offer that is too slow at the peak of its chips, or too small for the model,
is not planned. The others are searched together (`many_slices`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from orchestrator import catalog
from orchestrator.catalog.chip import Chip, Topology
from orchestrator.errors import SpecError
from orchestrator.formatting import DAY_S
from orchestrator.goodput.stages import change_s
from orchestrator.plan import flops
from orchestrator.plan.feasibility import batch_range, replicas_in_pod, sizes_by_name
from orchestrator.plan.forecast import (
    Terms,
    extrapolated,
    mfu,
    price_of,
    run_goodput,
    step_bounds,
    time_and_money,
)
from orchestrator.plan.many_slices import best_of_slices
from orchestrator.plan.nearest_slices import rentable
from orchestrator.plan.nearest_specs import all_meshes
from orchestrator.plan.odds import odds_of
from orchestrator.plan.offer_choice import collected
from orchestrator.plan.plan_warnings import LEDGER_TRAINER
from orchestrator.plan.search import Choice, SearchRequest, layout_of_choice, search_request
from orchestrator.plan.spec_changes import (
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
from orchestrator.plan.stage_offers import StageOffer, joined_offer
from orchestrator.plan.stages import stage_specs
from orchestrator.plan.time import step_time, time_lines
from orchestrator.types.offers import Offer, OfferReason, OfferReasonCode, OfferRequest, Offers
from orchestrator.types.spec import MeshRequest, Spec

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
