"""Show a chip profile: the rate of each operation and the time of each collective."""

from collections.abc import Iterable

from orchestrator.render.formatting import percent, seconds, with_unit
from orchestrator.render.screen_parts import (
    Command,
    Part,
    Screen,
    Table,
    Title,
    indent,
    next_step,
    screen,
)
from orchestrator.types import codec
from orchestrator.types.chip_profile import ChipProfile, Operation, Timing

RATES: dict[Operation, str] = {
    "matmul": "FLOP/s",
    "attention": "FLOP/s",
    "elementwise": "B/s",
    "copy": "B/s",
}
HEAD = ("", "type", "processes", "devices", "small", "large", "spread")
COLLECTIVES_HEAD = ("", "type", "processes", "devices", "groups of", "small", "large", "spread")


def calibration_screen(profile: ChipProfile, path: str, next_command: str) -> Screen:
    """Return the rate of each operation, the seconds of each collective, and the profile's path."""
    machine = profile.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    what = f"{machine.device_kind}: {machine.cores} cores of {machine.processor}"
    alone = [timing for timing in profile.timings if timing.benchmark.operation in RATES]
    collectives = [timing for timing in profile.timings if timing not in alone]
    return screen(
        [Title(left=what, right=f"profile {codec.short(codec.digest(profile))}")],
        [f"  measured on {profile.measured_on} with {versions}"],
        indent(table(HEAD, map(rate_row, alone))),
        indent(table(COLLECTIVES_HEAD, map(collective_row, collectives))),
        [Command(text=f"stored in {path}"), *next_step(next_command)],
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[Part]:
    body = list(rows)
    return [Table(rows=[head, *body], columns="<<" + ">" * (len(head) - 2))] if body else []


def rate_row(timing: Timing) -> tuple[str, ...]:
    """Return the rate of all devices together for the smallest and the largest amount."""
    benchmark = timing.benchmark
    unit = RATES[benchmark.operation]
    name = f"{benchmark.operation} of {benchmark.length} x {benchmark.head_dim}"
    ends = timing.points[0], timing.points[-1]
    return (
        name if benchmark.head_dim else benchmark.operation,
        benchmark.dtype,
        str(benchmark.processes),
        str(benchmark.devices),
        *(with_unit(amount * benchmark.devices / taken_s, unit) for amount, taken_s in ends),
        percent(timing.spread),
    )


def collective_row(timing: Timing) -> tuple[str, ...]:
    """Return the seconds of the smallest and the largest amount, in all groups at once."""
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
