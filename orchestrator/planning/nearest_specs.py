"""Specs near one that has no plan. Each suggestion has been planned."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from math import inf, log, log2, prod

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.chips import Chip, Topology
from orchestrator.network.mesh_axes import ICI_AXES, SHARED_OVER_DCN
from orchestrator.network.rematerialization import AUTO
from orchestrator.planning.feasibility import placements, sizes_by_name, usable_axes
from orchestrator.planning.ranking import best_choices
from orchestrator.planning.search import SearchRequest, multiple_of, search, search_request
from orchestrator.planning.spec_changes import (
    CHIP,
    MESH,
    MICROBATCHES,
    MOMENTS,
    PARAMETERS,
    PODS,
    PRICE,
    REMAT,
    SEQUENCES,
    TOPOLOGY,
    Budget,
    Change,
    Nearby,
    changed,
)
from orchestrator.planning.torus import Ints, axis_sizes, count_placements, divisors, make_torus
from orchestrator.values.model import Model
from orchestrator.values.plan import Estimate
from orchestrator.values.refusal import Suggestion
from orchestrator.values.spec import MeshRequest, Spec

# Other slices and other chips on which a spec has a plan.


MOST_TRIES = 12  # searches for one suggestion
MOST_PLACEMENTS = 400_000  # of a slice that is tried: larger ones take seconds to search
CHIPS = 3  # other chips that are suggested, the cheapest first


@dataclass(frozen=True)
class SliceChoice:
    """So many slices of a chip."""

    chip: Chip
    topology: Topology
    pods: int

    @property
    def chips(self) -> int:
        return self.topology.chips * self.pods


def requested_slices(near: Nearby) -> SliceChoice:
    resources = near.changed.resources
    chip = catalog.chip_of(resources)
    return SliceChoice(chip, catalog.topology(chip, resources.topology), resources.pods.max)


def rentable(chip: Chip, model: Model) -> list[Topology]:
    """The slices of a chip that one may rent, smallest first; of equal ones the most cubic."""
    axes = usable_axes(model)
    every = [catalog.topology(chip, text) for text in catalog.topologies(chip)]
    some = [one for one in every if one.chips <= prod(chip.largest_slice)]
    by_size = groupby(some, key=lambda one: one.chips)
    cubic = (min(group, key=lambda one: sum(one.shape)) for _, group in by_size)
    return [
        one for one in cubic if count_placements(make_torus(chip, one), axes) <= MOST_PLACEMENTS
    ]


def smaller_slices(near: Nearby) -> Iterator[Suggestion]:
    """The largest smaller slice, where memory is not what is lacking."""
    now = requested_slices(near)
    if not near.lacks_memory:
        fewer = [
            one
            for one in rentable(now.chip, near.changed.experiment.model)
            if one.chips < now.topology.chips
        ]
        yield from first_with_plan(
            near, now, [SliceChoice(now.chip, t, now.pods) for t in fewer[::-1]]
        )


def larger_slices(near: Nearby) -> Iterator[Suggestion]:
    """The smallest larger slice."""
    now = requested_slices(near)
    more = [
        one
        for one in rentable(now.chip, near.changed.experiment.model)
        if one.chips > now.topology.chips
    ]
    yield from first_with_plan(near, now, [SliceChoice(now.chip, t, now.pods) for t in more])


def other_chips(near: Nearby) -> Iterator[Suggestion]:
    """Of other chips that compute in the spec's type about as many, or as many as hold the model;
    the cheapest first.
    """
    now, experiment = requested_slices(near), near.changed.experiment
    found: list[Suggestion] = []
    for chip in map(catalog.chip, catalog.chips()):
        if chip.name != now.chip.name and experiment.precision.compute in chip.peak_flops_per_s:
            others = about_as_many(chip, now.chips, experiment.model)
            found += first_with_plan(near, now, others)
    yield from sorted(found, key=lambda one: (cost(one.dollars), one.chips))[:CHIPS]


def cost(dollars: Estimate | None) -> float:
    """A chip without a price comes last."""
    return inf if dollars is None else dollars.likeliest


def about_as_many(chip: Chip, chips: int, model: Model) -> list[SliceChoice]:
    """Slices of a chip, together nearest to a number of chips first; then those in fewer pods."""
    every = [
        SliceChoice(chip, one, max(1, round(chips / one.chips))) for one in rentable(chip, model)
    ]
    most = chip.multislice_chips.value if chip.multislice_chips else inf
    every = [one for one in every if one.chips <= most]
    return sorted(every, key=lambda one: (abs(log(one.chips / chips)), one.pods))


def first_with_plan(
    near: Nearby, now: SliceChoice, slices: Iterable[SliceChoice]
) -> Iterator[Suggestion]:
    """The first that has a plan. A search that fails says how much memory the next one needs."""
    least_chips = 0.0
    tries = 0
    for one in slices:
        change = change_to(near, now, one)
        if one.topology.chips < least_chips or change is None or tries == MOST_TRIES:
            continue
        attempt = near.attempt(change)
        tries += attempt.searched
        if attempt.suggestion:
            yield attempt.suggestion
            return
        least_chips = max(least_chips, one.topology.chips * attempt.memory_times)


def change_to(near: Nearby, now: SliceChoice, then: SliceChoice) -> Change | None:
    """What leads from slices to others; None where the spec's own price would be of no chip."""
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


ANY_REPLICAS = 2**62
NEAR = 0.05  # how far the fastest suggested batch may be from the requested one
MESHES = 2  # most meshes that are suggested in place of a requested one
MANY_SEQUENCES = 1024  # a batch that most slices divide
DOUBLINGS = 2  # how often the batch is halved and doubled
NEXT = 4  # batches that are tried on either side
MORE_PODS = (2, 4, 8)  # times as many slices may share weights
NEXT_PODS = 6  # numbers of slices that are tried on either side: those next, and any that divide


def nearest_specs(spec: Spec, *, lacks_memory: bool) -> tuple[Suggestion, ...]:
    """The nearest specs that have a plan: those that need the fewest changes beside their own."""
    budget = Budget()
    for base in bases(spec, lacks_memory=lacks_memory):
        near = Nearby(spec, base, lacks_memory, budget)
        found = [near.plan({}) if base else None, *chain.from_iterable(k(near) for k in KINDS)]
        suggestions = {one.overrides: one for one in found if one}
        if suggestions:
            return tuple(suggestions.values())
    return ()


def bases(spec: Spec, *, lacks_memory: bool) -> Iterator[Change]:
    """What else is changed where one change is not enough, step by step."""
    experiment = spec.experiment
    base: Change = {}
    steps: list[tuple[str, int | str, bool]] = [
        (MESH, AUTO, spec.resources.mesh != MeshRequest()),
        (MICROBATCHES, AUTO, experiment.batch.microbatches is not None),
        (REMAT, AUTO, lacks_memory and experiment.remat != AUTO),
        (SEQUENCES, even := even_batch(spec), even != experiment.batch.sequences),
        (SEQUENCES, MANY_SEQUENCES, experiment.batch.sequences < MANY_SEQUENCES),
        (MOMENTS, "bf16", experiment.precision.optimizer != "bf16"),
        (PARAMETERS, "bf16", experiment.precision.parameters != "bf16"),
    ]
    yield base
    for key, value, helps in steps:
        if helps:
            base = {**base, key: value}
            yield base


def even_batch(spec: Spec) -> int:
    """The nearest batch that is a power of two on each pod, which most meshes divide."""
    pods = spec.resources.pods.max
    on_each = max(spec.experiment.batch.sequences / pods, 1)
    return int(pods * 2 ** round(log2(on_each)))


# --- the same chips


def other_meshes(near: Nearby) -> Iterator[Suggestion]:
    """The sizes of the same axes that are nearest to the requested ones, by ratio; then any."""
    requested = requested_axes(near.changed.resources.mesh)
    if not requested:
        return
    request = search_request(near.changed)
    columns = [ICI_AXES.index(axis) for axis in requested]
    sizes = np.unique(all_meshes(request, MeshRequest())[:, columns], axis=0)
    distance = np.abs(np.log(sizes / np.array(list(requested.values())))).sum(axis=1)
    nearest = (
        {f"{MESH}.{axis}": int(size) for axis, size in zip(requested, row, strict=True)}
        for row in sizes[np.argsort(distance, kind="stable")[: 2 * MESHES]]
    )
    yield from near.planned(nearest, MESHES)
    yield from near.planned([{MESH: AUTO}])


def requested_axes(mesh: MeshRequest) -> dict[str, int]:
    """The axes whose sizes were requested."""
    return {axis: size for axis in ICI_AXES if (size := getattr(mesh, axis))}


def all_meshes(request: SearchRequest, mesh: MeshRequest) -> Ints:
    """Meshes that the model and these sizes allow, whatever the batch."""
    model, length = request.experiment.model, request.experiment.batch.length
    factors = placements(request.torus, model, length, mesh, ANY_REPLICAS)
    return np.unique(axis_sizes(factors), axis=0)


def shared_weights(near: Nearby) -> Iterator[Suggestion]:
    """The fewest slices that must share weights, of those there are or of more; or another number
    where the requested is wrong.
    """
    resources = near.changed.resources
    pods = resources.pods.max
    for axis in SHARED_OVER_DCN:
        requested = getattr(resources.mesh, axis) or 1
        if near.lacks_memory:
            among = [{f"{MESH}.{axis}": ways} for ways in divisors(pods) if ways > requested]
            more = [{PODS: n * pods, f"{MESH}.{axis}": n * pods} for n in MORE_PODS]
            yield from near.planned([*among, *more])
        elif pods % requested:
            yield from near.planned([{f"{MESH}.{axis}": AUTO}])


def other_policies(near: Nearby) -> Iterator[Suggestion]:
    """The policy that the search chooses: it keeps, offloads or recomputes any tensor."""
    if near.lacks_memory and near.changed.experiment.remat != AUTO:
        yield from near.planned([{REMAT: AUTO}])


def other_microbatches(near: Nearby) -> Iterator[Suggestion]:
    """The number that the search chooses, where another was requested."""
    if near.changed.experiment.batch.microbatches is not None:
        yield from near.planned([{MICROBATCHES: AUTO}])


def other_batches(near: Nearby) -> Iterator[Suggestion]:
    """The next batch on either side, and the fastest one nearby."""
    sizes = batches_by_doubling(near) if near.lacks_memory else divisible_batches(near)
    for side in sizes:
        yield from near.planned({SEQUENCES: size} for size in side)


def nearest_batches(spec: Spec) -> list[Suggestion]:
    """Batches near the requested one that a mesh divides, smallest first."""
    found = {one.sequences: one for one in other_batches(Nearby(spec, {}, False, Budget()))}
    return [found[sequences] for sequences in sorted(found)]


def batches_by_doubling(near: Nearby) -> list[list[int]]:
    """Smaller batches need no sums of gradients; larger ones may be split more ways."""
    requested = near.changed.experiment.batch.sequences
    return [
        [requested // 2**power for power in range(1, DOUBLINGS + 1) if requested // 2**power],
        [requested * 2**power for power in range(1, DOUBLINGS + 1)],
    ]


def divisible_batches(near: Nearby) -> list[list[int]]:
    """Batches that a mesh of these devices divides: the next on either side, the fastest nearby."""
    spec = near.changed
    request, batch = search_request(spec), spec.experiment.batch
    meshes = all_meshes(request, request.mesh)
    multiples = np.unique(multiple_of(request, sizes_by_name(meshes)))
    below = {int(batch.sequences // one * one) for one in multiples} - {0}
    above = {int(-(-batch.sequences // one) * one) for one in multiples}
    tolerance = {"experiment.batch.tolerance": max(NEAR, batch.tolerance)}
    nearby = search_request(changed(spec, tolerance))
    fastest = best_choices(nearby, search(nearby).candidates, 1)
    return [
        sorted(below, reverse=True)[:NEXT],
        sorted(above)[:NEXT],
        [choice.sequences for choice in fastest],
    ]


def other_pods(near: Nearby) -> Iterator[Suggestion]:
    """The nearest numbers of slices on either side."""
    requested = near.changed.resources.pods.max
    sequences = near.changed.experiment.batch.sequences
    counts = set(divisors(sequences)) | {requested + n for n in range(-NEXT, NEXT + 1)}
    fewer = sorted((n for n in counts if 0 < n < requested), reverse=True)
    more = sorted(n for n in counts if n > requested)
    yield from near.planned({PODS: n} for n in fewer[:NEXT_PODS])
    yield from near.planned({PODS: n} for n in more[:NEXT_PODS])


def precision(near: Nearby) -> Iterator[Suggestion]:
    """bf16 moments, or bf16 parameters too."""
    if not near.lacks_memory:
        return
    now = near.changed.experiment.precision
    moments: Change = {MOMENTS: "bf16"} if now.optimizer != "bf16" else {}
    parameters: Change = {PARAMETERS: "bf16"} if now.parameters != "bf16" else {}
    yield from near.planned(change for change in (moments, {**moments, **parameters}) if change)


KINDS = (
    other_meshes,
    shared_weights,
    other_policies,
    other_microbatches,
    other_batches,
    other_pods,
    smaller_slices,
    larger_slices,
    precision,
    other_chips,
)
