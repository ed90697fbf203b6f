"""Plan room: what a step is expected to take, line by line, by constants learned from real runs.

The roofline's ledger, each line at the rate that real runs reach on it, and three things that a
roofline leaves out: operations between the matmuls, waiting for other slices, and time between
steps. docs/score.md has the model on one page; the constants and where each was learned stand in
the catalog. `lower` is never undercut.
"""

from dataclasses import dataclass
from math import exp, hypot

import numpy as np

from orchestrator import catalog
from orchestrator.catalog import Efficiency
from orchestrator.network.mesh_axes import DCN_AXES, GROUPS
from orchestrator.plan.layout import Layout, Number
from orchestrator.plan.time import StepTime
from orchestrator.types.plan import LedgerLine, LineKind, Plan

SOURCE = "published-runs"
ATTENTION: tuple[LineKind, ...] = ("attention", "attention_recompute")
BUSIEST = "waiting for the busiest resource"
SHARE, EXPOSED = "peak / share", "peak * exposed"
WAITS = "(calls * wait + hops * hop) * told"
EIGHTY = 1.28  # standard deviations that hold 80 % of a normal distribution
# In every published run on several slices a reduction comes after this much work or more; closer
# together, they are taken to wait in proportion to the work between them.
APART_S = 0.11
LANES = 128  # attention kernels fill up a head to whole lanes: 64 costs what 128 does
FORWARD_AND_BACKWARD = 3  # passes over activations; one more where the policy repeats
# Elements read and written in one pass: two norms and two residual additions over the stream, and
# the rotation of queries and keys. The MLP's activation reads its inputs and writes one result.
STREAM_TOUCHES, ROTATION_TOUCHES = 10, 2
# fp32 logits: written; read for the largest and for the sum; read and written as their gradient;
# read for both matmuls of the backward pass.
LOGITS_TOUCHES, LOGITS_BYTES = 7, 4


@dataclass(frozen=True)
class StepWork:
    """What a step has to do: seconds at peak rates by kind, how often slices meet, and hops
    between slices on the way.
    """

    matmul_s: Number
    attention_s: Number
    hbm_s: Number
    passes_s: Number
    links_s: Number
    reductions: Number
    hops: Number


def work(layout: Layout, lines: list[LedgerLine]) -> StepWork:
    """A ledger's lines by kind, with the passes that the roofline leaves out."""
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
        (FORWARD_AND_BACKWARD + layout.remat.recomputes(repeated.name)) * elements
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


def parts(todo: StepWork, known: Efficiency) -> dict[str, Number]:
    """Seconds of each kind of work, as real runs take them."""
    each_s = todo.reductions * known.slice_wait_s.value + todo.hops * known.slice_hop_s.value
    waiting_s = each_s * told(todo, known)
    return own_parts(todo, known) | {
        "exposed collectives": todo.links_s * known.exposed.value,
        "waiting for slices": waiting_s,
        "between steps": known.between_steps_s.value,
    }


def own_parts(todo: StepWork, known: Efficiency) -> dict[str, Number]:
    """What a slice does alone."""
    return {
        "matmuls": todo.matmul_s / known.matmul.value,
        "attention": todo.attention_s / known.attention.value,
        "weights and optimizer": todo.hbm_s,
        "between matmuls": todo.passes_s,
    }


def told(todo: StepWork, known: Efficiency) -> Number:
    """How far rows tell of the waiting: the work between two reductions over the least of a row.

    A reduction runs beside the layers that follow it. Slices that meet again after a millisecond
    have had no time to drift apart by what they do in a fifth of a second.
    """
    own_s = sum(own_parts(todo, known).values())
    return np.minimum(own_s / np.maximum(todo.reductions, 1) / APART_S, 1.0)


def expected_s(
    layout: Layout, lines: list[LedgerLine], time: StepTime, known: Efficiency
) -> Number:
    """Seconds of a step: all parts, or the lower bound where one resource alone takes longer."""
    return np.maximum(sum(parts(work(layout, lines), known).values()), time.lower_s)


def expected_lines(
    layout: Layout, lines: list[LedgerLine], time: StepTime, known: Efficiency
) -> tuple[LedgerLine, ...]:
    """The same as a ledger, for one layout: its lines add up to `expected`."""
    todo = work(layout, lines)
    rate = hbm_rate(layout)
    between_s = known.between_steps_s.value
    waiting = {
        "calls": todo.reductions,
        "wait": known.slice_wait_s.value,
        "hops": todo.hops,
        "hop": known.slice_hop_s.value,
        "told": told(todo, known),
    }
    how: dict[str, tuple[LineKind, str, dict[str, Number]]] = {
        "matmuls": ("matmul", SHARE, {"peak": todo.matmul_s, "share": known.matmul.value}),
        "attention": ("attention", SHARE, {"peak": todo.attention_s,
                                           "share": known.attention.value}),
        "weights and optimizer": ("weight_traffic", "peak", {"peak": todo.hbm_s}),
        "between matmuls": ("elementwise", "bytes / rate", {"bytes": pass_bytes(layout),
                                                            "rate": rate}),
        "exposed collectives": ("exposed_collectives", EXPOSED,
                                {"peak": todo.links_s, "exposed": known.exposed.value}),
        "waiting for slices": ("slice_wait", WAITS, waiting),
        "between steps": ("between_steps", "between", {"between": between_s}),
    }  # fmt: skip
    made = [line(name, s, *how[name]) for name, s in parts(todo, known).items()]
    all_s = sum(one.value for one in made)
    inputs = {"lower": time.lower_s, "above": all_s}
    busiest = line(BUSIEST, time.lower_s - all_s, "busiest_resource", "lower - above", inputs)
    return tuple(one for one in [*made, busiest] if one.value > 0)


def beyond(plan: Plan) -> tuple[str, ...]:
    """Where no published run tells what to expect of a plan: a sentence each."""
    known, expected = catalog.reach(plan.chip), plan.forecast.step_s.expected
    if known is None or expected is None:
        return ()
    said = []
    if expected < known.step_s:
        said.append(
            f"expected is a guess: no run learned from has steps below {known.step_s:.2g} s"
        )
    if plan.chips > known.chips:
        said.append(
            f"expected is extrapolated from {plan.chip} runs of up to {known.chips:,} chips"
        )
    return tuple(said)


def line(
    name: str, seconds: Number, kind: LineKind, formula: str, inputs: dict[str, Number]
) -> LedgerLine:
    return LedgerLine(
        kind=kind,
        name=name,
        value=seconds,
        unit="s",
        formula=formula,
        inputs=inputs,
        sources=(SOURCE,),
    )


def interval(
    layout: Layout, lines: list[LedgerLine], time: StepTime, known: Efficiency
) -> tuple[float, float]:
    """Where four runs of five should end; never below the bound.

    As wide as published runs stray, and wider by what is not sure of a constant, in the measure in
    which the step is made of it.
    """
    expected = float(expected_s(layout, lines, time, known))
    factor = exp(hypot(known.spread.value, doubt(work(layout, lines), known)))
    return max(expected / factor, float(time.lower_s)), expected * factor


def doubt(todo: StepWork, known: Efficiency) -> float:
    """Half width, as a share of all parts, of what the constants themselves are not sure of.

    Waiting of which rows tell only in part is in doubt for the rest of it.
    """
    made, untold = parts(todo, known), 1 - float(told(todo, known))
    wait_s = todo.reductions * known.slice_wait_s.value * known.slice_wait_s.unsure
    hop_s = todo.hops * known.slice_hop_s.value * known.slice_hop_s.unsure
    unsure_s = (
        known.attention.unsure * made["attention"],
        known.exposed.unsure * made["exposed collectives"],
        (1 - untold) * wait_s,
        (1 - untold) * hop_s,
        untold * made["waiting for slices"],
        known.between_steps_s.unsure * made["between steps"],
    )
    return EIGHTY * hypot(*map(float, unsure_s)) / float(sum(made.values()))
