"""The expected step, line by line, with constants learned from published runs.

It takes the work of a step at the rates that real runs reach, and adds what they wait for: the part
of their collectives that does not hide, and other slices. docs/score.md has the model on one page;
the catalog has the constants and their sources. The expected step is never shorter than `lower`.
"""

import numpy as np

from orchestrator.catalog import Efficiency
from orchestrator.plan.layout import Layout, Number
from orchestrator.plan.step_work import (
    FORWARD_AND_BACKWARD,
    StepWork,
    hbm_rate,
    pass_bytes,
    step_work,
)
from orchestrator.plan.time import StepTime
from orchestrator.types.plan import LedgerLine, LineKind

SOURCE = "published-runs"
NAMES: dict[LineKind, str] = {
    "matmul": "matmuls",
    "attention": "attention",
    "weight_traffic": "weights and optimizer",
    "elementwise": "between matmuls",
    "offload": "exposed transfers to the host",
    "exposed_gathers": "exposed gathers",
    "exposed_tensor": "exposed tensor",
    "serial_collectives": "collectives in series",
    "slice_wait": "waiting for slices",
    "busiest_resource": "waiting for the busiest resource",
}
SHARE, EXPOSED = "peak / share", "links * exposed"
GATHERS = "max(links * exposed, slowest - own)"
WAITS = "(calls * wait + hops * hop) * skew"
# In every published run on several slices a reduction comes after this much work or more. Closer
# reductions are assumed to wait in proportion to the work between them.
APART_S = 0.11


def step_parts(work: StepWork, efficiency: Efficiency) -> dict[LineKind, Number]:
    """Seconds of each kind of work, as real runs take them."""
    own = own_step_parts(work, efficiency)
    own_s = sum(own.values())
    return own | {
        "exposed_gathers": exposed_gathers_s(work, own_s, efficiency),
        "exposed_tensor": work.tensor_s * efficiency.exposed_tensor.value,
        "serial_collectives": work.serial_s,
        "slice_wait": slice_wait_s(work, own_s, efficiency),
    }


def own_step_parts(work: StepWork, efficiency: Efficiency) -> dict[LineKind, Number]:
    """The parts that need no other device."""
    return {
        "matmul": work.matmul_s / efficiency.matmul.value,
        "attention": work.attention_s / efficiency.attention.value,
        "weight_traffic": work.hbm_s,
        "elementwise": work.passes_s,
        "offload": work.host.exposed_s(*pace(work, efficiency)),
    }


def pace(work: StepWork, efficiency: Efficiency) -> tuple[float, float, Number]:
    """The shares of the peak that a pass reaches, and its seconds between the matmuls."""
    between_s = work.passes_s / FORWARD_AND_BACKWARD
    return efficiency.matmul.value, efficiency.attention.value, between_s


def exposed_gathers_s(work: StepWork, own_s: Number, efficiency: Efficiency) -> Number:
    """What shows of the gathers of weights and the scatters and reductions of gradients.

    Even with work enough to hide behind, a share shows. Where the slower of the two networks takes
    longer than the device's own work, all that exceeds it shows.
    """
    share_s = (work.gathers_s + work.dcn_s) * efficiency.exposed_gathers.value
    return np.maximum(share_s, np.maximum(work.gathers_s, work.dcn_s) - own_s)


def slice_wait_s(work: StepWork, own_s: Number, efficiency: Efficiency) -> Number:
    """What slices wait for each other before they reduce gradients."""
    full_s = (
        work.reductions * efficiency.slice_wait_s.value + work.hops * efficiency.slice_hop_s.value
    )
    return full_s * skew_share(work, own_s)


def skew_share(work: StepWork, own_s: Number) -> Number:
    """The share of the learned wait that slices pay: the work between two reductions, over the
    least such work in any published run.

    A reduction overlaps with the layers that follow it. Slices that reduce again after a
    millisecond have had little time to drift apart.
    """
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
    formulas = step_formulas(layout, work, efficiency)
    ledger = [line(kind, s, *formulas[kind]) for kind, s in step_parts(work, efficiency).items()]
    total_s = sum(one.value for one in ledger)
    inputs = {"lower": time.lower_s, "above": total_s}
    busiest = line("busiest_resource", time.lower_s - total_s, "lower - above", inputs)
    return tuple(one for one in [*ledger, busiest] if one.value > 0)


def step_formulas(
    layout: Layout, work: StepWork, efficiency: Efficiency
) -> dict[LineKind, tuple[str, dict[str, Number]]]:
    """How each part is computed, with its numbers."""
    own_s = sum(own_step_parts(work, efficiency).values())
    gathers = {
        "links": work.gathers_s + work.dcn_s,
        "exposed": efficiency.exposed_gathers.value,
        "slowest": np.maximum(work.gathers_s, work.dcn_s),
        "own": own_s,
    }
    tensor = {"links": work.tensor_s, "exposed": efficiency.exposed_tensor.value}
    waits = {
        "calls": work.reductions,
        "wait": efficiency.slice_wait_s.value,
        "hops": work.hops,
        "hop": efficiency.slice_hop_s.value,
        "skew": skew_share(work, own_s),
    }
    hidden_s = work.host.hidden_s(*pace(work, efficiency))
    return {
        "matmul": (SHARE, {"peak": work.matmul_s, "share": efficiency.matmul.value}),
        "attention": (SHARE, {"peak": work.attention_s, "share": efficiency.attention.value}),
        "weight_traffic": ("peak", {"peak": work.hbm_s}),
        "elementwise": ("bytes / rate", {"bytes": pass_bytes(layout), "rate": hbm_rate(layout)}),
        "offload": ("2 * way - hidden", {"way": work.host.one_way_s, "hidden": hidden_s}),
        "exposed_gathers": (GATHERS, gathers),
        "exposed_tensor": (EXPOSED, tensor),
        "serial_collectives": ("links", {"links": work.serial_s}),
        "slice_wait": (WAITS, waits),
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
