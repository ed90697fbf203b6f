"""Specs near one that has no plan: changes by dotted keys. Each suggestion has been planned."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, islice
from math import ceil, inf, log, log2, prod
from typing import Any, NamedTuple

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Topology
from orchestrator.network.mesh_axes import ICI_AXES, MODEL_OVER_DCN, SHARED_OVER_DCN, named_sizes
from orchestrator.network.rematerialization import AUTO
from orchestrator.planning import flops, search
from orchestrator.planning.feasibility import (
    multiplies_in,
    placements,
    sharing,
    sizes_by_name,
    usable_axes,
)
from orchestrator.planning.forecast import forecast
from orchestrator.planning.layout import DTYPE_BYTES, moment_bytes
from orchestrator.planning.many_slices import best_of_slices
from orchestrator.planning.torus import Ints, axis_sizes, count_placements, divisors, make_torus
from orchestrator.values.model import Model
from orchestrator.values.plan import Suggestion
from orchestrator.values.spec import Experiment, MeshRequest, Pods, Spec

Change = Mapping[str, int | float | str]  # dotted key → value

CHIP, TOPOLOGY, PODS = "resources.chip", "resources.topology", "resources.pods"
PRICE = "resources.dollars_per_chip_hour"
MESH, REMAT, SEQUENCES = "resources.mesh", "experiment.remat", "experiment.batch.sequences"
MICROBATCHES = "experiment.batch.microbatches"
MOMENTS, PARAMETERS = "experiment.precision.optimizer", "experiment.precision.parameters"
_MOST_PODS, _MOST_SEQUENCES = 10_000, 10_000_000  # what a spec may ask for


def overrides(change: Change) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in change.items())


def changed(spec: Spec, change: Change) -> Spec:
    def with_value(part: Any, keys: list[str], value: Any) -> Any:
        first, *rest = keys
        inner = with_value(getattr(part, first), rest, value) if rest else value
        return replace(part, **{first: inner})

    for key, typed in change.items():
        value: Any = typed
        if key == PODS:
            value = Pods(min=value, max=value)
        elif key == MESH:
            value = MeshRequest()
        elif value == AUTO and (key == MICROBATCHES or key.startswith(f"{MESH}.")):
            value = None
        spec = with_value(spec, key.split("."), value)
    if CHIP in change:
        return replace(spec, resources=replace(spec.resources, chip_definition=None))
    return spec


def within_limits(spec: Spec) -> bool:
    """Whether a file may say so: its tokens fill a batch, its numbers are in range."""
    batch = spec.experiment.batch
    return (
        1 <= batch.sequences <= _MOST_SEQUENCES
        and batch.sequences * batch.length <= spec.experiment.tokens
        and spec.resources.pods.max <= _MOST_PODS
    )


# Placements that may be searched, so that nobody waits long for a refusal.
_MOST_WORK = 900_000


@dataclass
class _Nearby:
    """A spec without a plan, what is changed in any case, whether memory is what it lacks, and how
    many placements may still be searched.
    """

    spec: Spec
    base: Change
    lacks_memory: bool
    left: int = _MOST_WORK

    @cached_property
    def changed(self) -> Spec:
        return changed(self.spec, self.base)

    def attempt(self, change: Change) -> tuple[Suggestion | None, float, bool]:
        """Plan a further change: return its plan, or None and how many times the memory it needs,
        at least, and whether that took a search.
        """
        if self.left <= 0:
            return None, 0.0, False
        change = {**self.base, **change}
        other = changed(self.spec, change)
        model = other.experiment.model
        if not within_limits(other):
            return None, 0.0, False
        request = search.search_request(other)
        # What follows saves the search of what it would refuse too.
        times = state_bytes(other.experiment) / memory_that_shares(request)
        if times > 1 or not divides(request):
            return None, times, False
        self.left -= _LEAST_WORK + count_placements(request.torus, usable_axes(model))
        [choice] = best_of_slices([request])
        if choice is None:
            return None, times, True
        predicted = forecast(search.layout_of_choice(request, choice), other)
        suggestion = Suggestion(
            overrides=overrides(change),
            chip=request.chip.name,
            topology=str(request.topology),
            pods=request.pods,
            chips=request.topology.chips * request.pods,
            mesh=named_sizes(choice.mesh),
            sequences=choice.sequences,
            batch_change=choice.sequences / self.spec.experiment.batch.sequences - 1,
            remat=choice.remat,
            memory_bytes_per_device=predicted.memory_bytes_per_device,
            hbm_bytes_per_device=predicted.hbm_bytes_per_device,
            step_s=predicted.step_s,
            mfu=predicted.mfu,
            days=predicted.days,
            dollars=predicted.dollars,
        )
        return suggestion, 0.0, True

    def planned(self, changes: Iterable[Change], most: int = 1) -> Iterator[Suggestion]:
        found = (self.attempt(change)[0] for change in changes)
        return islice(filter(None, found), most)


def state_bytes(experiment: Experiment) -> float:
    """Return the bytes of parameters and optimizer state of one replica: no plan needs less."""
    each: float = DTYPE_BYTES[experiment.precision.parameters]
    each += moment_bytes(experiment.optimizer, experiment.precision)
    return each * flops.parameters(experiment.model)


def divides(request: search.SearchRequest) -> bool:
    """Whether a pod's devices may divide sequences, positions and heads: no mesh splits more."""
    if request.torus.switched:  # pipelines may take what the batch does not
        return True
    batch, heads = request.experiment.batch, request.experiment.model.heads
    parts = batch.sequences // request.pods * batch.length * heads
    even = batch.sequences % request.pods == 0 and parts % request.torus.devices == 0
    shared = request.pods % prod(sharing(request.mesh).values()) == 0
    return shared and (bool(batch.tolerance) or even)


def memory_that_shares(request: search.SearchRequest) -> float:
    """Return what programs may use of all devices that share one replica of the weights."""
    devices = request.torus.devices * prod(sharing(request.mesh).values())
    return devices * request.chip.hbm_usable_bytes.value


# --- what is tried

_LEAST_WORK = 25_000  # placements whose search takes as long as one of none
_MOST_TRIES = 12  # searches for one suggestion
_MOST_PLACEMENTS = 400_000  # of a slice that is tried: larger ones take seconds to search
_MOST_TIMES_CHEAPEST = 3  # what a suggestion may cost
_CHIPS = 3  # other chips that are suggested, the cheapest first
_ANY_REPLICAS = 2**62
_NEAR = 0.05  # how far the fastest suggested batch may be from the requested one
_MESHES = 2  # most meshes that are suggested in place of a requested one
_MANY_SEQUENCES = 1024  # at least, in a batch that most slices divide
_DOUBLINGS = 2  # how often the batch is halved and doubled
_NEXT = 4  # batches that are tried on either side
_MORE_PODS = (2, 4, 8)  # times as many slices may share weights
_NEXT_PODS = 6  # numbers of slices that are tried on either side: those next, and any that divide


def nearest_specs(
    spec: Spec, *, lacks_memory: bool, is_whole: bool = False
) -> tuple[Suggestion, ...]:
    """Return the nearest specs that have a plan: those with the fewest changes in addition. Of a
    model that is whole on each device, as nothing divides it, only other chips can hold it.
    """
    experiment = spec.experiment
    sequences, pods = experiment.batch.sequences, spec.resources.pods.max
    # The nearest batch that is a power of two on each pod, which most meshes divide.
    even = int(pods * 2 ** round(log2(max(sequences / pods, 1))))
    many = pods * max(2 ** ceil(log2(_MANY_SEQUENCES / pods)), 1)
    # Further changes where one is not enough, step by step.
    steps: list[tuple[str, int | str, bool]] = [
        (MESH, AUTO, spec.resources.mesh != MeshRequest()),
        (MICROBATCHES, AUTO, experiment.batch.microbatches is not None),
        (REMAT, AUTO, lacks_memory and experiment.remat != AUTO),
        (SEQUENCES, even, even != sequences),
        (SEQUENCES, many, sequences < many),
        (MOMENTS, "bf16", experiment.precision.optimizer != "bf16"),
        (PARAMETERS, "bf16", experiment.precision.parameters != "bf16"),
    ]
    kinds = (_precision, _other_chips) if is_whole else _KINDS
    helping: list[Change] = [{key: value} for key, value, helps in steps if helps]
    base: Change = {}
    left = _MOST_WORK
    for step in ({}, *helping):
        base = {**base, **step}
        # A step takes half of what is left at most, so that a hopeless one leaves some to others.
        near = _Nearby(spec, base, lacks_memory, left // 2)
        found = [*near.planned([{}] if base else []), *chain.from_iterable(k(near) for k in kinds)]
        left -= left // 2 - max(near.left, 0)
        if found:
            asked = search.search_request(spec)
            own = asked.chip.name, asked.topology.chips * asked.pods
            return _worthwhile({each.overrides: each for each in found}.values(), own)
    # Once the batch divides, it may be the memory that is lacking.
    return () if lacks_memory else nearest_specs(spec, lacks_memory=True)


def _worthwhile(found: Collection[Suggestion], asked: tuple[str, int]) -> tuple[Suggestion, ...]:
    """Return the suggestions that cost at most three times the cheapest, and that no other on the
    same chips undercuts in days and dollars with a batch as near to the requested one. One on the
    chips that were asked for, a kind and their number, stays whatever others cost.
    """

    def figures(each: Suggestion) -> tuple[float, float, float]:
        dollars = each.dollars.likeliest if each.dollars else 0.0
        return each.days.likeliest, dollars, abs(each.batch_change)

    def is_undercut(each: Suggestion) -> bool:
        own = figures(each)
        return any(
            figures(other) != own and all(a <= b for a, b in zip(figures(other), own, strict=True))
            for other in found
            if (other.chip, other.chips) == (each.chip, each.chips)
        )

    cheapest = min((each.dollars.likeliest for each in found if each.dollars), default=inf)
    kept = [
        each
        for each in found
        if figures(each)[1] <= _MOST_TIMES_CHEAPEST * cheapest and not is_undercut(each)
    ]
    own = [each for each in found if (each.chip, each.chips) == asked]
    if own and not any(each in kept for each in own):
        kept.insert(0, min(own, key=lambda each: figures(each)[1:]))
    return tuple(kept)


def _other_meshes(near: _Nearby) -> Iterator[Suggestion]:
    """Yield the sizes nearest to the requested ones by ratio, then what the search chooses."""
    request = search.search_request(near.changed)
    requested = requested_axes(request.mesh)
    if not requested:
        return
    columns = [ICI_AXES.index(axis) for axis in requested]
    sizes = np.unique(all_meshes(request, MeshRequest())[:, columns], axis=0)
    distance = np.abs(np.log(sizes / np.array(list(requested.values())))).sum(axis=1)
    nearest = (
        {f"{MESH}.{axis}": int(size) for axis, size in zip(requested, row, strict=True)}
        for row in sizes[np.argsort(distance, kind="stable")[: 2 * _MESHES]]
    )
    yield from near.planned(nearest, _MESHES)
    yield from near.planned([{MESH: AUTO}])


def requested_axes(mesh: MeshRequest) -> dict[str, int]:
    return {axis: size for axis in ICI_AXES if (size := getattr(mesh, axis))}


def all_meshes(request: search.SearchRequest, mesh: MeshRequest) -> Ints:
    """Return the meshes that the model and these sizes allow, whatever the batch."""
    model, length = request.experiment.model, request.experiment.batch.length
    factors = placements(request.torus, model, length, mesh, _ANY_REPLICAS)
    return np.unique(axis_sizes(factors), axis=0)


def _searched_instead(near: _Nearby) -> Iterator[Suggestion]:
    """Yield the fewest slices that must share weights, or another number where the requested is
    wrong; then the policy and the number of microbatches that the search chooses.
    """
    resources = near.changed.resources
    pods = resources.pods.max
    usable = [f"{axis}_dcn" for axis in usable_axes(near.changed.experiment.model)]
    for axis in MODEL_OVER_DCN:
        requested = getattr(resources.mesh, axis) or 1
        if near.lacks_memory and axis in SHARED_OVER_DCN and axis in usable:
            among = [{f"{MESH}.{axis}": ways} for ways in divisors(pods) if ways > requested]
            more = [{PODS: n * pods, f"{MESH}.{axis}": n * pods} for n in _MORE_PODS]
            yield from near.planned([*among, *more])
        elif pods % requested:
            yield from near.planned([{f"{MESH}.{axis}": AUTO}])
    experiment = near.changed.experiment
    if near.lacks_memory and experiment.remat != AUTO:
        yield from near.planned([{REMAT: AUTO}])
    if experiment.batch.microbatches is not None:
        yield from near.planned([{MICROBATCHES: AUTO}])


def _other_batches(near: _Nearby) -> Iterator[Suggestion]:
    """Yield the next batch on either side, and the fastest one nearby."""
    spec = near.changed
    batch = spec.experiment.batch
    if near.lacks_memory:
        # Smaller batches need no sums of gradients; larger ones may be split more ways.
        powers = range(1, _DOUBLINGS + 1)
        smaller = [half for power in powers if (half := batch.sequences // 2**power)]
        sides = [smaller, [batch.sequences * 2**power for power in powers]]
    else:
        # Batches that a mesh of these devices divides.
        request = search.search_request(spec)
        multiples = search.multiple_of(request, sizes_by_name(all_meshes(request, request.mesh)))
        unique = np.unique(multiples).tolist()
        below = {batch.sequences // multiple * multiple for multiple in unique} - {0}
        above = {-(-batch.sequences // multiple) * multiple for multiple in unique}
        tolerance = {"experiment.batch.tolerance": max(_NEAR, batch.tolerance)}
        nearby = search.search_request(changed(spec, tolerance))
        [fastest] = best_of_slices([nearby])
        sides = [
            sorted(below, reverse=True)[:_NEXT],
            sorted(above)[:_NEXT],
            [fastest.sequences] if fastest else [],
        ]
    for side in sides:
        yield from near.planned({SEQUENCES: size} for size in side if size != batch.sequences)


def nearest_batches(spec: Spec) -> list[Suggestion]:
    near = _Nearby(spec, {}, lacks_memory=False)
    found = {suggestion.sequences: suggestion for suggestion in _other_batches(near)}
    return [found[sequences] for sequences in sorted(found)]


def _other_slices(near: _Nearby) -> Iterator[Suggestion]:
    """Yield the nearest numbers of slices on both sides, then the next smaller and larger slice."""
    requested = near.changed.resources.pods.max
    sequences = near.changed.experiment.batch.sequences
    counts = {*divisors(sequences), *range(requested - _NEXT, requested + _NEXT + 1)}
    fewer = sorted((n for n in counts if 0 < n < requested), reverse=True)
    more = sorted(n for n in counts if n > requested)
    yield from near.planned({PODS: n} for n in fewer[:_NEXT_PODS])
    yield from near.planned({PODS: n} for n in more[:_NEXT_PODS])
    now = _requested_slices(near)
    sizes, own = rentable(now.chip, near.changed.experiment.model), now.topology.chips
    smaller = [] if near.lacks_memory else [size for size in sizes[::-1] if size.chips < own]
    for side in (smaller, [size for size in sizes if size.chips > own]):
        yield from _first_with_plan(near, [_SliceChoice(now.chip, size, now.pods) for size in side])


def _precision(near: _Nearby) -> Iterator[Suggestion]:
    if near.lacks_memory:
        now = near.changed.experiment.precision
        moments: Change = {MOMENTS: "bf16"} if now.optimizer != "bf16" else {}
        parameters: Change = {PARAMETERS: "bf16"} if now.parameters != "bf16" else {}
        yield from near.planned(change for change in (moments, {**moments, **parameters}) if change)


# --- other slices and other chips


class _SliceChoice(NamedTuple):
    chip: Chip
    topology: Topology
    pods: int

    @property
    def chips(self) -> int:
        return self.topology.chips * self.pods


def _requested_slices(near: _Nearby) -> _SliceChoice:
    resources = near.changed.resources
    chip = catalog.chip_of(resources)
    return _SliceChoice(chip, catalog.topology(chip, resources.topology), resources.pods.max)


def rentable(chip: Chip, model: Model) -> list[Topology]:
    """Return the slices of a chip to rent, smallest first, then most cubic; none slow to search."""
    axes = usable_axes(model)
    every = [catalog.topology(chip, text) for text in catalog.topologies(chip)]
    most = prod(chip.largest_slice)
    by_size = groupby((each for each in every if each.chips <= most), key=lambda each: each.chips)
    cubic = (min(group, key=lambda each: sum(each.shape)) for _, group in by_size)
    return [
        each for each in cubic if count_placements(make_torus(chip, each), axes) <= _MOST_PLACEMENTS
    ]


def _other_chips(near: _Nearby) -> Iterator[Suggestion]:
    """Yield other chips that compute in the spec's type and hold the model, the cheapest first."""
    now, experiment = _requested_slices(near), near.changed.experiment
    found: list[Suggestion] = []
    for chip in map(catalog.chip, catalog.chips()):
        if chip.name != now.chip.name and multiplies_in(chip, experiment.precision.compute):
            # Slices that are together nearest to the number of chips first, then in fewer pods.
            most = chip.multislice_chips.value if chip.multislice_chips else inf
            sizes = rentable(chip, experiment.model)
            slices = [_SliceChoice(chip, s, max(1, round(now.chips / s.chips))) for s in sizes]
            slices = [each for each in slices if each.chips <= most]
            slices.sort(key=lambda each: (abs(log(each.chips / now.chips)), each.pods))
            found += _first_with_plan(near, slices)

    def cost(suggestion: Suggestion) -> tuple[float, int]:
        price = suggestion.dollars
        return inf if price is None else price.likeliest, suggestion.chips

    yield from sorted(found, key=cost)[:_CHIPS]


def _first_with_plan(near: _Nearby, slices: Iterable[_SliceChoice]) -> Iterator[Suggestion]:
    """Yield the first that has a plan. A search that fails says how much memory the next needs."""
    now = _requested_slices(near)
    least_chips = 0.0
    tries = 0
    for choice in slices:
        change = _change_to(near, now, choice)
        if choice.topology.chips < least_chips or change is None or tries == _MOST_TRIES:
            continue
        suggestion, memory_times, searched = near.attempt(change)
        tries += searched
        if suggestion:
            yield suggestion
            return
        least_chips = max(least_chips, choice.topology.chips * memory_times)


def _change_to(near: _Nearby, now: _SliceChoice, then: _SliceChoice) -> Change | None:
    """Return what leads from slices to others; None where the spec's own price fits no chip."""
    change: dict[str, int | float | str] = {}
    if then.chip.name != now.chip.name:
        change[CHIP] = then.chip.name
        if near.spec.resources.dollars_per_chip_hour is not None:
            if then.chip.dollars_per_hour is None:
                return None
            change[PRICE] = then.chip.dollars_per_hour.value
    if change or then.topology != now.topology:
        change[TOPOLOGY] = str(then.topology)
    if then.pods != now.pods:
        change[PODS] = then.pods
    return change


_KINDS = (
    _other_meshes,
    _searched_instead,
    _other_batches,
    _other_slices,
    _precision,
    _other_chips,
)
