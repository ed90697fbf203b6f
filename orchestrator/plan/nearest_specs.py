"""Specs near one that has no plan. Each suggestion has been planned."""

from collections.abc import Iterator
from itertools import chain
from math import log2

import numpy as np

from orchestrator.network.mesh_axes import ICI_AXES, SHARED_OVER_DCN
from orchestrator.network.rematerialization import AUTO
from orchestrator.plan.feasibility import placements, sizes_by_name
from orchestrator.plan.nearest_slices import larger_slices, other_chips, smaller_slices
from orchestrator.plan.ranking import best_choices
from orchestrator.plan.search import SearchRequest, multiple_of, search, search_request
from orchestrator.plan.spec_changes import (
    MESH,
    MICROBATCHES,
    MOMENTS,
    PARAMETERS,
    PODS,
    REMAT,
    SEQUENCES,
    Budget,
    Change,
    Nearby,
    changed,
)
from orchestrator.plan.torus import Ints, axis_sizes, divisors
from orchestrator.types.refusal import Suggestion
from orchestrator.types.spec import MeshRequest, Spec

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
