"""The expected step, line by line, with constants learned from published runs.

It takes the ledger of `time` at the rates that real runs reach, and adds three things that a
roofline leaves out: operations between the matmuls, waiting for other slices, and time between
steps. docs/score.md has the model on one page; the catalog has the constants and their sources.
The expected step is never shorter than `lower`.
"""

from dataclasses import dataclass
from math import exp, hypot

import numpy as np

from orchestrator.catalog import Efficiency
from orchestrator.network.mesh_axes import DCN_AXES, GROUPS
from orchestrator.plan.host import Transfers, transfers
from orchestrator.plan.layout import Layout, Number
from orchestrator.plan.time import StepTime
from orchestrator.types.plan import LedgerLine, LineKind

SOURCE = "published-runs"
ATTENTION: tuple[LineKind, ...] = ("attention", "attention_recompute")
NAMES: dict[LineKind, str] = {
    "matmul": "matmuls",
    "attention": "attention",
    "weight_traffic": "weights and optimizer",
    "elementwise": "between matmuls",
    "offload": "exposed transfers to the host",
    "exposed_collectives": "exposed collectives",
    "slice_wait": "waiting for slices",
    "between_steps": "between steps",
    "busiest_resource": "waiting for the busiest resource",
}
SHARE, EXPOSED = "peak / share", "peak * exposed"
WAITS = "(calls * wait + hops * hop) * skew"
STANDARD_DEVIATIONS = 1.28  # standard deviations that hold 80 % of a normal distribution
# In every published run on several slices a reduction comes after this much work or more. Closer
# reductions are assumed to wait in proportion to the work between them.
APART_S = 0.11
LANES = 128  # attention kernels pad a head to whole lanes: 64 costs as much as 128
FORWARD_AND_BACKWARD = 3  # passes over activations; one more where the policy repeats
# Elements read and written in one pass: two norms and two residual additions over the stream, and
# the rotation of queries and keys. The MLP's activation reads its inputs and writes one result.
STREAM_TOUCHES, ROTATION_TOUCHES = 10, 2
# fp32 logits: written; read for the largest and for the sum; read and written as their gradient;
# read for both matmuls of the backward pass.
LOGITS_TOUCHES, LOGITS_BYTES = 7, 4


@dataclass(frozen=True)
class StepWork:
    """The work of a step: seconds at peak rates by kind, how often gradients are reduced between
    slices, and the hops that takes. `host` are transfers, of which the passes hide some.
    """

    matmul_s: Number
    attention_s: Number
    hbm_s: Number
    passes_s: Number
    host: Transfers
    links_s: Number
    reductions: Number
    hops: Number


def step_work(layout: Layout, lines: list[LedgerLine]) -> StepWork:
    """The lines of a ledger by kind, with the passes that it leaves out."""
    seconds = {kind: total(lines, kind) for kind in ("mxu", "hbm")}
    attention_s = sum(line.value for line in lines if line.kind in ATTENTION)
    links = sum(line.value for line in lines if line.resource not in {"mxu", "hbm", "host"})
    head = np.minimum(layout.model.head_dim / LANES, 1.0)
    calls = reductions(layout)
    return StepWork(
        matmul_s=seconds["mxu"] - attention_s,
        attention_s=attention_s / head,
        hbm_s=seconds["hbm"],
        passes_s=pass_bytes(layout) / hbm_rate(layout),
        host=transfers(layout),
        links_s=links,
        reductions=calls,
        hops=calls * (layout.devices_along(DCN_AXES) - 1),
    )


def total(lines: list[LedgerLine], resource: str) -> Number:
    return sum(line.value for line in lines if line.resource == resource)


def hbm_rate(layout: Layout) -> float:
    """Bytes per second of a device."""
    return layout.chip.hbm_bytes_per_s.value / layout.chip.devices


def pass_bytes(layout: Layout) -> Number:
    """HBM traffic of operations between the matmuls, as if none were fused with another."""
    model, block = layout.model, layout.network.block
    attention, mlp = block.attention, block.mlp
    query, key, _ = (matmul.output for matmul in attention.inputs)
    up = mlp.inputs[-1].output
    stream = STREAM_TOUCHES * model.d_model / layout.devices_along(GROUPS["tensor"])
    hidden = (len(mlp.inputs) + 1) * layout.size(up.dimensions[0])
    heads = layout.size(query.dimensions[0]) + layout.size(key.dimensions[0])
    rotated = ROTATION_TOUCHES * model.head_dim * heads
    touched = sum(
        (FORWARD_AND_BACKWARD + layout.remat.share(repeated.name, "recompute")) * elements
        for elements, repeated in (
            (stream, attention.output.output),
            (hidden, up),
            (rotated, query),
        )
    )
    logits = LOGITS_TOUCHES * LOGITS_BYTES * layout.size(layout.network.head.dimensions[0])
    return layout.step_tokens * (layout.compute_bytes * model.layers * touched + logits)


def reductions(layout: Layout) -> Number:
    """How often gradients go between slices: once a layer, or once a step where they accumulate."""
    return np.where(layout.microbatches == 1, layout.model.layers, 1) * (
        layout.devices_along(DCN_AXES) > 1
    )


def step_parts(work: StepWork, efficiency: Efficiency) -> dict[LineKind, Number]:
    """Seconds of each kind of work, as real runs take them."""
    each_s = (
        work.reductions * efficiency.slice_wait_s.value + work.hops * efficiency.slice_hop_s.value
    )
    return own_step_parts(work, efficiency) | {
        "exposed_collectives": work.links_s * efficiency.exposed.value,
        "slice_wait": each_s * skew_share(work, efficiency),
        "between_steps": efficiency.between_steps_s.value,
    }


def own_step_parts(work: StepWork, efficiency: Efficiency) -> dict[LineKind, Number]:
    """The parts that need no other slice."""
    return {
        "matmul": work.matmul_s / efficiency.matmul.value,
        "attention": work.attention_s / efficiency.attention.value,
        "weight_traffic": work.hbm_s,
        "elementwise": work.passes_s,
        "offload": work.host.exposed_s(*pace(work, efficiency)),
    }


def skew_share(work: StepWork, efficiency: Efficiency) -> Number:
    """The share of the learned wait that slices pay: the work between two reductions, over the
    least such work in any published run.

    A reduction overlaps with the layers that follow it. Slices that reduce again after a
    millisecond have had little time to drift apart.
    """
    own_s = sum(own_step_parts(work, efficiency).values())
    return np.minimum(own_s / np.maximum(work.reductions, 1) / APART_S, 1.0)


def expected_s(
    layout: Layout, lines: list[LedgerLine], time: StepTime, efficiency: Efficiency
) -> Number:
    """Seconds of a step: all parts, or the lower bound where one resource alone takes longer."""
    return np.maximum(sum(step_parts(step_work(layout, lines), efficiency).values()), time.lower_s)


def expected_lines(
    layout: Layout, lines: list[LedgerLine], time: StepTime, efficiency: Efficiency
) -> tuple[LedgerLine, ...]:
    """The same as a ledger, for one layout: its lines add up to `expected`."""
    work = step_work(layout, lines)
    formulas: dict[LineKind, tuple[str, dict[str, Number]]] = {
        "matmul": (SHARE, {"peak": work.matmul_s, "share": efficiency.matmul.value}),
        "attention": (SHARE, {"peak": work.attention_s, "share": efficiency.attention.value}),
        "weight_traffic": ("peak", {"peak": work.hbm_s}),
        "elementwise": (
            "bytes / rate",
            {"bytes": pass_bytes(layout), "rate": hbm_rate(layout)},
        ),
        "offload": ("2 * way - hidden", transfer_inputs(work, efficiency)),
        "exposed_collectives": (
            EXPOSED,
            {"peak": work.links_s, "exposed": efficiency.exposed.value},
        ),
        "slice_wait": (WAITS, wait_inputs(work, efficiency)),
        "between_steps": ("between", {"between": efficiency.between_steps_s.value}),
    }
    ledger = [line(kind, s, *formulas[kind]) for kind, s in step_parts(work, efficiency).items()]
    total_s = sum(one.value for one in ledger)
    inputs = {"lower": time.lower_s, "above": total_s}
    busiest = line("busiest_resource", time.lower_s - total_s, "lower - above", inputs)
    return tuple(one for one in [*ledger, busiest] if one.value > 0)


def transfer_inputs(work: StepWork, efficiency: Efficiency) -> dict[str, Number]:
    return {"way": work.host.one_way_s, "hidden": work.host.hidden_s(*pace(work, efficiency))}


def pace(work: StepWork, efficiency: Efficiency) -> tuple[float, float, Number]:
    """The shares of the peak that a pass reaches, and its seconds between the matmuls."""
    between_s = work.passes_s / FORWARD_AND_BACKWARD
    return efficiency.matmul.value, efficiency.attention.value, between_s


def wait_inputs(work: StepWork, efficiency: Efficiency) -> dict[str, Number]:
    return {
        "calls": work.reductions,
        "wait": efficiency.slice_wait_s.value,
        "hops": work.hops,
        "hop": efficiency.slice_hop_s.value,
        "skew": skew_share(work, efficiency),
    }


def line(kind: LineKind, seconds: Number, formula: str, inputs: dict[str, Number]) -> LedgerLine:
    return LedgerLine(
        kind=kind,
        name=NAMES[kind],
        value=seconds,
        unit="s",
        formula=formula,
        inputs=inputs,
        sources=(SOURCE,),
    )


def interval(
    layout: Layout, lines: list[LedgerLine], time: StepTime, efficiency: Efficiency
) -> tuple[float, float]:
    """The 80 % prediction interval; never below the bound.

    It is as wide as published runs scatter, and wider by the uncertainty of each constant, weighted
    by its part of the step.
    """
    expected = float(expected_s(layout, lines, time, efficiency))
    factor = exp(hypot(efficiency.spread.value, uncertainty(step_work(layout, lines), efficiency)))
    return max(expected / factor, float(time.lower_s)), expected * factor


def uncertainty(work: StepWork, efficiency: Efficiency) -> float:
    """The uncertainty of the step from that of the learned constants, as a share of the step.

    The part of the wait that no published run shows is uncertain as a whole.
    """
    parts, unseen = step_parts(work, efficiency), 1 - float(skew_share(work, efficiency))
    wait_s = work.reductions * efficiency.slice_wait_s.value * efficiency.slice_wait_s.unsure
    hop_s = work.hops * efficiency.slice_hop_s.value * efficiency.slice_hop_s.unsure
    unsure_s = (
        efficiency.attention.unsure * parts["attention"],
        efficiency.exposed.unsure * parts["exposed_collectives"],
        (1 - unseen) * wait_s,
        (1 - unseen) * hop_s,
        unseen * parts["slice_wait"],
        efficiency.between_steps_s.unsure * parts["between_steps"],
    )
    return STANDARD_DEVIATIONS * hypot(*map(float, unsure_s)) / float(sum(parts.values()))
