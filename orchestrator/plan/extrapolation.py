"""Where a plan leaves the range of the published runs, and how sure `expected` is.

The interval of a plan inside their range is as wide as published runs scatter around predictions
made without them, and as the learned constants are unsure. Outside, it is wider by the part of the
step that no run shows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import expm1, hypot

from orchestrator.catalog import Efficiency, Range
from orchestrator.network.mesh_axes import DCN_AXES
from orchestrator.plan.expected import expected_s, own_step_parts, skew_share, step_parts
from orchestrator.plan.layout import Layout
from orchestrator.plan.step_work import StepWork, step_work
from orchestrator.plan.time import StepTime
from orchestrator.types.plan import Extrapolation, LedgerLine, LineKind

EXPOSED: tuple[LineKind, ...] = ("exposed_gathers", "exposed_tensor", "serial_collectives")
STANDARD_DEVIATIONS = 1.28  # standard deviations that hold 80 % of a normal distribution


@dataclass(frozen=True, kw_only=True)
class UnsurePart:
    """A part of the step, and the axes whose range decides whether published runs show it."""

    axes: tuple[str, ...]
    seconds: Callable[[StepWork, Efficiency], float]


def matmul_s(work: StepWork, efficiency: Efficiency) -> float:
    """Matmuls beyond their time at the peak: small ones may reach less, and large ones more."""
    return float(step_parts(work, efficiency)["matmul"] - work.matmul_s)


def attention_s(work: StepWork, efficiency: Efficiency) -> float:
    return float(step_parts(work, efficiency)["attention"] - work.attention_s)


def hidden_s(work: StepWork, efficiency: Efficiency) -> float:
    """Collectives that are assumed to hide."""
    parts = step_parts(work, efficiency)
    shown = parts["exposed_gathers"] + parts["exposed_tensor"]
    return max(float(work.gathers_s + work.dcn_s + work.tensor_s - shown), 0.0)


def accumulated_s(work: StepWork, efficiency: Efficiency) -> float:
    """What is assumed to hide, and the waits for slices that accumulated gradients spare."""
    by_layer = replace(work, reductions=work.reductions_by_layer)
    spared_s = waits_s(by_layer, efficiency) - waits_s(work, efficiency)
    return hidden_s(work, efficiency) + max(spared_s, 0.0)


def transfers_s(work: StepWork, efficiency: Efficiency) -> float:
    """Transfers to the host that are assumed to hide."""
    shown_s = step_parts(work, efficiency)["offload"]
    return float(2 * work.host.one_way_s - shown_s)


def exposed_s(work: StepWork, efficiency: Efficiency) -> float:
    """Collectives that show: the more devices join, the more there are to be late."""
    parts = step_parts(work, efficiency)
    return float(sum(parts[kind] for kind in EXPOSED))


def waits_s(work: StepWork, efficiency: Efficiency) -> float:
    return float(step_parts(work, efficiency)["slice_wait"])


def overhead_s(_work: StepWork, efficiency: Efficiency) -> float:
    """What a run pays for each step beside the step."""
    return efficiency.run_overhead_s.value


UNCERTAIN = (
    UnsurePart(axes=("tokens",), seconds=matmul_s),
    UnsurePart(axes=("length", "attention_share", "sequence"), seconds=attention_s),
    UnsurePart(axes=("microbatches",), seconds=accumulated_s),
    UnsurePart(axes=("data", "fsdp_dcn", "tensor", "links_share"), seconds=hidden_s),
    UnsurePart(axes=("host_share",), seconds=transfers_s),
    UnsurePart(axes=("chips",), seconds=exposed_s),
    UnsurePart(axes=("slices",), seconds=waits_s),
    UnsurePart(axes=("step_s",), seconds=overhead_s),
)
AXES = tuple(axis for part in UNCERTAIN for axis in part.axes)
# Fewer tokens, shorter sequences and shorter steps than in any run are as little known as more of
# anything else. More tokens and longer steps are not.
BELOW = frozenset({"tokens", "length", "step_s"})
BELOW_ALONE = frozenset({"tokens", "step_s"})
ROUNDING = 1e-3  # ranges are kept with four digits


def axis_values(layout: Layout, work: StepWork, step_s: float) -> dict[str, float]:
    """Where a step lies on each axis. The shares are of matmuls and attention at their peak."""
    compute_s = work.matmul_s + work.attention_s
    devices = layout.devices / layout.chip.devices
    values = {
        "tokens": layout.sequences * layout.length / devices / layout.microbatches,
        "length": layout.length,
        "attention_share": work.attention_s / compute_s,
        "microbatches": layout.microbatches,
        "links_share": (work.gathers_s + work.dcn_s + work.tensor_s) / compute_s,
        "host_share": 2 * work.host.one_way_s / compute_s,
        "chips": devices,
        "slices": layout.devices_along(DCN_AXES),
        "step_s": step_s,
        **{axis: layout.mesh[axis] for axis in layout.mesh if axis in AXES},
    }
    return {axis: float(values[axis]) for axis in AXES}


def outside(axis: str, value: float, reached: Range) -> float:
    """How far a value lies outside, as a share of it that no run shows; zero inside.

    Where all runs have one of a thing, none shows what two do.
    """
    if value > reached.high and axis not in BELOW_ALONE:
        return 1.0 if reached.high == 1 else 1 - reached.high / value
    if value < reached.low and axis in BELOW:
        return 1 - value / reached.low
    return 0.0


def extrapolations(
    values: Mapping[str, float], ranges: Mapping[str, Range]
) -> tuple[Extrapolation, ...]:
    """The axes along which a plan leaves the range of the runs."""
    return tuple(
        Extrapolation(axis=axis, value=values[axis], low=reached.low, high=reached.high)
        for axis, reached in ranges.items()
        if outside(axis, values[axis], reached) > ROUNDING
    )


def interval(
    layout: Layout, lines: list[LedgerLine], time: StepTime, efficiency: Efficiency
) -> tuple[float, float]:
    """The 80 % prediction interval; never below the bound.

    Runs scatter and constants are unsure independently. What no run shows is there or gone as a
    whole, on top of that.
    """
    expected = float(expected_s(layout, lines, time, efficiency))
    work = step_work(layout, lines)
    values = axis_values(layout, work, expected)
    scatter = hypot(expm1(efficiency.spread.value), deviation(work, efficiency))
    factor = 1 + scatter + unseen(work, values, efficiency)
    return max(expected / factor, float(time.lower_s)), expected * factor


def deviation(work: StepWork, efficiency: Efficiency) -> float:
    """How far the step is off where its constants are off, in four of five cases, as a share."""
    parts, seen = seconds_of(work, efficiency), seen_share(work, efficiency)
    waits = work.reductions * efficiency.slice_wait_s.value * efficiency.slice_wait_s.unsure
    hops = work.hops * efficiency.slice_hop_s.value * efficiency.slice_hop_s.unsure
    deviations_s = (
        efficiency.attention.unsure * parts["attention"],
        efficiency.exposed_gathers.unsure * parts["exposed_gathers"],
        efficiency.exposed_tensor.unsure * parts["exposed_tensor"],
        seen * float(waits),
        seen * float(hops),
    )
    return STANDARD_DEVIATIONS * hypot(*deviations_s) / sum(parts.values())


def unseen(work: StepWork, values: Mapping[str, float], efficiency: Efficiency) -> float:
    """The part of the step that no run shows, as a share."""
    parts, seen = seconds_of(work, efficiency), seen_share(work, efficiency)
    unseen_s = (*outside_s(work, values, efficiency), (1 - seen) * parts["slice_wait"])
    return hypot(*unseen_s) / sum(parts.values())


def seconds_of(work: StepWork, efficiency: Efficiency) -> dict[LineKind, float]:
    return {kind: float(s) for kind, s in step_parts(work, efficiency).items()}


def seen_share(work: StepWork, efficiency: Efficiency) -> float:
    own_s = sum(own_step_parts(work, efficiency).values())
    return float(skew_share(work, own_s))


def outside_s(
    work: StepWork, values: Mapping[str, float], efficiency: Efficiency
) -> Iterator[float]:
    """Seconds of each part that lie outside the range of the runs."""
    for part in UNCERTAIN:
        known = [axis for axis in part.axes if axis in efficiency.ranges]
        shares = [outside(axis, values[axis], efficiency.ranges[axis]) for axis in known]
        yield max(shares, default=0.0) * part.seconds(work, efficiency)
