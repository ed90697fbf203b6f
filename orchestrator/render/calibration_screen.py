"""a chip profile on one screen."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from orchestrator.render.formatting import percent, seconds, with_unit
from orchestrator.render.layout import (
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
from orchestrator.types.chip_profile import ChipProfile, CollectiveTime, Kernel, KernelTime

UNITS: dict[Kernel, str] = {
    "matmul forward": "FLOP/s",
    "matmul": "FLOP/s",
    "copy": "B/s",
    "norm": "elements/s",
    "gate": "elements/s",
    "rotary": "elements/s",
    "logits": "logits/s",
    "update": "parameters/s",
    "attention forward": "scores/s",
    "attention": "scores/s",
}


def calibration_screen(profile: ChipProfile, path: str, next_command: str) -> Screen:
    """What was measured, how fast each piece ran at its smallest and largest, and where it is."""
    machine = profile.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    what = f"{machine.device_kind}: {machine.cores} cores of {machine.processor}"
    return screen(
        [Title(left=what, right=f"profile {codec.short(codec.digest(profile))}")],
        [f"  measured on {profile.measured_on} with {versions}"],
        indent(kernel_lines(profile.kernels)),
        indent(exchange_lines(profile.exchanges)),
        [Command(text=f"stored in {path}"), *next_step(next_command)],
    )


def kernel_lines(times: Sequence[KernelTime]) -> list[Part]:
    """Rates at the largest amount of each kernel, of matmuls at every size; a column for each
    number of devices at once.
    """
    counts = sorted({time.devices for time in times})
    most: dict[tuple[str, str, int], float] = {}
    for one in times:
        most[_kind(one)] = max(one.amount, most.get(_kind(one), 0.0))
    shown = (
        one for one in times if UNITS[one.kernel] == "FLOP/s" or one.amount == most[_kind(one)]
    )
    groups = groupby(sorted(shown, key=_of_one_row), key=_of_one_row)
    rows = [kernel_row({time.devices: time for time in group}, counts) for _, group in groups]
    at_once = [f"{n} at once" if n > 1 else "1 device" for n in counts]
    head = ("", "type", *at_once, "spread")
    return [Table(rows=[head, *rows], columns=f"<<{'>' * len(counts)}>")] if rows else []


def _kind(time: KernelTime) -> tuple[str, str, int]:
    return time.kernel, time.dtype, time.head_dim


def _of_one_row(time: KernelTime) -> tuple[int, str, int, float]:
    return list(UNITS).index(time.kernel), time.dtype, time.head_dim, time.amount


def kernel_row(times: dict[int, KernelTime], counts: Sequence[int]) -> tuple[str, ...]:
    first = next(iter(times.values()))
    unit, name = UNITS[first.kernel], str(first.kernel)
    name += f" of {with_unit(first.amount, 'FLOP')}" if unit == "FLOP/s" else ""
    name += f", head_dim {first.head_dim}" if first.head_dim else ""
    found = ((n, times.get(n)) for n in counts)
    rates = (with_unit(at.amount * n / at.seconds, unit) if at else "-" for n, at in found)
    spread = max(time.spread for time in times.values())
    return name, first.dtype, *rates, percent(spread)


def exchange_lines(times: Iterable[CollectiveTime]) -> list[Part]:
    """Seconds of the smallest and of the largest, all groups at once."""
    head = ("", "type", "processes", "devices", "groups of", "small", "large", "spread")
    ordered = sorted(times, key=_of_one_group)
    rows = [exchange_row(list(group)) for _, group in groupby(ordered, key=_of_one_group)]
    return [Table(rows=[head, *rows], columns="<<>>>>>>")] if rows else []


def _of_one_group(time: CollectiveTime) -> tuple[int, int, int, int, str, str, int]:
    group = time.processes, time.devices, time.ways, time.stride
    return *group, time.kind, time.dtype, time.together


def exchange_row(times: list[CollectiveTime]) -> tuple[str, ...]:
    first = times[0]
    apart = f", {first.stride} apart" if first.stride > 1 else ""
    together = f", {first.together} at a time" if first.together > 1 else ""
    return (
        f"{first.kind}{together}",
        first.dtype,
        str(first.processes),
        str(first.devices),
        f"{first.ways}{apart}",
        *_smallest_and_largest(times),
        percent(max(time.spread for time in times)),
    )


def _smallest_and_largest(times: list[CollectiveTime]) -> Iterator[str]:
    by_bytes = sorted(times, key=lambda time: time.bytes)
    for time in (by_bytes[0], by_bytes[-1]):
        yield f"{seconds(time.seconds)} of {with_unit(time.bytes, 'B')}"
