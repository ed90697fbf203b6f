"""Plan room: what a step is expected to take, line by line, by constants learned from real runs.

The roofline's ledger, each line at the rate that real runs reach on it, and three things that a
roofline leaves out: operations between the matmuls, waiting for other slices, and time between
steps. docs/score.md has the model on one page; the constants and where each was learned stand in
the catalog. `lower` is never undercut.
"""

from dataclasses import dataclass
from math import exp, hypot

import numpy as np

from orchestrator.catalog import Efficiency
from orchestrator.plan.layout import Layout, Number
from orchestrator.plan.time import StepTime
from orchestrator.stations.plan import Line

SOURCE = "published-runs"
ATTENTION = ("attention", "attention recompute")
SHARE, EXPOSED = "at peak / share", "at peak x exposed"
WAITS = "calls x root of pods x wait, at most the work above"
EIGHTY = 1.28  # standard deviations that hold 80 % of a normal distribution
LANES = 128  # attention kernels fill up a head to whole lanes: 64 costs what 128 does
FORWARD_AND_BACKWARD = 3  # passes over activations; one more where the policy repeats
# Elements read and written in one pass: two norms and two residual additions over the stream, the
# activation of the MLP, the rotation of queries and keys.
STREAM_TOUCHES, GATED_TOUCHES, PLAIN_TOUCHES, ROTATION_TOUCHES = 10, 3, 2, 2
# fp32 logits: written; read for the largest and for the sum; read and written as their gradient;
# read for both matmuls of the backward pass.
LOGITS_TOUCHES, LOGITS_BYTES = 7, 4


@dataclass(frozen=True)
class Work:
    """What a step has to do: seconds at peak rates by kind, and how often slices wait."""

    matmul_s: Number
    attention_s: Number
    hbm_s: Number
    passes_s: Number
    links_s: Number
    waits: Number


def work(layout: Layout, lines: list[Line]) -> Work:
    """A ledger's lines by kind, with the passes that the roofline leaves out."""
    seconds = {kind: total(lines, kind) for kind in ("mxu", "hbm")}
    attention_s = sum(line.value for line in lines if line.name in ATTENTION)
    links = sum(line.value for line in lines if line.resource not in {"mxu", "hbm", "host"})
    head = np.minimum(layout.model.head_dim / LANES, 1.0)
    return Work(
        matmul_s=seconds["mxu"] - attention_s,
        attention_s=attention_s / head,
        hbm_s=seconds["hbm"],
        passes_s=pass_bytes(layout) / (layout.chip.hbm_bytes_per_s.value / layout.chip.devices),
        links_s=links,
        waits=waits(layout),
    )


def total(lines: list[Line], resource: str) -> Number:
    return sum(line.value for line in lines if line.resource == resource)


def pass_bytes(layout: Layout) -> Number:
    """HBM traffic of operations between the matmuls, as if none were fused with another."""
    model, remat = layout.model, layout.remat
    stream = STREAM_TOUCHES * model.d_model / layout.tensor
    hidden = (GATED_TOUCHES if model.gated else PLAIN_TOUCHES) * layout.d_ff
    rotated = ROTATION_TOUCHES * model.head_dim * (layout.heads + layout.kv_heads)
    touched = sum(
        (FORWARD_AND_BACKWARD + remat.recomputes(repeated)) * elements
        for elements, repeated in ((stream, "mid"), (hidden, "up"), (rotated, "q"))
    )
    logits = LOGITS_TOUCHES * LOGITS_BYTES * layout.vocab
    return layout.step_tokens * (layout.compute_bytes * model.layers * touched + logits)


def waits(layout: Layout) -> Number:
    """Reductions between slices, each worth the root of how many slices wait for the slowest.

    One a layer where gradients are reduced as they come, one a step where they accumulate.
    """
    calls = np.where(layout.microbatches == 1, layout.model.layers, 1)
    return calls * np.sqrt(layout.pods) * (layout.pods > 1)


def parts(todo: Work, known: Efficiency) -> dict[str, Number]:
    """Seconds of each kind of work, as real runs take them.

    Waiting was learned where layers are long, and is never taken for longer than a slice's own
    work: what shorter layers do, no published run tells.
    """
    own = {
        "matmuls": todo.matmul_s / known.matmul.value,
        "attention": todo.attention_s / known.attention.value,
        "weights and optimizer": todo.hbm_s,
        "between matmuls": todo.passes_s,
    }
    return own | {
        "exposed collectives": todo.links_s * known.exposed.value,
        "waiting for slices": np.minimum(todo.waits * known.slice_wait_s.value, sum(own.values())),
        "between steps": known.between_steps_s.value,
    }


def expected_s(layout: Layout, lines: list[Line], time: StepTime, known: Efficiency) -> Number:
    """Seconds of a step: all parts, or the lower bound where one resource alone takes longer."""
    return np.maximum(sum(parts(work(layout, lines), known).values()), time.lower_s)


def expected_lines(
    layout: Layout, lines: list[Line], time: StepTime, known: Efficiency
) -> tuple[Line, ...]:
    """The same as a ledger, for one layout: its lines add up to `expected`."""
    todo = work(layout, lines)
    how: dict[str, tuple[str, dict[str, Number]]] = {
        "matmuls": (SHARE, {"peak": todo.matmul_s, "share": known.matmul.value}),
        "attention": (SHARE, {"peak": todo.attention_s, "share": known.attention.value}),
        "weights and optimizer": ("hbm lines", {"hbm": todo.hbm_s}),
        "between matmuls": ("bytes touched / hbm rate", {"bytes": pass_bytes(layout)}),
        "exposed collectives": (EXPOSED, {"peak": todo.links_s, "exposed": known.exposed.value}),
        "waiting for slices": (WAITS, {"waits": todo.waits, "wait": known.slice_wait_s.value}),
        "between steps": ("a step", {}),
    }
    made = [line(name, s, *how[name]) for name, s in parts(todo, known).items()]
    short = time.lower_s - sum(one.value for one in made)
    busiest = line("waiting for the busiest resource", short, "lower - all above", {})
    return tuple(one for one in [*made, busiest] if one.value > 0)


def line(name: str, seconds: Number, formula: str, inputs: dict[str, Number]) -> Line:
    return Line(
        name=name, value=seconds, unit="s", formula=formula, inputs=inputs, sources=(SOURCE,)
    )


def interval(
    layout: Layout, lines: list[Line], time: StepTime, known: Efficiency
) -> tuple[float, float]:
    """Where four runs of five should end; never below the bound.

    As wide as published runs stray, and wider by what is not sure of a constant, in the measure in
    which the step is made of it.
    """
    expected = float(expected_s(layout, lines, time, known))
    factor = exp(hypot(known.spread.value, doubt(parts(work(layout, lines), known), known)))
    return max(expected / factor, float(time.lower_s)), expected * factor


def doubt(made: dict[str, Number], known: Efficiency) -> float:
    """Half width, as a share of all parts, of what the constants themselves are not sure of."""
    total_s = float(sum(made.values()))
    constants = {
        "attention": known.attention,
        "exposed collectives": known.exposed,
        "waiting for slices": known.slice_wait_s,
        "between steps": known.between_steps_s,
    }
    return EIGHTY * hypot(
        *(one.unsure * float(made[name]) / total_s for name, one in constants.items())
    )
