"""Show a chip profile: the rate of each operation."""

from orchestrator.formatting import percent, with_unit
from orchestrator.render.screen_parts import (
    Command,
    Screen,
    Table,
    Title,
    indent,
    next_step,
    screen,
)
from orchestrator.types import codec
from orchestrator.types.chip_profile import ChipProfile, Operation, Timing

UNITS: dict[Operation, str] = {
    "matmul": "FLOP/s",
    "attention": "FLOP/s",
    "copy": "B/s",
}
EXAMPLE = "specs/tiny_2pod.yaml"
HEAD = ("", "type", "small", "large", "spread")


def calibration_screen(profile: ChipProfile, path: str) -> Screen:
    """Return the rate of each operation, and the profile's path."""
    machine = profile.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    what = f"{machine.device_kind}: {machine.cores} cores of {machine.processor}"
    rows = [rate_row(one) for one in profile.timings if one.operation in UNITS]
    digest = codec.short(codec.digest(profile))
    use = "orch submit" if profile.emulated else f"orch plan --profile {digest}"
    return screen(
        [Title(left=what, right=f"profile {digest}")],
        [f"  measured on {profile.measured_on} with {versions}"],
        indent([Table(rows=[HEAD, *rows], columns="<<>>>")]),
        [Command(text=f"stored in {path}"), *next_step(f"{use} {EXAMPLE}")],
    )


def rate_row(timing: Timing) -> tuple[str, ...]:
    """Return the rate for the smallest and the largest amount."""
    unit = UNITS[timing.operation]
    name = f"{timing.operation} with heads of {timing.head_dim}"
    ends = timing.points[0], timing.points[-1]
    return (
        name if timing.head_dim else timing.operation,
        timing.dtype,
        *(with_unit(amount / taken_s, unit) for amount, taken_s in ends),
        percent(timing.spread),
    )
