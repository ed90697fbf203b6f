"""A chip profile as one screen."""

from collections.abc import Iterator

from orchestrator.render.formatting import percent, seconds, with_unit
from orchestrator.render.layout import columns, indent, title
from orchestrator.types import codec
from orchestrator.types.chip_profile import ChipProfile, Operation, Timing

RATES: dict[Operation, str] = {
    "matmul": "FLOP/s",
    "attention": "FLOP/s",
    "elementwise": "B/s",
    "copy": "B/s",
}


def calibration_screen(profile: ChipProfile, path: str, next_command: str) -> str:
    """The rate of each operation, the seconds of each collective, and where the profile is."""
    machine = profile.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    what = f"{machine.device_kind}: {machine.cores} cores of {machine.processor}"
    alone = [timing for timing in profile.timings if timing.benchmark.operation in RATES]
    collectives = [timing for timing in profile.timings if timing not in alone]
    blocks = [
        [title(what, f"profile {codec.short(codec.digest(profile))}")],
        [f"  measured on {profile.measured_on} with {versions}"],
        indent(table(("", "type", "processes", "devices", "small", "large", "spread"),
                     map(rates, alone))),
        indent(table(("", "type", "processes", "devices", "groups of", "small", "large", "spread"),
                     map(times, collectives))),
        [f"stored in {path}", f"Next: {next_command}"],
    ]  # fmt: skip
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> list[str]:
    body = list(rows)
    return columns([head, *body], "<<" + ">" * (len(head) - 2)) if body else []


def rates(timing: Timing) -> tuple[str, ...]:
    """All devices' rate for the smallest and for the largest amount."""
    benchmark = timing.benchmark
    unit = RATES[benchmark.operation]
    name = f"{benchmark.operation}, head_dim {benchmark.head_dim}"
    ends = timing.points[0], timing.points[-1]
    return (
        name if benchmark.head_dim else benchmark.operation,
        benchmark.dtype,
        str(benchmark.processes),
        str(benchmark.devices),
        *(with_unit(amount * benchmark.devices / taken_s, unit) for amount, taken_s in ends),
        percent(timing.spread),
    )


def times(timing: Timing) -> tuple[str, ...]:
    """Seconds of the smallest and of the largest, in all groups at once."""
    benchmark = timing.benchmark
    apart = f", {benchmark.stride} apart" if benchmark.stride > 1 else ""
    ends = timing.points[0], timing.points[-1]
    return (
        benchmark.operation,
        benchmark.dtype,
        str(benchmark.processes),
        str(benchmark.devices),
        f"{benchmark.group}{apart}",
        *(f"{seconds(taken_s)} of {with_unit(amount, 'B')}" for amount, taken_s in ends),
        percent(timing.spread),
    )
