"""The expected step, line by line, with constants learned from published runs. It takes the work of
a step at the rates that real runs reach, and adds exposed collectives and waits for other slices
(docs/score.md). The expected step is never shorter than `lower`.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import expm1, hypot

import numpy as np

from orchestrator.catalog.published import Efficiency, Range
from orchestrator.network.mesh_axes import DCN_AXES
from orchestrator.planning import flops
from orchestrator.planning import step_work as steps
from orchestrator.planning.layout import Number, Training
from orchestrator.planning.time import StepTime, device_peak, ledger_of_parts
from orchestrator.values.plan import Extrapolation, LedgerLine, LineKind

SOURCE = "published-runs"
# In every published run on several slices a reduction comes after this much work or more. Closer
# reductions are assumed to wait in proportion to the work between them.
_APART_S = 0.11


def step_parts(work: steps.StepWork, efficiency: Efficiency) -> dict[LineKind, Number]:
    own = _own_step_parts(work, efficiency)
    own_s = sum(own.values())
    # What slices wait for each other before they reduce gradients.
    full_s = (
        work.reductions * efficiency.slice_wait_s.value + work.hops * efficiency.slice_hop_s.value
    )
    tensor_s = work.tensor_s * efficiency.exposed_tensor.value
    # Of gathers of weights and scatters and reductions of gradients: a share in any case, and all
    # that exceeds the device's own work on the slower network.
    share_s = (work.gathers_s + work.dcn_s) * efficiency.exposed_gathers.value
    exposed_s = np.maximum(share_s, np.maximum(work.gathers_s, work.dcn_s) - own_s)
    return own | {
        "exposed_gathers": exposed_s,
        "exposed_tensor": tensor_s,
        "pipeline_bubble": work.bubble * (own_s + tensor_s),
        "serial_collectives": work.serial_s,
        "slice_wait": full_s * skew_share(work, own_s),
    }


def _own_step_parts(work: steps.StepWork, efficiency: Efficiency) -> dict[LineKind, Number]:
    """The parts that need no other device."""
    return {
        "matmul": work.matmul_s / efficiency.matmul.value,
        "attention": work.attention_s / efficiency.attention.value,
        "weight_traffic": work.hbm_s,
        "elementwise": work.passes_s,
        "row_moves": work.row_moves * efficiency.row_move_s.value,
        "offload": work.host.exposed_s(*_pace(work, efficiency)),
    }


def _pace(work: steps.StepWork, efficiency: Efficiency) -> tuple[float, float, Number]:
    """The shares of the peak that a pass reaches, and its seconds between the matmuls."""
    between_s = work.passes_s / steps.FORWARD_AND_BACKWARD
    return efficiency.matmul.value, efficiency.attention.value, between_s


def skew_share(work: steps.StepWork, own_s: Number) -> Number:
    """The share of the learned wait that slices pay: the work between two reductions, over the
    least in any published run. With little work between them, slices hardly drift apart.
    """
    return np.minimum(own_s / np.maximum(work.reductions, 1) / _APART_S, 1.0)


def expected_s(work: steps.StepWork, time: StepTime, efficiency: Efficiency) -> Number:
    """Seconds of a step: all parts, or the lower bound where a single resource takes longer."""
    return np.maximum(sum(step_parts(work, efficiency).values()), time.lower_s)


def expected_lines(
    layout: Training, work: steps.StepWork, time: StepTime, efficiency: Efficiency
) -> tuple[LedgerLine, ...]:
    """The same as a ledger, for one layout: its lines add up to `expected`."""
    parts = step_parts(work, efficiency)
    own_s = sum(_own_step_parts(work, efficiency).values())
    # The name of each part, and how it is computed, with its numbers.
    formulas: dict[LineKind, tuple[str, str, dict[str, Number]]] = {
        "matmul": (
            "matmuls", "peak / share", {"peak": work.matmul_s, "share": efficiency.matmul.value}
        ),
        "attention": (
            "attention",
            "peak / share",
            {"peak": work.attention_s, "share": efficiency.attention.value},
        ),
        "weight_traffic": ("weights and optimizer", "peak", {"peak": work.hbm_s}),
        "elementwise": (
            "between matmuls",
            "bytes / rate",
            {"bytes": steps.pass_bytes(layout), "rate": steps.hbm_rate(layout)},
        ),
        "row_moves": (
            "moving rows of experts",
            "moves * move",
            {"moves": work.row_moves, "move": efficiency.row_move_s.value},
        ),
        "offload": (
            "exposed transfers to the host",
            "2 * way - hidden",
            {"way": work.host.one_way_s, "hidden": work.host.hidden_s(*_pace(work, efficiency))},
        ),
        "exposed_gathers": (
            "exposed gathers",
            "max(links * exposed, slowest - own)",
            {
                "links": work.gathers_s + work.dcn_s,
                "exposed": efficiency.exposed_gathers.value,
                "slowest": np.maximum(work.gathers_s, work.dcn_s),
                "own": own_s,
            },
        ),
        "exposed_tensor": (
            "exposed tensor",
            "links * exposed",
            {"links": work.tensor_s, "exposed": efficiency.exposed_tensor.value},
        ),
        "pipeline_bubble": (
            "bubble of the pipeline",
            "passes x waits",
            {"passes": own_s + parts["exposed_tensor"], "waits": work.bubble},
        ),
        "serial_collectives": ("collectives in series", "links", {"links": work.serial_s}),
        "slice_wait": (
            "waiting for slices",
            "(calls * wait + hops * hop) * skew",
            {
                "calls": work.reductions,
                "wait": efficiency.slice_wait_s.value,
                "hops": work.hops,
                "hop": efficiency.slice_hop_s.value,
                "skew": skew_share(work, own_s),
            },
        ),
    }  # fmt: skip
    return ledger_of_parts(parts, formulas, time.lower_s, SOURCE)


# --- where a plan leaves the range of the published runs, and how sure `expected` is


STANDARD_DEVIATIONS = 1.28  # standard deviations that hold 80 % of a normal distribution
# Parts of a step, and the axes whose range decides whether published runs show them.
_UNSURE_AXES = {
    "matmuls": ("tokens",),
    "attention": ("length", "attention_share", "sequence"),
    "accumulation": ("microbatches",),
    "hidden collectives": ("data", "fsdp_dcn", "tensor", "links_share"),
    "pipeline": ("stages",),
    "hidden transfers": ("host_share",),
    "exposed collectives": ("chips",),
    "waits": ("slices",),
    "overhead": ("step_s",),
}
# A plan beyond the best MFU that anybody published for such a chip says so.
AXES = (*(axis for axes in _UNSURE_AXES.values() for axis in axes), "mfu", "mixture_mfu")
# Fewer tokens, shorter sequences and shorter steps than in any run are as little known as more of
# anything else. More tokens and longer steps are not.
_BELOW = frozenset({"tokens", "length", "step_s"})
_BELOW_ALONE = frozenset({"tokens", "step_s"})
_ROUNDING = 1e-3  # ranges are kept with four digits
# No published run of a chip whose ranges lack an axis is known to be cut into stages.
_UNCUT = {"stages": Range(low=1, high=1)}


def axis_values(layout: Training, work: steps.StepWork, step_s: float) -> dict[str, float]:
    """Where a step lies on each axis. The shares are of matmuls and attention at their peak."""
    compute_s = work.matmul_s + work.attention_s
    devices = layout.devices / layout.chip.devices
    token_flops = flops.model_flops_per_token(layout.model, layout.length)
    step_flops = layout.sequences * layout.length * token_flops
    mfu = flops.mfu(step_flops, step_s, int(layout.devices), device_peak(layout))
    values = {
        "tokens": layout.sequences * layout.length / devices / layout.microbatches,
        "length": layout.length,
        "attention_share": work.attention_s / compute_s,
        "microbatches": layout.microbatches,
        "links_share": (work.gathers_s + work.dcn_s + work.tensor_s) / compute_s,
        "host_share": 2 * work.host.one_way_s / compute_s,
        "chips": devices,
        "slices": layout.devices_along(DCN_AXES),
        "stages": layout.stages,
        "step_s": step_s,
        "mfu": 0.0 if layout.model.moe else mfu,
        "mixture_mfu": mfu if layout.model.moe else 0.0,
        **{axis: layout.mesh[axis] for axis in layout.mesh if axis in AXES},
    }
    return {axis: float(values[axis]) for axis in AXES}


def outside(axis: str, value: float, reached: Range) -> float:
    """How far a value lies outside the range, as a share of it that no run shows; zero inside."""
    if value > reached.high and axis not in _BELOW_ALONE:
        return 1.0 if reached.high == 1 else 1 - reached.high / value
    if value < reached.low and axis in _BELOW:
        return 1 - value / reached.low
    return 0.0


def extrapolations(
    values: Mapping[str, float], ranges: Mapping[str, Range]
) -> tuple[Extrapolation, ...]:
    return tuple(
        Extrapolation(axis=axis, value=values[axis], low=reached.low, high=reached.high)
        for axis, reached in (_UNCUT | dict(ranges)).items()
        if axis in values
        if outside(axis, values[axis], reached) > _ROUNDING
    )


def interval(
    layout: Training, work: steps.StepWork, time: StepTime, efficiency: Efficiency
) -> tuple[float, float]:
    """The 80 % prediction interval, never below the bound: the spread of runs and the uncertainty
    of constants are independent; what no run shows is added in full.
    """
    expected = float(expected_s(work, time, efficiency))
    values = axis_values(layout, work, expected)
    spread = efficiency.mixture_spread if layout.model.moe else efficiency.spread
    scatter = hypot(expm1(spread.value), deviation(work, efficiency))
    factor = 1 + scatter + unseen(work, values, efficiency)
    return max(expected / factor, float(time.lower_s)), expected * factor


def deviation(work: steps.StepWork, efficiency: Efficiency) -> float:
    """How far the step is off where its constants are off, in four of five cases, as a share."""
    parts, seen = _seconds_of(work, efficiency), _seen_share(work, efficiency)
    waits = work.reductions * efficiency.slice_wait_s.value * efficiency.slice_wait_s.unsure
    hops = work.hops * efficiency.slice_hop_s.value * efficiency.slice_hop_s.unsure
    deviations_s = (
        efficiency.matmul.unsure * parts["matmul"],
        efficiency.attention.unsure * parts["attention"],
        efficiency.row_move_s.unsure * parts["row_moves"],
        efficiency.exposed_gathers.unsure * parts["exposed_gathers"],
        efficiency.exposed_tensor.unsure * parts["exposed_tensor"],
        seen * float(waits),
        seen * float(hops),
    )
    return STANDARD_DEVIATIONS * hypot(*deviations_s) / sum(parts.values())


def unseen(work: steps.StepWork, values: Mapping[str, float], efficiency: Efficiency) -> float:
    """The part of the step that no run shows, as a share."""
    parts, seen = _seconds_of(work, efficiency), _seen_share(work, efficiency)
    exposed_s = parts["exposed_gathers"] + parts["exposed_tensor"]
    hidden_s = max(float(work.gathers_s + work.dcn_s + work.tensor_s) - exposed_s, 0.0)
    # Waits for slices that accumulated gradients spare.
    by_layer = replace(work, reductions=work.reductions_by_layer)
    spared_s = _seconds_of(by_layer, efficiency)["slice_wait"] - parts["slice_wait"]
    unsure_s = {
        # Beyond their time at the peak: small matmuls may reach less, and large ones more.
        "matmuls": parts["matmul"] - float(work.matmul_s),
        "attention": parts["attention"] - float(work.attention_s),
        # What is assumed to hide.
        "accumulation": hidden_s + max(spared_s, 0.0),
        "hidden collectives": hidden_s,
        "pipeline": parts["pipeline_bubble"],
        "hidden transfers": float(2 * work.host.one_way_s) - parts["offload"],
        # With more devices, a late one is likelier.
        "exposed collectives": exposed_s + parts["serial_collectives"],
        "waits": parts["slice_wait"],
        # What a run pays for each step outside the step.
        "overhead": efficiency.run_overhead_s.value,
    }
    unseen_s, ranges = [], _UNCUT | dict(efficiency.ranges)
    for part, axes in _UNSURE_AXES.items():
        known = [axis for axis in axes if axis in ranges and axis in values]
        shares = [outside(axis, values[axis], ranges[axis]) for axis in known]
        unseen_s.append(max(shares, default=0.0) * unsure_s[part])
    return hypot(*unseen_s, (1 - seen) * parts["slice_wait"]) / sum(parts.values())


def _seconds_of(work: steps.StepWork, efficiency: Efficiency) -> dict[LineKind, float]:
    return {kind: float(s) for kind, s in step_parts(work, efficiency).items()}


def _seen_share(work: steps.StepWork, efficiency: Efficiency) -> float:
    own_s = sum(_own_step_parts(work, efficiency).values())
    return float(skew_share(work, own_s))
