"""Plan room: the ledger of seconds in a step, and the two figures it adds up to.

Every line keeps one resource busy at its peak rate. `lower` overlaps all resources perfectly: the
busiest one decides, so no run is faster. `unoverlapped` adds all lines up: nothing is hidden, but
rates are still peaks, so real runs can be slower.
"""

from dataclasses import dataclass

import numpy as np

from orchestrator.catalog import Chip, Quantity
from orchestrator.errors import SpecError, UnknownName
from orchestrator.plan import compute
from orchestrator.plan.layout import DTYPE_BYTES, Layout, Number
from orchestrator.plan.memory import offloaded_bytes, saved_bytes
from orchestrator.plan.torus import HOP_S, HOP_SOURCE
from orchestrator.plan.traffic import Exchange, exchanges
from orchestrator.types.plan import LedgerLine, LineKind


def peak(chip: Chip, dtype: str) -> Quantity:
    """Peak FLOP/s of a chip in a type; a type it has no figure for is an error."""
    if dtype not in chip.peak_flops_per_s:
        raise UnknownName(f"peak of {chip.name} for", dtype, sorted(chip.peak_flops_per_s))
    return chip.peak_flops_per_s[dtype]


def time_lines(layout: Layout) -> list[LedgerLine]:
    """All lines of a step."""
    moved = exchanges(layout)
    return [
        *math_lines(layout),
        *hbm_lines(layout),
        *host_lines(layout),
        *(exchange_line(layout, entry) for entry in moved),
        *latency_lines(layout, moved),
    ]


def math_lines(layout: Layout) -> list[LedgerLine]:
    """Executed FLOPs over the peak of the compute type."""
    both = 1 + compute.BACKWARD_OVER_FORWARD
    copies = compute.copied_heads_flops(layout)
    own = compute.layers_forward_flops(layout) - copies
    scores = compute.attention_forward_flops(layout)
    attention = scores + compute.attention_backward_flops(layout)
    again = compute.attention_recompute_flops(layout)
    repeats = f"matmuls that {layout.remat.name} repeats"
    return [
        math_line(layout, "matmul", "matmuls", "3 forward", both * own),
        math_line(layout, "matmul", "copied kv heads", "3 forward", both * copies),
        math_line(layout, "matmul", "unembedding", "3 forward",
                  both * compute.unembedding_forward_flops(layout)),
        math_line(layout, "attention", "attention", "9/2 forward", attention),
        math_line(layout, "matmul_recompute", "recompute", repeats,
                  compute.layers_recompute_flops(layout)),
        math_line(layout, "attention_recompute", "attention recompute", "forward", again),
    ]  # fmt: skip


def math_line(layout: Layout, kind: LineKind, name: str, formula: str, flops: Number) -> LedgerLine:
    rate = peak(layout.chip, layout.precision.compute)
    return rated_line(layout, kind, name, f"{formula} flops", "mxu", ("flops", flops), rate)


def hbm_lines(layout: Layout) -> list[LedgerLine]:
    """Traffic that no fusion avoids: weights, what is kept, and the optimizer's state."""
    precision, batches = layout.precision, layout.microbatches
    weights = batches * (layout.model.layers * layout.layer_elements + 2 * layout.table_elements)
    # Two gathers write the weights and matmuls read them; their gradient is written and read.
    touched = 4 * layout.compute_bytes + 2 * layout.gradient_bytes
    kept = 2 * batches * layout.model.layers * saved_bytes(layout)
    # The update reads and writes parameters and both moments, and reads the fp32 gradient.
    state = DTYPE_BYTES[precision.parameters] + 2 * DTYPE_BYTES[precision.optimizer]
    update = (2 * state + 4) * layout.owned_elements
    rate = layout.chip.hbm_bytes_per_s
    return [
        rated_line(layout, "weight_traffic", "weight traffic", f"{touched} B x gathered weights",
                   "hbm", ("bytes", touched * weights), rate),
        rated_line(layout, "activation_traffic", "activation traffic", "2 x kept activations",
                   "hbm", ("bytes", kept), rate),
        rated_line(layout, "optimizer_update", "optimizer update", f"{2 * state + 4} B x owned",
                   "hbm", ("bytes", update), rate),
    ]  # fmt: skip


def host_lines(layout: Layout) -> list[LedgerLine]:
    """What the policy offloads goes to the host and comes back."""
    if not layout.remat.needs_host:
        return []
    rate = layout.chip.host_link_bytes_per_s
    if rate is None:
        raise SpecError(
            f"remat {layout.remat.name} cannot be priced: no rate between {layout.chip.name} and"
            " its host is known; choose a policy that keeps its tensors in HBM"
        )
    moved = 2 * layout.microbatches * layout.model.layers * offloaded_bytes(layout)
    return [
        rated_line(
            layout,
            "offload",
            "offload",
            "2 x offloaded activations",
            "host",
            ("bytes", moved),
            rate,
        )
    ]


def rated_line(
    layout: Layout,
    kind: LineKind,
    name: str,
    formula: str,
    resource: str,
    amount: tuple[str, Number],
    rate: Quantity,
) -> LedgerLine:
    """An amount over a chip's rate; the devices of a chip share it."""
    unit, size = amount
    per_device = rate.value / layout.chip.devices
    return LedgerLine(
        kind=kind,
        name=name,
        value=size / per_device,
        unit="s",
        formula=f"{formula} / rate",
        inputs={unit: size, "rate": per_device},
        sources=(rate.source,),
        resource=resource,
    )


def exchange_line(layout: Layout, entry: Exchange) -> LedgerLine:
    """Payload over the rate of the group's links."""
    scalar = np.ndim(entry.moved_bytes) == 0
    collective = entry.collective() if scalar else None
    if entry.group == "pods":
        link, rate = layout.chip.dcn_bytes_per_s, pods_rate(layout.chip)
    else:
        link, rate = layout.chip.ici_link_bytes_per_s, layout.links.rates[entry.group]
    return LedgerLine(
        kind=entry.line,
        name=entry.name,
        value=entry.moved_bytes / rate,
        unit="s",
        formula=f"{entry.kind} of {entry.formula} in {entry.dtype} / rate",
        inputs={"bytes": entry.moved_bytes, "rate": rate, "calls": entry.calls},
        sources=(link.source,),
        resource=entry.group,
        collective=collective,
    )


def pods_rate(chip: Chip) -> float:
    """Bytes per second that a device sends over the data-center network."""
    return chip.dcn_bytes_per_s.value / chip.devices


def latency_lines(layout: Layout, moved: list[Exchange]) -> list[LedgerLine]:
    """Hops of every collective in a slice, one after another, a line for each group."""
    calls: dict[str, Number] = {}
    for entry in moved:
        if entry.group != "pods":
            calls[entry.group] = calls.get(entry.group, 0) + entry.calls * (entry.ways > 1)
    return [
        LedgerLine(
            kind="latency",
            name=f"{group} latency",
            value=count * layout.links.hops[group] * HOP_S,
            unit="s",
            formula="calls x hops x 1 us",
            inputs={"calls": count, "hops": layout.links.hops[group]},
            sources=(HOP_SOURCE,),
            resource="latency",
        )
        for group, count in calls.items()
    ]


@dataclass(frozen=True)
class StepTime:
    """Seconds by resource, the seconds that each torus axis is busy, and the sum of all lines."""

    busy_s: dict[str, Number]
    torus_axis_s: Number
    unoverlapped_s: Number

    @property
    def lower_s(self) -> Number:
        slowest_axis = np.max(self.torus_axis_s, axis=-1)
        others = [self.busy_s[name] for name in NOT_ICI if name in self.busy_s]
        return np.maximum.reduce(np.broadcast_arrays(slowest_axis, *others))


NOT_ICI = ("mxu", "hbm", "host", "pods")


def step_time(layout: Layout, lines: list[LedgerLine]) -> StepTime:
    """Add up a ledger. Collectives that use the same torus axis take turns on it."""
    busy: dict[str, Number] = {}
    for line in lines:
        busy[line.resource or ""] = busy.get(line.resource or "", 0.0) + line.value
    torus_axis_s = sum(
        np.expand_dims(np.asarray(busy[group]), -1) * uses
        for group, uses in layout.links.uses.items()
        if group in busy
    )
    return StepTime(busy, torus_axis_s, sum(line.value for line in lines))
