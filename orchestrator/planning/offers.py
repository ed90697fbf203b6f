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
from orchestrator.planning import flops, forecast, odds, spec_changes
from orchestrator.planning.feasibility import batch_range, replicas_in_pod, sizes_by_name
from orchestrator.planning.many_slices import best_of_slices
from orchestrator.planning.nearest_specs import all_meshes, rentable
from orchestrator.planning.plan_warnings import (
    LEDGER_TRAINER,
    batch_warnings,
    critical_batch_tokens,
)
from orchestrator.planning.search import Choice, SearchRequest, layout_of_choice, search_request
from orchestrator.planning.stages import stage_specs
from orchestrator.planning.time import step_time, time_lines
from orchestrator.values.plan import Extrapolation
from orchestrator.values.spec import MeshRequest, Spec

# The largest published job over several slices: 199 slices of v5e (Google Cloud, November 2023).
_MOST_CHIPS = 50_944
_HORIZON_DAYS = 365.0  # without a date, nobody waits longer


class UnknownCost(SpecError):
    """Days and dollars of another trainer's program are unknown."""

    def __init__(self, trainer: str) -> None:
        super().__init__(f"run.trainer is {trainer}, whose cost is unknown: offers are about llama")


@dataclass(frozen=True)
class _Candidate:
    """Slices that may be rented, the spec on them, and what leads to it."""

    spec: Spec
    change: spec_changes.Change
    request: SearchRequest
    days_at_best: float

    @property
    def chips(self) -> int:
        return self.request.topology.chips * self.request.pods


@dataclass(frozen=True, kw_only=True)
class _StageOffer:
    """An offer for one stage, the seconds of a change to it, and all rented chips."""

    offer: odds.Offer
    change_s: float = 0.0
    rented_chips: float = 0.0


def make_offers(spec: Spec, wanted: odds.OfferRequest) -> odds.Offers:
    """Return every offer for a spec: those with a plan by their days, then the others."""
    if spec.run.trainer != LEDGER_TRAINER:
        raise UnknownCost(spec.run.trainer)
    stages = [list(_candidates(stage, wanted)) for stage in stage_specs(spec) or [spec]]
    # A run in stages takes as long as all of them, on the same slices.
    days = [sum(stage.days_at_best for stage in same) for same in zip(*stages, strict=True)]
    # Days beyond which offers are too slow; twice what the fastest needs, if none is fast enough.
    horizon, least = wanted.by_days or _HORIZON_DAYS, min(days, default=0.0)
    horizon = horizon if least <= horizon else 2 * least
    made = []
    for stage in stages:
        on_slices = zip(stage, days, strict=True)
        same_days = [replace(each, days_at_best=all_days) for each, all_days in on_slices]
        # The offer of each candidate, for one stage or for a run without any.
        reasons = [_reason_at_once(candidate, wanted, horizon) for candidate in same_days]
        searched: dict[str, list[int]] = {}  # places of candidates, by the name of their chip
        for i, candidate in enumerate(same_days):
            if reasons[i] is None:
                searched.setdefault(candidate.request.chip.name, []).append(i)
        choices: dict[int, Choice | None] = {}
        for places in searched.values():
            found = best_of_slices([same_days[i].request for i in places])
            choices |= dict(zip(places, found, strict=True))
        made.append(
            [
                _stage_offer(candidate, choices.get(i), reasons[i], wanted)
                for i, candidate in enumerate(same_days)
            ]
        )
    return _collected(spec, wanted, [_joined(same, wanted) for same in zip(*made, strict=True)])


def _candidates(spec: Spec, wanted: odds.OfferRequest) -> Iterator[_Candidate]:
    """Yield all slices of the wanted chips, in all numbers. Sizes are powers of two and three times
    these, and numbers are as large as the network joins.
    """
    for name in wanted.chips:
        own = name == spec.resources.chip
        chip = catalog.chip_of(spec.resources) if own else catalog.chip(name)
        joined = chip.multislice_chips
        most = int(joined.value if joined else max(_MOST_CHIPS, prod(chip.largest_slice)))
        for topology in rentable(chip, spec.experiment.model):
            if _is_round(topology.chips):
                for pods in filter(_is_round, range(1, most // topology.chips + 1)):
                    yield _candidate(spec, wanted, chip, topology, pods)


def _is_round(number: int) -> bool:
    odd = number // (number & -number)
    return odd in (1, 3)


def _candidate(
    spec: Spec, wanted: odds.OfferRequest, chip: Chip, topology: Topology, pods: int
) -> _Candidate:
    """Return the spec on these slices, at the wanted price; a requested mesh was for others."""
    change: dict[str, int | float | str] = {
        spec_changes.TOPOLOGY: str(topology),
        spec_changes.PODS: pods,
    }
    if chip.name != spec.resources.chip:
        change = {spec_changes.CHIP: chip.name, **change}
    if spec.resources.mesh != MeshRequest():
        change[spec_changes.MESH] = "auto"
    other = spec_changes.changed(spec, change)
    price = wanted.dollars_per_chip_hour.get(chip.name)
    if price is not None and price != forecast.price_of(chip, other.resources):
        change[spec_changes.PRICE] = price
        other = spec_changes.changed(spec, change)
    request, experiment = search_request(other), other.experiment
    # Days at the peak of all chips: no plan takes less. Infinite where no peak is known.
    days, peak = inf, chip.peak_flops_per_s.get(experiment.precision.compute)
    if peak is not None:
        of_token = flops.model_flops_per_token(experiment.model, experiment.batch.length)
        seconds = experiment.tokens * of_token / (topology.chips * pods * peak.value)
        days = seconds / (other.resources.goodput or 1.0) / DAY_S
    return _Candidate(other, change, request, days)


# --- what needs no plan


def _reason_at_once(
    candidate: _Candidate, wanted: odds.OfferRequest, horizon: float
) -> odds.OfferReason | None:
    """Return why an offer needs no search: too slow or too small at best, no price or no rate."""
    request, experiment = candidate.request, candidate.spec.experiment
    chip, batch, days = request.chip.name, experiment.batch, candidate.days_at_best
    if wanted.budget_dollars is not None and chip not in wanted.dollars_per_chip_hour:
        return _reason("no_price", chip=chip, prices=wanted.prices)
    if days == inf:
        return _reason("no_rate", chip=chip, compute=experiment.precision.compute)
    if days > horizon:
        return _reason("too_slow", days_at_best=days, days=horizon)
    needed, memory = spec_changes.state_bytes(experiment), spec_changes.memory_that_shares(request)
    if needed > memory:
        return _reason("memory", needed_bytes=needed, usable_bytes=memory)
    if request.pods > batch_range(batch)[1]:
        return _reason("too_few_sequences", sequences=batch.sequences, least=request.pods)
    return None if spec_changes.divides(request) else _batch_reason(candidate)


def _reason_after_search(candidate: _Candidate) -> odds.OfferReason:
    """Return why a search found nothing."""
    request, batch = candidate.request, candidate.spec.experiment.batch
    meshes = all_meshes(request, request.mesh)
    if not len(meshes):
        return _reason("no_mesh", devices=request.torus.devices)
    multiples = request.pods * (batch.microbatches or 1) * replicas_in_pod(sizes_by_name(meshes))
    low, high = batch_range(batch)
    if multiples.min() > high:
        return _reason("too_few_sequences", sequences=batch.sequences, least=int(multiples.min()))
    if not (high // multiples * multiples >= low).any():
        return _batch_reason(candidate)
    usable = request.chip.hbm_usable_bytes.value
    return _reason("memory", usable_bytes=usable * request.torus.devices)


def _batch_reason(candidate: _Candidate) -> odds.OfferReason:
    return _reason(
        "batch_not_divisible",
        sequences=candidate.spec.experiment.batch.sequences,
        pods=candidate.request.pods,
        devices=candidate.request.torus.devices,
    )


def _reason(code: odds.OfferReasonCode, **figures: int | float | str) -> odds.OfferReason:
    return odds.OfferReason(code=code, figures=figures)


def _stage_offer(
    candidate: _Candidate,
    choice: Choice | None,
    reason: odds.OfferReason | None,
    wanted: odds.OfferRequest,
) -> _StageOffer:
    """Return the offer with the figures of its plan, or why it has none."""
    request, spec = candidate.request, candidate.spec
    price = wanted.dollars_per_chip_hour.get(request.chip.name)
    offer = odds.Offer(
        chip=request.chip.name,
        topology=str(request.topology),
        pods=request.pods,
        chips=candidate.chips,
        overrides=spec_changes.overrides(candidate.change),
        dollars_per_chip_hour=price,
    )
    if choice is None:
        return _StageOffer(offer=replace(offer, reason=reason or _reason_after_search(candidate)))
    layout = layout_of_choice(request, choice)
    lines = time_lines(layout)
    step_s = forecast.step_bounds(layout, lines, step_time(layout, lines))
    terms = forecast.Terms(spec.experiment.tokens, forecast.run_goodput(layout, spec), price)
    goodput, days, _, dollars = forecast.time_and_money(layout, step_s, terms)
    offer = replace(
        offer,
        mesh=choice.mesh,
        sequences=choice.sequences,
        microbatches=choice.microbatches,
        tokens_per_chip=choice.sequences * layout.length / candidate.chips,
        remat=choice.remat,
        step_s=step_s,
        mfu=forecast.mfu(layout, step_s),
        days=days,
        dollars=dollars,
        odds=odds.odds_of(days, dollars, wanted.by_days, wanted.budget_dollars),
        extrapolations=forecast.extrapolated(layout, lines, step_s),
    )
    rented = candidate.chips * terms.goodput.rented
    return _StageOffer(offer=offer, change_s=change_s(goodput), rented_chips=rented)


def _joined(stages: Sequence[_StageOffer], wanted: odds.OfferRequest) -> odds.Offer:
    """Return the offer of all stages, with the longest's mesh and step, or one without a plan."""
    offers = [stage.offer for stage in stages]
    if without := next((offer for offer in offers if offer.days is None), None):
        return without
    longest = max(offers, key=lambda offer: offer.days.likeliest if offer.days else 0.0)
    changes_s = sum(stage.change_s for stage in stages[1:])
    days = forecast.plus(
        forecast.add([offer.days for offer in offers if offer.days]), changes_s / DAY_S
    )
    paid, dollars = [offer.dollars for offer in offers if offer.dollars], None
    if len(paid) == len(offers):
        price = longest.dollars_per_chip_hour or 0.0
        dollars = forecast.plus(
            forecast.add(paid), price * stages[0].rented_chips * changes_s / HOUR_S
        )

    def beyond(axis: Extrapolation) -> float:
        return axis.value / axis.high if axis.value > axis.high else axis.low / axis.value

    # Along each axis, the value that is farthest from the published runs.
    farthest: dict[str, Extrapolation] = {}
    for axis in (axis for offer in offers for axis in offer.extrapolations):
        if axis.axis not in farthest or beyond(axis) > beyond(farthest[axis.axis]):
            farthest[axis.axis] = axis
    return replace(
        longest,
        days=days,
        dollars=dollars,
        odds=odds.odds_of(days, dollars, wanted.by_days, wanted.budget_dollars),
        extrapolations=tuple(farthest.values()),
    )


def _collected(spec: Spec, wanted: odds.OfferRequest, made: Sequence[odds.Offer]) -> odds.Offers:
    """Return the offers in their order, with the frontier and those that are chosen."""
    planned = sorted((offer for offer in made if offer.days), key=lambda o: (_days(o), _dollars(o)))
    shown: list[odds.Offer] = []
    cheapest = inf
    for offer in planned:
        # No faster one is as cheap.
        best = _dollars(offer) < cheapest
        cheapest = min(cheapest, _dollars(offer))
        shown.append(replace(offer, on_frontier=best))
    unlimited = wanted.by_days is None and wanted.budget_dollars is None

    def odds_of_both(offer: odds.Offer) -> float:
        return (offer.odds.both if offer.odds else None) or 0.0

    def stays_in_budget(offer: odds.Offer) -> bool:
        if wanted.budget_dollars is None:
            return True
        return offer.odds is not None and (offer.odds.in_budget or 0.0) >= wanted.sure

    sure = [o for o in shown if o.dollars and (unlimited or odds_of_both(o) >= wanted.sure)]
    known = [o for o in shown if o.odds and o.odds.both is not None]
    parts = spec.experiment.stages or (spec.experiment,)
    batch_tokens = max(part.batch.sequences * part.batch.length for part in parts)
    return odds.Offers(
        name=spec.name,
        tokens=spec.experiment.tokens,
        batch_tokens=batch_tokens,
        critical_batch_tokens=critical_batch_tokens(spec.experiment.tokens),
        request=wanted,
        cheapest=min(sure, key=_dollars, default=None),
        fastest=min(filter(stays_in_budget, shown), key=_days, default=None),
        likeliest=max(
            known,
            key=lambda offer: (odds_of_both(offer), -_dollars(offer) if offer.dollars else 0.0),
            default=None,
        ),
        offers=(*shown, *(offer for offer in made if offer.days is None)),
        warnings=tuple(batch_warnings(batch_tokens, spec.experiment.tokens)),
    )


def _days(offer: odds.Offer) -> float:
    assert offer.days
    return offer.days.likeliest


def _dollars(offer: odds.Offer) -> float:
    return offer.dollars.likeliest if offer.dollars else inf
