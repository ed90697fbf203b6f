"""Specs near one that has no plan. Each suggestion has been planned."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.chip import Topology
from orchestrator.errors import SpecError
from orchestrator.network.mesh_axes import ICI_AXES, SHARED_OVER_DCN
from orchestrator.plan.feasibility import placements
from orchestrator.plan.forecast import mfu, step_bounds
from orchestrator.plan.search import Choice, SearchRequest, best_choices, layout_of_choice, search
from orchestrator.plan.time import step_time, time_lines
from orchestrator.plan.torus import Ints, axis_sizes, divisors, make_torus
from orchestrator.types.infeasible import Suggestion
from orchestrator.types.plan import Estimate
from orchestrator.types.spec import MeshRequest

ANY_REPLICAS = 2**62
NEAR = 0.05  # how far a suggested batch may be from the requested one
MESHES = 2  # most meshes that are suggested in place of a requested one


def suggestion(request: SearchRequest, *overrides: str, **changes: Any) -> Iterator[Suggestion]:
    """The plan of a changed request, if there is one."""
    choice = best_choice(request)
    if choice:
        yield Suggestion(
            overrides=overrides,
            mesh=choice.mesh,
            chips=request.topology.chips * request.pods,
            mfu=mfu_of_choice(request, choice),
            **changes,
        )


def best_choice(request: SearchRequest) -> Choice | None:
    return next(iter(best_choices(request, search(request).candidates, 1)), None)


def mfu_of_choice(request: SearchRequest, choice: Choice) -> Estimate:
    layout = layout_of_choice(request, choice)
    lines = time_lines(layout)
    return mfu(layout, step_bounds(layout, lines, step_time(layout, lines)))


def full_recompute(request: SearchRequest) -> Iterator[Suggestion]:
    """The policy that keeps least, if another one was requested."""
    if request.experiment.remat not in ("auto", "full"):
        experiment = replace(request.experiment, remat="full")
        yield from suggestion(replace(request, experiment=experiment), "experiment.remat=full")


def other_batches(request: SearchRequest, replicas: Ints) -> Iterator[Suggestion]:
    """The next batch on either side, and the fastest one nearby."""
    batch = request.experiment.batch
    below = {int(batch.sequences // ways * ways) for ways in replicas} - {0}
    above = {int(-(-batch.sequences // ways) * ways) for ways in replicas}
    sizes = {*sorted(below)[-1:], *sorted(above)[:1]}
    if fastest := best_choice(with_batch(request, batch.sequences, max(NEAR, batch.tolerance))):
        sizes.add(fastest.sequences)
    for sequences in sorted(sizes):
        yield from suggestion(
            with_batch(request, sequences, 0.0),
            f"experiment.batch.sequences={sequences}",
            batch_change=sequences / batch.sequences - 1,
        )


def with_batch(request: SearchRequest, sequences: int, tolerance: float) -> SearchRequest:
    batch = replace(request.experiment.batch, sequences=sequences, tolerance=tolerance)
    return replace(request, experiment=replace(request.experiment, batch=batch))


def requested_axes(mesh: MeshRequest) -> dict[str, int]:
    """The axes whose sizes were requested."""
    return {axis: size for axis in ICI_AXES if (size := getattr(mesh, axis))}


def other_meshes(request: SearchRequest) -> list[Suggestion]:
    """The sizes of the same axes that are nearest to the requested ones, by ratio."""
    requested = requested_axes(request.mesh)
    columns = [ICI_AXES.index(axis) for axis in requested]
    model, length = request.experiment.model, request.experiment.batch.length
    factors = placements(request.torus, model, length, MeshRequest(), ANY_REPLICAS)
    sizes = np.unique(axis_sizes(factors)[:, columns], axis=0)
    distance = np.abs(np.log(sizes / np.array(list(requested.values())))).sum(axis=1)
    nearest = sizes[np.argsort(distance, kind="stable")[: 2 * MESHES]]
    suggestions: list[Suggestion] = []
    for row in nearest:
        mesh = dict(zip(requested, map(int, row), strict=True))
        if len(suggestions) < MESHES:
            overrides = [f"resources.mesh.{axis}={size}" for axis, size in mesh.items()]
            suggestions += suggestion(
                replace(request, mesh=replace(request.mesh, **mesh)), *overrides
            )
    return suggestions


def searched_mesh(request: SearchRequest) -> Iterator[Suggestion]:
    """The mesh that the search chooses on its own."""
    yield from suggestion(replace(request, mesh=MeshRequest()), "resources.mesh=auto")


def unshared_weights(request: SearchRequest) -> Iterator[Suggestion]:
    """Each slice with its own copy of the weights."""
    alone = dict.fromkeys(SHARED_OVER_DCN)
    overrides = [f"resources.mesh.{axis}=auto" for axis in alone]
    yield from suggestion(replace(request, mesh=replace(request.mesh, **alone)), *overrides)


def smaller_slices(request: SearchRequest) -> Iterator[Suggestion]:
    """The largest smaller slice on which the spec has a plan without other changes."""
    for topology in smaller_topologies(request):
        smaller = replace(request, topology=topology, torus=make_torus(request.chip, topology))
        idle = (request.topology.chips - topology.chips) * request.pods
        planned = list(suggestion(smaller, f"resources.topology={topology}", idle_chips=idle))
        if planned:
            yield from planned
            return


def smaller_topologies(request: SearchRequest) -> Iterator[Topology]:
    """Slices within the requested one that the chip has, the largest first."""
    ranges = [divisors(length) + list(range(4, length + 1, 4)) for length in request.topology.shape]
    shapes = {tuple(sorted(shape)) for shape in product(*ranges)}
    for shape in sorted(shapes, key=lambda shape: -prod(shape)):
        if prod(shape) < request.topology.chips:
            try:
                yield catalog.topology(request.chip, "x".join(map(str, shape)))
            except SpecError:
                continue  # the chip has no such slice
