"""The text of an infeasible spec, from its reasons and suggestions."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.formatting import GIB, change_by, dollars, in_memory, lasting, percent, seconds
from orchestrator.network.rematerialization import summary_of
from orchestrator.types.refusal import Reason, ReasonCode, Refusal, Suggestion

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
