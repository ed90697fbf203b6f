"""Why a spec has no plan: reasons with their arithmetic."""

import shlex
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import gcd, prod
from typing import Any

import numpy as np

from orchestrator import catalog
from orchestrator.catalog.chips import Chip
from orchestrator.errors import SpecError
from orchestrator.formatting import GIB, change_by, dollars, in_memory, lasting, percent, seconds
from orchestrator.network.decoder import split_sizes
from orchestrator.network.mesh_axes import COPIED, ICI_AXES, PADDED
from orchestrator.network.mlp import EXPERTS
from orchestrator.network.rematerialization import summary_of
from orchestrator.planning.feasibility import (
    batch_range,
    model_rules,
    realizable,
    sharing,
    sizes_by_name,
    usable_axes,
)
from orchestrator.planning.nearest_specs import all_meshes, nearest_specs, requested_axes
from orchestrator.planning.search import SearchRequest, SearchResult, multiple_of
from orchestrator.planning.spec_changes import state_bytes
from orchestrator.planning.step_work import host_limit_bytes
from orchestrator.planning.torus import Ints
from orchestrator.values.refusal import Reason, ReasonCode, Refusal, Suggestion
from orchestrator.values.spec import MeshRequest, Spec

# The text of an infeasible spec, from its reasons and suggestions.


SENTENCES: dict[ReasonCode, str] = {
    "stage": "stage {number} of {of} has none on these slices:",
    "memory": (
        "memory: each of {placements:,} placements needs {needed_gib:,.2f} GiB a device or more;"
        " {chip} has {usable_gib:,.2f} GiB"
    ),
    "host_memory": (
        "host: what is offloaded takes {needed_gib:,.2f} GiB a chip or more;"
        " hosts of {chip} have {usable_gib:,.2f} GiB a chip"
    ),
    "more_chips_needed": "a slice needs at least {times:.2f} times as many chips to hold the model",
    "largest_slice": (
        "no slice of {chip} has more than {most:,} chips; each slice holds the whole model, unless"
        " slices share weights (resources.mesh.fsdp_dcn)"
    ),
    "largest_domain": (
        "GPU clusters are not served yet: runs are launched on TPUs, and clusters of {chip} are"
        " planned only as NVLink domains of {most:,} GPUs that each hold the whole model or share"
        " weights over the network (resources.mesh.fsdp_dcn)"
    ),
    "dimension_not_divisible": "{name} {total:,} is not divisible by {ways}",
    "sequences_not_whole": (
        "{name} counts rows of whole sequences: without it, or with {ways} 1, there are meshes"
    ),
    "pods_not_divisible": "{pods:,} pods are not divisible by {axis} {ways:,}",
    "no_mesh": "no mesh of that many devices divides what its axes split",
    "beyond_all_chips": (
        "no chip of the catalog can serve: parameters and optimizer state take {needed_gib:,.0f}"
        " GiB, the largest slice that can be rented ({chips:,} {chip} chips) has {usable_gib:,.0f}"
        " GiB"
    ),
    "nothing_near": (
        "no other mesh, policy, batch, precision, slice or chip of the catalog that is near has a"
        " plan either"
    ),
}

FIRST = ("largest_domain",)  # what no other spec of that kind would mend is said first


def infeasible_text(refusal: Refusal) -> str:
    """The reasons, then the suggestions: lines to paste, each with what it leads to."""
    first = [one for one in refusal.reasons if one.code in FIRST]
    others = [one for one in refusal.reasons if one.code not in FIRST]
    lines = [*map(reason_text, first), "no realizable plan"]
    lines += [f"  {line}" for reason in others for line in reason_lines(reason)]
    if refusal.suggestions:
        lines += ["", "closest specs that work:"]
    for one in refusal.suggestions:
        lines += [f"  {options_text(one)}", f"    {effect_text(one)}"]
    return "\n".join(lines)


def reason_lines(reason: Reason) -> list[str]:
    """The lines of a reason: a sentence, or a table."""
    if reason.code == "slice_factors":
        return list(slice_lines(reason))
    return [reason_text(reason)]


def reason_text(reason: Reason) -> str:
    """The sentence of a reason."""
    figures: dict[str, Any] = dict(reason.figures)
    if reason.code == "batch_not_divisible":
        return batch_text(**figures)
    if reason.code == "requested_mesh":
        return f"mesh {sizes_text(figures)}"
    if reason.code == "mesh_size":
        ways, devices, topology = (figures.pop(key) for key in ("ways", "devices", "topology"))
        return (
            f"{sizes_text(figures)}: {ways:,} devices, against {devices:,} in a pod of {topology}"
        )
    gib = {
        key.replace("_bytes", "_gib"): float(figures[key]) / GIB
        for key in figures
        if key.endswith("_bytes")
    }
    return SENTENCES[reason.code].format(**figures, **gib)


def batch_text(
    sequences: int, tolerance: float, low: int, high: int, microbatches: int, divisor: int,
    multiples: str,
) -> str:  # fmt: skip
    size = f"{sequences:,}"
    if tolerance:
        size += f" (within {tolerance * 100:g} %: {low:,} to {high:,})"
    parts = "pods x data x fsdp" + " x microbatches" * (microbatches > 1)
    if sequences % divisor:
        return (
            f"the number of {parts} is a multiple of {divisor:,} in every mesh that divides these;"
            f" {size} sequences are not divisible by it"
        )
    return f"meshes split sequences in {multiples}... ways; {size} is not divisible by any"


def slice_lines(reason: Reason) -> Iterator[str]:
    """The prime factors of a slice's devices, and of the sizes that they have to divide."""
    figures = dict(reason.figures)
    pods, topology, devices = (figures.pop(key) for key in ("pods", "topology", "devices"))
    yield f"{pods} x {topology}: {devices:,} devices a pod = {factored(int(devices))}, to split:"
    for name, size in figures.items():
        yield f"  {name:10}{size:9,} = {factored(int(size))}"


def options_text(suggestion: Suggestion) -> str:
    """The overrides as options."""
    return " ".join(f"--set {shlex.quote(override)}" for override in suggestion.overrides)


def effect_text(suggestion: Suggestion) -> str:
    """What the plan takes and costs."""
    sequences = f"{suggestion.sequences:,} sequences"
    if suggestion.batch_change:
        sequences += f" ({change_by(1 + suggestion.batch_change)})"
    memory, usable = suggestion.memory_bytes_per_device, suggestion.hbm_bytes_per_device
    takes = (
        f"{suggestion.chips:,} {suggestion.chip} chips",
        sequences,
        f"remat {summary_of(suggestion.remat)}",
        f"{memory / GIB:.2f} of {in_memory(usable)}",
    )
    return f"{', '.join(takes)}; {cost_text(suggestion)}"


def cost_text(suggestion: Suggestion) -> str:
    """The step, MFU, time and dollars that are expected, or the bound where nothing is."""
    parts = [
        f"{seconds(suggestion.step_s.likeliest)} a step",
        f"MFU {percent(suggestion.mfu.likeliest)}",
        lasting(suggestion.days.likeliest),
    ]
    if suggestion.dollars is not None:
        parts.append(dollars(suggestion.dollars.likeliest))
    return f"{', '.join(parts)} {'at best' if suggestion.step_s.expected is None else 'expected'}"


def sizes_text(sizes: Mapping[str, object]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())


def factored(number: int) -> str:
    """A number as the product of its primes: 8,960 = 2^8 x 5 x 7."""
    parts, left, prime = [], number, 2
    while left > 1:
        power = 0
        while left % prime == 0:
            left, power = left // prime, power + 1
        if power:
            parts.append(f"{prime}^{power}" if power > 1 else str(prime))
        prime += 1
    return " x ".join(parts) or "1"


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
