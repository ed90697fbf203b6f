"""The text of an infeasible spec, from its reasons and suggestions."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestrator.types.infeasible import Reason, ReasonCode, Suggestion
from orchestrator.types.plan import Estimate

GIB = 2**30
SENTENCES: dict[ReasonCode, str] = {
    "memory": (
        "memory: each of {placements:,} placements needs {needed_gib:,.2f} GiB a device or more;"
        " {chip} has {usable_gib:,.2f} GiB"
    ),
    "more_chips_needed": "this needs at least {times} times the chips, or a smaller model",
    "dimension_not_divisible": "{name} {total:,} is not divisible by {ways}",
    "pods_not_divisible": "{pods:,} pods are not divisible by {axis} {ways:,}",
    "no_mesh": "no mesh of that many devices divides what its axes split",
}


def infeasible_text(reasons: Iterable[Reason], suggestions: Iterable[Suggestion]) -> str:
    lines = ["no realizable plan"]
    lines += [f"  {line}" for reason in reasons for line in reason_lines(reason)]
    offers = [f"  {suggestion_text(one)}" for one in suggestions]
    if offers:
        lines += ["", "closest specs that work:", *offers]
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
    sequences: int, tolerance: float, low: int, high: int, divisor: int, ways: str
) -> str:
    size = f"{sequences:,}"
    if tolerance:
        size += f" (within {tolerance:.0%}: {low:,} to {high:,})"
    if sequences % divisor:
        return (
            f"pods x data x fsdp is a multiple of {divisor:,} in every mesh that divides these;"
            f" {size} sequences are not divisible by it"
        )
    return f"meshes split sequences in {ways}... ways; {size} is not divisible by any"


def slice_lines(reason: Reason) -> Iterator[str]:
    """The prime factors of a slice's devices, and of the sizes that they have to divide."""
    figures = dict(reason.figures)
    pods, topology, devices = (figures.pop(key) for key in ("pods", "topology", "devices"))
    yield f"{pods} x {topology}: {devices:,} devices a pod = {factored(int(devices))}, to split:"
    for name, size in figures.items():
        yield f"  {name:10}{size:9,} = {factored(int(size))}"


def suggestion_text(suggestion: Suggestion) -> str:
    """The overrides as options, and what they lead to."""
    options = " ".join(f"--set {override}" for override in suggestion.overrides)
    return f"{options}  ({effect_text(suggestion)})"


def effect_text(suggestion: Suggestion) -> str:
    if suggestion.idle_chips is not None:
        return f"{suggestion.chips:,} chips, {suggestion.idle_chips:,} left idle"
    parts = [mfu_text(suggestion.mfu), f"mesh {sizes_text(suggestion.mesh)}"]
    if suggestion.batch_change is not None:
        parts.insert(0, f"{suggestion.batch_change:+.1%}")
    return "; ".join(parts)


def mfu_text(mfu: Estimate) -> str:
    """The expected MFU; the bound where there is no estimate."""
    if mfu.expected is None:
        return f"MFU {mfu.lower:.1%} at most"
    return f"MFU {mfu.expected:.1%} expected"


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
