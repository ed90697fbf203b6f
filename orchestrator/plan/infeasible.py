"""Why a spec has no plan: reasons with their arithmetic."""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, prod

import numpy as np

from orchestrator.errors import SpecError
from orchestrator.network.decoder import MODEL_KEYS
from orchestrator.network.mesh_axes import ICI_AXES
from orchestrator.plan.feasibility import (
    batch_range,
    model_rules,
    placements,
    realizable,
    replicas_in_pod,
    sharing,
    sizes_by_name,
)
from orchestrator.plan.infeasible_text import infeasible_text
from orchestrator.plan.nearest_specs import (
    ANY_REPLICAS,
    full_recompute,
    other_batches,
    other_meshes,
    requested_axes,
    searched_mesh,
    smaller_slices,
    unshared_weights,
)
from orchestrator.plan.search import SearchRequest, SearchResult
from orchestrator.plan.torus import Ints, axis_sizes
from orchestrator.types.infeasible import Reason, ReasonCode, Suggestion
from orchestrator.types.spec import MeshRequest


class Infeasible(SpecError):
    """No plan: the reasons, and specs near the requested one that have a plan."""

    is_prose = True

    def __init__(self, reasons: tuple[Reason, ...], suggestions: tuple[Suggestion, ...]) -> None:
        self.reasons, self.suggestions = reasons, suggestions
        super().__init__(infeasible_text(reasons, suggestions))


def infeasible(request: SearchRequest, result: SearchResult) -> Infeasible:
    """The error for a search without a result."""
    if undivided := tuple(undivided_pods(request)):
        return Infeasible(undivided, tuple(unshared_weights(request)))
    if result.realizable:
        return memory_too_small(request, result)
    meshes = all_meshes(request)
    if len(meshes):
        return batch_not_divisible(request, meshes)
    if len(all_meshes(replace(request, mesh=MeshRequest()))):
        return mesh_not_realizable(request)
    return Infeasible((slice_factors(request), reason("no_mesh")), tuple(smaller_slices(request)))


def reason(code: ReasonCode, **figures: int | float | str) -> Reason:
    return Reason(code=code, figures=figures)


def undivided_pods(request: SearchRequest) -> Iterator[Reason]:
    """Slices cannot share weights in groups of that size."""
    for axis, ways in sharing(request.mesh).items():
        if request.pods % ways:
            yield reason("pods_not_divisible", pods=request.pods, axis=axis, ways=ways)


def all_meshes(request: SearchRequest) -> Ints:
    """Meshes that the model and the requested sizes allow, whatever the batch."""
    model, length = request.experiment.model, request.experiment.batch.length
    factors = placements(request.torus, model, length, request.mesh, ANY_REPLICAS)
    return np.unique(axis_sizes(factors), axis=0)


def memory_too_small(request: SearchRequest, result: SearchResult) -> Infeasible:
    """Every placement needs more memory than a device has."""
    usable, needed = request.chip.hbm_usable_bytes.value, result.smallest_bytes
    reasons = [
        reason("memory", placements=result.realizable, needed_bytes=needed,
               usable_bytes=usable, chip=request.chip.name),
    ]  # fmt: skip
    if needed > usable:
        reasons.append(reason("more_chips_needed", times=int(np.ceil(needed / usable))))
    return Infeasible(tuple(reasons), tuple(full_recompute(request)))


def batch_not_divisible(request: SearchRequest, meshes: Ints) -> Infeasible:
    """No mesh divides a batch within the tolerance."""
    batch = request.experiment.batch
    replicas = np.unique(request.pods * replicas_in_pod(sizes_by_name(meshes)))
    low, high = batch_range(batch)
    not_divisible = reason(
        "batch_not_divisible",
        sequences=batch.sequences,
        tolerance=batch.tolerance,
        low=low,
        high=high,
        divisor=gcd(*map(int, replicas)),
        ways=", ".join(f"{ways:,}" for ways in replicas[:8]),
    )
    suggestions = (*other_batches(request, replicas), *smaller_slices(request))
    return Infeasible((slice_factors(request), not_divisible), suggestions)


def slice_factors(request: SearchRequest) -> Reason:
    """The devices of a slice, and the sizes that they have to divide."""
    model, batch = request.experiment.model, request.experiment.batch
    keys = [key for key in MODEL_KEYS.values() if key != "kv_heads"]
    sizes = {key: getattr(model, key) for key in keys}
    return reason(
        "slice_factors",
        pods=request.pods,
        topology=str(request.topology),
        devices=request.torus.devices,
        **sizes,
        length=batch.length,
        sequences=batch.sequences,
    )


def mesh_not_realizable(request: SearchRequest) -> Infeasible:
    """The requested mesh breaks rules: a reason for each."""
    sizes = requested_axes(request.mesh)
    broken = [*broken_rules(request), *wrong_size(request, sizes)]
    reasons = broken or [slice_factors(request), reason("no_mesh")]
    suggestions = (*other_meshes(request), *searched_mesh(request))
    return Infeasible((reason("requested_mesh", **sizes), *reasons), suggestions)


def broken_rules(request: SearchRequest) -> Iterator[Reason]:
    """Dimensions that the requested sizes do not divide."""
    row = [[getattr(request.mesh, axis) or 1 for axis in ICI_AXES]]
    sizes = sizes_by_name(np.array(row, np.int64))
    for rule in model_rules(request.experiment.model, request.experiment.batch.length):
        if not realizable([rule], request.mesh, sizes)[0]:
            yield reason(
                "dimension_not_divisible", name=rule.name, total=rule.total, ways=rule.ways
            )


def wrong_size(request: SearchRequest, sizes: dict[str, int]) -> Iterator[Reason]:
    """Requested sizes whose product does not divide the devices of a pod."""
    devices, ways = request.torus.devices, prod(sizes.values())
    if devices % ways or (len(sizes) == len(ICI_AXES) and devices != ways):
        topology = str(request.topology)
        yield reason("mesh_size", ways=ways, devices=devices, topology=topology, **sizes)
