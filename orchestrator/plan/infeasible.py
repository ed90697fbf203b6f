"""Why a spec has no plan: reasons with their arithmetic."""

from collections.abc import Iterator
from functools import cached_property
from math import gcd, prod

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.chip import Chip
from orchestrator.errors import SpecError
from orchestrator.network.decoder import split_sizes
from orchestrator.network.mesh_axes import COPIED, ICI_AXES, PADDED
from orchestrator.network.mixture import EXPERTS
from orchestrator.plan.feasibility import (
    batch_range,
    model_rules,
    realizable,
    sharing,
    sizes_by_name,
    usable_axes,
)
from orchestrator.plan.host import host_limit_bytes
from orchestrator.plan.infeasible_text import infeasible_text
from orchestrator.plan.nearest_specs import all_meshes, nearest_specs, requested_axes
from orchestrator.plan.search import SearchRequest, SearchResult, multiple_of
from orchestrator.plan.spec_changes import state_bytes
from orchestrator.plan.torus import Ints
from orchestrator.types.refusal import Reason, ReasonCode, Refusal
from orchestrator.types.spec import MeshRequest, Spec

LACKING: tuple[ReasonCode, ...] = ("memory", "host_memory")


class Infeasible(SpecError):
    """No plan: the reasons, and specs near the requested one that have a plan.

    Suggestions take a second or two of planning; nobody waits for them who does not read them.
    """

    is_prose = True

    def __init__(self, spec: Spec, reasons: tuple[Reason, ...], *, suggests: bool = True) -> None:
        super().__init__(spec, reasons)
        self.spec, self.reasons, self.suggests = spec, reasons, suggests

    def of_stage(self, number: int, of: int) -> "Infeasible":
        """The same for a stage. Nothing near is suggested: it would have to suit all stages."""
        return Infeasible(
            self.spec, (reason("stage", number=number, of=of), *self.reasons), suggests=False
        )

    def __str__(self) -> str:
        following = f"\n\nNext: {self.next_command}" if self.next_command else ""
        return infeasible_text(self.refusal) + following

    @property
    def message(self) -> str:
        """The text without suggestions."""
        return infeasible_text(Refusal(reasons=self.reasons, suggestions=()))

    @cached_property
    def refusal(self) -> Refusal:
        """The reasons with suggestions, or with the reason why there are none."""
        if not self.suggests:
            return Refusal(reasons=self.reasons, suggestions=())
        lacks_memory = any(one.code in LACKING for one in self.reasons)
        suggestions = nearest_specs(self.spec, lacks_memory=lacks_memory)
        reasons = self.reasons if suggestions else (*self.reasons, nothing_near(self.spec))
        return Refusal(reasons=reasons, suggestions=suggestions)


def infeasible(spec: Spec, request: SearchRequest, result: SearchResult) -> Infeasible:
    """The error for a search without a result."""
    return Infeasible(spec, reasons_of(request, result))


def reasons_of(request: SearchRequest, result: SearchResult) -> tuple[Reason, ...]:
    """Why a search has no result."""
    if undivided := tuple(undivided_pods(request)):
        return undivided
    if result.realizable:
        return memory_too_small(request, result)
    meshes = all_meshes(request, request.mesh)
    if len(meshes):
        return batch_not_divisible(request, meshes)
    if len(all_meshes(request, MeshRequest())):
        return mesh_not_realizable(request)
    return slice_factors(request), reason("no_mesh")


def reason(code: ReasonCode, **figures: int | float | str) -> Reason:
    return Reason(code=code, figures=figures)


def undivided_pods(request: SearchRequest) -> Iterator[Reason]:
    """Slices cannot share weights in groups of that size."""
    for axis, ways in sharing(request.mesh).items():
        if request.pods % ways:
            yield reason("pods_not_divisible", pods=request.pods, axis=axis, ways=ways)


def memory_too_small(request: SearchRequest, result: SearchResult) -> tuple[Reason, ...]:
    """Every placement needs more memory than a device has, or its host."""
    chip, needed = request.chip, result.smallest_bytes
    usable = chip.hbm_usable_bytes.value
    if needed <= usable:
        return (host_too_small(request, result),)
    lacking = reason(
        "memory",
        placements=result.realizable,
        needed_bytes=needed,
        usable_bytes=usable,
        chip=chip.name,
    )
    if request.topology.chips * needed <= chip.pod_chips.value * usable:
        return lacking, reason("more_chips_needed", times=needed / usable)
    code: ReasonCode = "largest_domain" if chip.switched else "largest_slice"
    return lacking, reason(code, chip=chip.name, most=int(chip.pod_chips.value))


def host_too_small(request: SearchRequest, result: SearchResult) -> Reason:
    """Every placement that fits HBM offloads more than its hosts hold."""
    return reason("host_memory", needed_bytes=result.smallest_host_bytes,
                  usable_bytes=host_limit_bytes(request.chip), chip=request.chip.name)  # fmt: skip


def nothing_near(spec: Spec) -> Reason:
    """Why there is no suggestion: no chip has slices of that much memory, or other rules forbid."""
    needed = state_bytes(spec.experiment)
    pods = {name: memory_of_largest_pod(catalog.chip(name)) for name in catalog.chips()}
    roomiest = max(pods, key=lambda name: pods[name])
    if needed <= pods[roomiest]:
        return reason("nothing_near")
    chips = int(catalog.chip(roomiest).pod_chips.value)
    figures = {"needed_bytes": needed, "usable_bytes": pods[roomiest]}
    return reason("beyond_all_chips", chip=roomiest, chips=chips, **figures)


def memory_of_largest_pod(chip: Chip) -> float:
    """What programs may use of all devices of the largest slice that may be rented."""
    return prod(chip.largest_slice) * chip.devices * chip.hbm_usable_bytes.value


def batch_not_divisible(request: SearchRequest, meshes: Ints) -> tuple[Reason, ...]:
    """No mesh divides a batch within the tolerance."""
    batch = request.experiment.batch
    multiples = np.unique(multiple_of(request, sizes_by_name(meshes)))
    low, high = batch_range(batch)
    not_divisible = reason(
        "batch_not_divisible",
        sequences=batch.sequences,
        tolerance=batch.tolerance,
        low=low,
        high=high,
        microbatches=batch.microbatches or 1,
        divisor=gcd(*map(int, multiples)),
        multiples=", ".join(f"{one:,}" for one in multiples[:8]),
    )
    return slice_factors(request), not_divisible


def slice_factors(request: SearchRequest) -> Reason:
    """The devices of a slice, and the sizes that they have to divide."""
    model, batch = request.experiment.model, request.experiment.batch
    hidden = (COPIED, PADDED) if model.moe else (COPIED, PADDED, EXPERTS)
    divided = {key: size for axis, key, size in split_sizes(model) if axis not in hidden}
    return reason(
        "slice_factors",
        pods=request.pods,
        topology=str(request.topology),
        devices=request.torus.devices,
        **divided,
        length=batch.length,
        sequences=batch.sequences,
    )


def mesh_not_realizable(request: SearchRequest) -> tuple[Reason, ...]:
    """The requested mesh breaks rules: a reason for each."""
    sizes = requested_axes(request.mesh)
    broken = [*broken_rules(request), *wrong_size(request, sizes)]
    reasons = broken or [slice_factors(request), reason("no_mesh")]
    return (reason("requested_mesh", **sizes), *reasons)


def broken_rules(request: SearchRequest) -> Iterator[Reason]:
    """Dimensions that the requested sizes do not divide."""
    row = [[getattr(request.mesh, axis) or 1 for axis in ICI_AXES]]
    sizes = sizes_by_name(np.array(row, np.int64))
    for rule in model_rules(request.experiment.model, request.experiment.batch.length):
        if not realizable([rule], request.mesh, sizes)[0]:
            yield reason(rule.code, name=rule.name, total=rule.total, ways=rule.ways)


def wrong_size(request: SearchRequest, sizes: dict[str, int]) -> Iterator[Reason]:
    """Requested sizes whose product does not divide the devices of a pod."""
    devices, ways = request.torus.devices, prod(sizes.values())
    if devices % ways or (
        len(sizes) >= len(usable_axes(request.experiment.model)) and devices != ways
    ):
        topology = str(request.topology)
        yield reason("mesh_size", ways=ways, devices=devices, topology=topology, **sizes)
