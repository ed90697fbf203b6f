"""Why a spec has no plan: reasons with their arithmetic, and specs near it that have one."""

import shlex
from collections.abc import Iterator
from math import gcd, prod

import numpy as np

from orchestrator import catalog
from orchestrator import formatting as fmt
from orchestrator.catalog.chips import Chip
from orchestrator.errors import SpecError
from orchestrator.network.decoder import split_sizes
from orchestrator.network.mesh_axes import COPIED, ICI_AXES, PADDED, ways
from orchestrator.network.mlp import EXPERTS
from orchestrator.network.rematerialization import AUTO, policy, summary_of
from orchestrator.notes import sentence, sentences
from orchestrator.planning import feasibility, flops
from orchestrator.planning.nearest_specs import (
    all_meshes,
    nearest_specs,
    requested_axes,
    state_bytes,
)
from orchestrator.planning.search import (
    FreePolicy,
    SearchRequest,
    SearchResult,
    every_mesh,
    make_layout,
    multiple_of,
)
from orchestrator.planning.step_work import host_limit_bytes
from orchestrator.planning.torus import NO_LINKS
from orchestrator.values.plan import Reason, ReasonCode, Suggestion
from orchestrator.values.spec import MeshRequest, Spec

_TEXTS = {
    "stage": "stage {number} of {of} has none on these slices:",
    "pods_not_divisible": "{pods:,} pods are not divisible by {axis} {ways:,}",
    "memory": (
        "memory: each of {placements:,} placements needs {needed_bytes:GiB} a device or more;"
        " {chip} has {usable_bytes:GiB}"
    ),
    "host_memory": (
        "host: what is offloaded takes {needed_bytes:GiB} per chip or more; hosts of {chip} have"
        " {usable_bytes:GiB} a chip"
    ),
    "more_chips_needed": (
        "a slice needs at least {times:.2f} times as many chips to hold the model"
    ),
    "model_not_divisible": (
        "more chips do not help: a mesh of {devices:,} devices splits the model {ways:,}-fold at"
        " most"
    ),
    "largest_slice": (
        "no slice of {chip} has more than {most:,} chips; each slice holds the whole model, unless"
        " slices share weights (resources.mesh.fsdp_dcn)"
    ),
    "largest_domain": (
        "a slice of {chip} is one NVLink domain, of {most:,} GPUs at most: several of them share"
        " the model by axes of resources.mesh that end in _dcn, which mesh: auto searches"
    ),
    "nothing_near": (
        "no other mesh, policy, batch, precision, slice or chip of the catalog that is near has a"
        " plan either"
    ),
    "beyond_all_chips": (
        "no chip of the catalog can serve: parameters and optimizer state take"
        " {needed_bytes:whole GiB}, the largest slice that can be rented ({chips:,} {chip} chips)"
        " has {usable_bytes:whole GiB}"
    ),
    "dimension_not_divisible": "{name} {total:,} is not divisible by {ways}",
    "no_mixture": "{ways} split the experts of a mixture, and this model is dense: leave them out",
    "sequences_not_whole": (
        "{name} counts rows of whole sequences: without it, or with {ways} 1, there are meshes"
    ),
    "too_few_layers": (
        "{name}: each stage of a pipeline has whole repeats of the model's pattern of layers, which"
        " has {total:,}: {ways} may not be more"
    ),
    "no_pattern": (
        "{name}: the stages of a pipeline repeat one pattern of layers, and this model does not:"
        " without {ways} there are meshes"
    ),
    "pipeline_offloads": (
        "a pipeline keeps nothing on the host, and experiment.remat offloads: choose a policy that"
        " does not, or auto"
    ),
    "no_mesh": "no mesh of that many devices divides what its axes split",
}
sentences(Reason, _TEXTS, fmt.fill)


def _reason(code: ReasonCode, **figures: int | float | str) -> Reason:
    return Reason(code=code, figures=figures)


class Infeasible(SpecError):
    """No plan satisfies a spec: the reasons, and on request specs near it that have a plan."""

    is_prose = True

    def __init__(self, spec: Spec, reasons: tuple[Reason, ...], *, suggests: bool = True) -> None:
        super().__init__(spec, reasons)
        self.spec, self.reasons, self.suggests = spec, reasons, suggests
        self._nearest: tuple[Suggestion, ...] | None = None if suggests else ()

    def of_stage(self, number: int, count: int) -> "Infeasible":
        """Return the error of a stage. It suggests nothing: that would have to suit all stages."""
        stage = _reason("stage", number=number, of=count)
        return Infeasible(self.spec, (stage, *self.reasons), suggests=False)

    @property
    def message(self) -> str:
        return _infeasible_text(self.reasons, ())

    def suggestions(self) -> tuple[Suggestion, ...]:
        """Return the nearest specs that have a plan; the first call plans them, in a second."""
        if self._nearest is None:
            codes = {reason.code for reason in self.reasons}
            self._nearest = nearest_specs(
                self.spec, lacks_memory=bool(codes & {"memory", "host_memory"}),
                is_whole="model_not_divisible" in codes,
            )  # fmt: skip
        return self._nearest

    def all_reasons(self) -> tuple[Reason, ...]:
        """Return the reasons, and where there are no suggestions the reason for that."""
        if not self.suggests or self.suggestions():
            return self.reasons

        # No slice has that much memory, or other rules forbid.
        def slice_bytes(chip: Chip) -> float:
            return prod(chip.largest_slice) * chip.devices * chip.hbm_usable_bytes.value

        needed = state_bytes(self.spec.experiment)
        roomiest = max(map(catalog.chip, catalog.chips()), key=slice_bytes)
        if needed <= slice_bytes(roomiest):
            return (*self.reasons, _reason("nothing_near"))
        most = int(roomiest.pod_chips.value)
        memory = {"needed_bytes": needed, "usable_bytes": slice_bytes(roomiest)}
        beyond = _reason("beyond_all_chips", chip=roomiest.name, chips=most, **memory)
        return (*self.reasons, beyond)

    def full_text(self) -> str:
        following = f"\n\nNext: {self.next_command}" if self.next_command else ""
        return _infeasible_text(self.all_reasons(), self.suggestions()) + following


def _infeasible_text(reasons: tuple[Reason, ...], suggestions: tuple[Suggestion, ...]) -> str:
    """Return the reasons, then the suggestions: lines to paste, each with what it leads to."""
    # What no other spec of that kind would mend comes first.
    lines = [reason.text for reason in reasons if reason.code == "largest_domain"]
    lines.append("no realizable plan")
    for reason in reasons:
        if reason.code != "largest_domain":
            lines += [f"  {line}" for line in reason.text.splitlines()]
    if suggestions:
        lines += ["", "closest specs that work:"]
    for nearest in suggestions:
        options = " ".join(f"--set {shlex.quote(override)}" for override in nearest.overrides)
        sequences = fmt.counted(nearest.sequences, "sequence")
        if nearest.batch_change:
            sequences += f" ({fmt.change_by(1 + nearest.batch_change)})"
        # Time and dollars of the plan: the expected ones, or the bound where none is expected.
        memory = nearest.memory_bytes_per_device / fmt.GIB
        takes = f"{nearest.chips:,} {nearest.chip} chips, {sequences}"
        takes += f", remat {summary_of(nearest.remat)}"
        takes += f", {memory:.2f} of {fmt.in_memory(nearest.hbm_bytes_per_device)}"
        costs = f"{fmt.seconds(nearest.step_s.likeliest)} a step"
        costs += f", MFU {fmt.percent(nearest.mfu.likeliest)}"
        costs += f", {fmt.lasting(nearest.days.likeliest)}"
        if nearest.dollars is not None:
            costs += f", {fmt.dollars(nearest.dollars.likeliest)}"
        known = "at best" if nearest.step_s.expected is None else "expected"
        lines += [f"  {options}", f"    {takes}; {costs} {known}"]
    return "\n".join(lines)


def infeasible(spec: Spec, request: SearchRequest, result: SearchResult) -> Infeasible:
    shared = {axis: ways for axis, ways in feasibility.sharing(request.mesh).items() if ways > 1}
    reasons = []
    if request.pods % (slices := prod(shared.values())):
        axes = " x ".join(shared)
        reasons.append(_reason("pods_not_divisible", pods=request.pods, axis=axes, ways=slices))
    if not reasons:
        found = _memory_reasons(request, result) if result.realizable else _mesh_reasons(request)
        reasons = list(found)
    return Infeasible(spec, tuple(reasons))


def _memory_reasons(request: SearchRequest, result: SearchResult) -> Iterator[Reason]:
    """Yield why every placement needs more memory than a device has, or its host."""
    chip, needed, remat = request.chip, result.smallest_bytes, request.experiment.remat
    batch = request.experiment.batch
    if not np.isfinite(needed):  # every mesh has a pipeline, and none of these can run
        if remat != AUTO and policy(remat).needs_host:
            yield _reason("pipeline_offloads")
            return
        # The mesh that lacks the fewest microbatches, each of a sequence at least.
        named = feasibility.sizes_by_name(every_mesh(request)[1])
        stages, multiples = ways(named, "layers"), multiple_of(request, named)
        each = np.max(feasibility.batches_next_to(batch, multiples), axis=0) // multiples
        passes = np.full_like(each, batch.microbatches) if batch.microbatches else each
        nearest = int(np.argmax(passes / stages))
        yield _microbatch_groups(
            chunks=request.mesh.pipeline_chunks or 1, stages=int(stages[nearest]),
            sequences=batch.sequences, microbatches=int(passes[nearest]),
        )  # fmt: skip
        return
    usable, most = chip.hbm_usable_bytes.value, int(chip.pod_chips.value)
    if needed <= usable:
        host = {"needed_bytes": result.smallest_host_bytes, "usable_bytes": host_limit_bytes(chip)}
        yield _reason("host_memory", **host, chip=chip.name)
        return
    memory = {"needed_bytes": needed, "usable_bytes": usable}
    yield _reason("memory", placements=result.realizable, **memory, chip=chip.name)
    # The most ways in which any mesh of these devices splits the model.
    meshes = feasibility.sizes_by_name(all_meshes(request, MeshRequest()))
    rows = make_layout(request, meshes, batch.sequences, 1, FreePolicy(), NO_LINKS)
    parameters = flops.parameters(request.experiment.model)
    split = float(np.max(parameters / rows.stored_parameter_elements, initial=1.0))
    is_whole = 2 * split < request.torus.devices and not chip.switched
    if is_whole and state_bytes(request.experiment) > split * usable:
        yield _reason("model_not_divisible", ways=round(split), devices=request.torus.devices)
        yield _factors(request)
    elif request.topology.chips * needed <= most * usable:
        yield _reason("more_chips_needed", times=needed / usable)
    else:
        code: ReasonCode = "largest_domain" if chip.switched else "largest_slice"
        yield _reason(code, chip=chip.name, most=most)


@sentence(Reason)
def _microbatch_groups(chunks: int, stages: int, sequences: int, microbatches: int) -> str:
    needs = f"{stages:,} microbatches or more"
    if chunks > 1:
        needs = f"{chunks} chunks of layers in each, and a multiple of {stages:,} microbatches"
    return (
        f"a mesh of these devices needs a pipeline of {stages:,} stages, with {needs};"
        f" of {fmt.counted(sequences, 'sequence')} each pipeline gets {microbatches:,}"
    )


@sentence(Reason)
def _batch_not_divisible(
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


def _factors(request: SearchRequest) -> Reason:
    """Return the devices of a slice, and the sizes that they have to divide."""
    model, batch = request.experiment.model, request.experiment.batch
    hidden = (COPIED, PADDED) if model.moe else (COPIED, PADDED, EXPERTS)
    divided = {key: size for axis, key, size in split_sizes(model) if axis not in hidden}
    return _slice_factors(
        pods=request.pods, topology=str(request.topology), devices=request.torus.devices,
        **divided, length=batch.length, sequences=batch.sequences,
    )  # fmt: skip


@sentence(Reason)
def _slice_factors(pods: int, topology: str, devices: int, **divided: int) -> str:
    head = f"{pods} x {topology}: {devices:,} devices a pod = {factored(devices)}, to split:"
    rows = [f"  {name:10}{size:9,} = {factored(size)}" for name, size in divided.items()]
    return "\n".join([head, *rows])


def factored(number: int) -> str:
    """Return a number as the product of its primes: 8,960 = 2^8 x 5 x 7."""
    parts, left, prime = [], number, 2
    while left > 1:
        power = 0
        while left % prime == 0:
            left, power = left // prime, power + 1
        if power:
            parts.append(f"{prime}^{power}" if power > 1 else str(prime))
        prime += 1
    return " x ".join(parts) or "1"


def _mesh_reasons(request: SearchRequest) -> Iterator[Reason]:
    """Yield why no mesh of a slice suits the model, the batch and the requested axes."""
    model, batch, devices = (
        request.experiment.model,
        request.experiment.batch,
        request.torus.devices,
    )
    topology, sizes = str(request.topology), requested_axes(request.mesh)
    factors = _factors(request)
    meshes = all_meshes(request, request.mesh)
    if len(meshes):
        # None of them divides a batch within the tolerance.
        multiples = np.unique(multiple_of(request, feasibility.sizes_by_name(meshes))).tolist()
        low, high = feasibility.batch_range(batch)
        yield factors
        yield _batch_not_divisible(
            sequences=batch.sequences,
            tolerance=batch.tolerance,
            low=low,
            high=high,
            microbatches=batch.microbatches or 1,
            divisor=gcd(*multiples),
            multiples=", ".join(f"{multiple:,}" for multiple in multiples[:8]),
        )
        return
    broken = []
    if len(all_meshes(request, MeshRequest())):
        # The rules that the requested mesh breaks.
        shared = feasibility.sharing(request.mesh).items()
        yield _requested_mesh(**{axis: parts for axis, parts in shared if parts > 1}, **sizes)
        row = [[sizes.get(axis, 1) for axis in ICI_AXES]]
        by_name = feasibility.sizes_by_name(np.array(row, np.int64))
        broken += [
            _reason(rule.code, name=rule.name, total=rule.total, ways=rule.ways)
            for rule in feasibility.model_rules(model, batch.length)
            if not feasibility.realizable([rule], request.mesh, by_name)[0]
        ]
        product = prod(sizes.values())
        every_axis = len(sizes) >= len(feasibility.usable_axes(model))
        if devices % product or (every_axis and devices != product):
            broken.append(_mesh_size(ways=product, devices=devices, topology=topology, **sizes))
    yield from broken or [factors, _reason("no_mesh")]


def _sizes_text(sizes: dict[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())


@sentence(Reason)
def _requested_mesh(**sizes: int) -> str:
    return f"mesh {_sizes_text(sizes)}"


@sentence(Reason)
def _mesh_size(ways: int, devices: int, topology: str, **sizes: int) -> str:
    against = "which do not divide the" if devices % ways else "against"
    return f"{_sizes_text(sizes)}: {ways:,} devices, {against} {devices:,} in a pod of {topology}"
