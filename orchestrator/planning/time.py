"""The ledger of seconds in a step. Every line keeps one resource busy at its peak rate. `lower`:
perfect overlap, the busiest resource plus what no matmul can hide; no run is faster.
`unoverlapped`: the sum of all lines, still at peak rates; real runs can be slower.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from orchestrator.catalog.chips import Chip, Quantity
from orchestrator.errors import SpecError, UnknownName
from orchestrator.network.mesh_axes import DCN_GROUPS, EXPERT_EXCHANGES, link_of
from orchestrator.planning import flops
from orchestrator.planning.collectives import ALL_TO_ALL, ENDS, exchanges
from orchestrator.planning.layout import Layout, Number, Training
from orchestrator.planning.memory import ACCUMULATION_BYTES, activation_bytes
from orchestrator.planning.torus import HOP_SOURCE
from orchestrator.values.plan import ATTENTION_LINES, LedgerLine, LineKind


def peak(chip: Chip, dtype: str) -> Quantity:
    if dtype not in chip.peak_flops_per_s:
        raise UnknownName(f"peak of {chip.name} for", dtype, sorted(chip.peak_flops_per_s))
    return chip.peak_flops_per_s[dtype]


def device_peak(layout: Layout) -> float:
    return peak(layout.chip, layout.precision.compute).value / layout.chip.devices


def time_lines(layout: Training) -> list[LedgerLine]:
    lines = [*math_lines(layout), *_hbm_lines(layout), *host_lines(layout)]
    # Payload over the rate of the group's links. Hops of every collective in a slice come one after
    # another, with a line for each group.
    calls: dict[str, Number] = {}
    for exchange in exchanges(layout):
        moved, group, link = exchange.moved_bytes, exchange.group, layout.chip.dcn_bytes_per_s
        if link_of(exchange.axes) == "ici":
            link = layout.chip.ici_link_bytes_per_s
            calls[group] = calls.get(group, 0) + exchange.calls * (exchange.ways > 1)
        rate = layout.links.bytes_per_s(group, all_to_all=exchange.kind == ALL_TO_ALL)
        lines.append(
            LedgerLine(
                kind=exchange.line,
                name=exchange.name,
                value=moved / rate,
                unit="s",
                formula=f"{exchange.kind} of {exchange.formula} in {exchange.dtype} / rate",
                inputs={"bytes": moved, "rate": rate, "calls": exchange.calls},
                sources=(link.source,),
                resource=group,
                collective=exchange.collective(layout.mesh) if np.ndim(moved) == 0 else None,
                serial_s=exchange.serial_bytes / rate,
            )
        )
    if np.any(layout.stages > 1):
        # What each resource of a stage waits at the ends of a step, as if it were the only one.
        by_layer, busy = 1 - layout.gathers_once, dict[str, Number]()
        for line in lines:
            share = by_layer if line.kind in IN_TICKS_IF_GATHERED else line.kind in IN_TICKS
            _add(busy, line, share * line.value)
        lines += [
            LedgerLine(
                kind="pipeline_bubble",
                name=f"bubble of {_BUBBLE_NAMES.get(name, name)}",
                value=layout.bubble * seconds,
                unit="s",
                formula="passes x (stages - 1) / (microbatches x chunks)",
                inputs={"passes": seconds, "stages": layout.stages,
                        "microbatches": layout.microbatches, "chunks": layout.chunks},
                resource=name,
            )
            for name, seconds in busy.items()
            if np.any(seconds)
        ]  # fmt: skip
    hops = [
        LedgerLine(
            kind="latency",
            name=f"{group} latency",
            value=layout.links.latency_s(group, count),
            unit="s",
            formula="calls x hops x 1 us",
            inputs={"calls": count, "hops": layout.links.hops[group]},
            sources=(HOP_SOURCE,),
            resource="latency",
        )
        for group, count in calls.items()
    ]
    return lines + hops


# What multiplies in the compute type.
NARROW_LINES: tuple[LineKind, ...] = (
    "matmul", "copied_heads", "expert_padding", "expert_imbalance", "matmul_recompute",
)  # fmt: skip
# Lines of a pipeline's passes, in each tick; words and losses are made once a microbatch. A program
# does them also in ticks in which a stage has no work: the ledger has the seconds as the bubble.
IN_TICKS: tuple[LineKind, ...] = (
    *NARROW_LINES, *ATTENTION_LINES, "activation_traffic", "activation_gather",
    "activation_scatter", "kv_gather", "kv_scatter", *EXPERT_EXCHANGES,
)  # fmt: skip
IN_TICKS_IF_GATHERED: tuple[LineKind, ...] = ("weight_gather", "gradient_scatter")


_BUBBLE_NAMES = {"mxu": "matmuls", "hbm": "memory traffic"}


def activation_peak(layout: Layout) -> float:
    return peak(layout.chip, layout.activation_type).value / layout.chip.devices


# fp32 reads of each gradient: Adafactor needs its means before it can scale it.
_GRADIENT_READS = {"adamw": 1, "adafactor": 2, "muon": 1}


def math_lines(layout: Training) -> list[LedgerLine]:
    """Executed FLOPs over peak: blocks' matrices in the compute type, others in activations'."""
    narrow = peak(layout.chip, layout.precision.compute)
    wide = peak(layout.chip, layout.activation_type)

    def line(kind: LineKind, name: str, formula: str, count: Number) -> LedgerLine:
        rate = narrow if kind in NARROW_LINES else wide
        return rated_line(layout, kind, name, f"{formula} flops", "mxu", count, rate)

    passes = 1 + flops.BACKWARD_OVER_FORWARD
    # Projections of keys and values that another device makes as well.
    copies = flops.matmul_flops(layout, layout.layer_elements_of_a_head) * layout.copied_heads
    own = flops.blocks_forward_flops(layout) - copies
    attention = flops.attention_forward_flops(layout) + flops.attention_backward_flops(layout)
    return [
        line("matmul", "matmuls", "3 forward", passes * own),
        line("copied_heads", "copied kv heads", "3 forward", passes * copies),
        line("expert_padding", "empty rows of experts", "forward and backward",
             flops.expert_padding_flops(layout)),
        line("expert_imbalance", "imbalance of experts", "3 forward of what is beyond the mean",
             flops.expert_imbalance_flops(layout)),
        line("unembedding", "unembedding", "3 forward",
             passes * flops.unembedding_forward_flops(layout)),
        line("vocab_padding", "vocabulary padding", "3 forward",
             passes * flops.padding_forward_flops(layout)),
        line("attention", "attention", "forward and backward", attention),
        line("matmul_recompute", "recompute", "matmuls that the policy repeats",
             flops.blocks_recompute_flops(layout)),
        line("attention_recompute", "attention recompute", "forward",
             flops.attention_recompute_flops(layout)),
        line("orthogonalization", "orthogonalization", "5 steps of Newton and Schulz",
             flops.orthogonalization_flops(layout)),
    ]  # fmt: skip


def _hbm_lines(layout: Training) -> list[LedgerLine]:
    """Traffic that no fusion avoids: weights, kept activations, and the optimizer's state."""
    rate = layout.chip.hbm_bytes_per_s
    weights = layout.layer_elements + ENDS * layout.table_elements + layout.position_elements
    # Two gathers write the weights and matmuls read them; their gradient is written and read.
    touched = 4 * layout.compute_bytes + 2 * layout.gradient_bytes
    # The update reads and writes parameters and moments, and reads the fp32 gradient.
    reads = _GRADIENT_READS[layout.optimizer.name] * ACCUMULATION_BYTES
    update = 2 * (layout.parameter_bytes + layout.moment_bytes) + reads

    def line(kind: LineKind, name: str, formula: str, moved: Number) -> LedgerLine:
        return rated_line(layout, kind, name, formula, "hbm", moved, rate)

    return [
        line("weight_traffic", "weight traffic", f"{touched} B x gathered weights",
             touched * (layout.microbatches * weights)),
        line("activation_traffic", "activation traffic", "2 x kept + 4 x offloaded activations",
             activation_traffic_bytes(layout)),
        line("optimizer_update", "optimizer update", f"{update} B x owned",
             update * layout.owned_elements),
    ]  # fmt: skip


def activation_traffic_bytes(layout: Training) -> Number:
    """HBM traffic of activations: each is written and read, and twice if it is offloaded."""
    kept, offloaded = (activation_bytes(layout, what) for what in ("keep", "offload"))
    return 2 * layout.microbatches * (kept + 2 * offloaded)


def host_lines(layout: Training) -> list[LedgerLine]:
    if not layout.remat.needs_host:
        return []
    rate = layout.chip.host_link_bytes_per_s
    if rate is None:
        raise SpecError(
            f"experiment.remat offloads, and no rate between {layout.chip.name} and its host is"
            " known: choose a policy that keeps its tensors in HBM"
        )
    moved = 2 * layout.microbatches * activation_bytes(layout, "offload")
    formula = "2 x offloaded activations"
    return [rated_line(layout, "offload", "offload", formula, "host", moved, rate)]


def rated_line(
    layout: Layout,
    kind: LineKind,
    name: str,
    formula: str,
    resource: str,
    amount: Number,
    rate: Quantity,
) -> LedgerLine:
    """FLOPs or bytes over a chip's rate; the devices of a chip share it."""
    per_device = rate.value / layout.chip.devices
    return LedgerLine(
        kind=kind,
        name=name,
        value=amount / per_device,
        unit="s",
        formula=f"{formula} / rate",
        inputs={"flops" if resource == "mxu" else "bytes": amount, "rate": per_device},
        sources=(rate.source,),
        resource=resource,
    )


def matmul_line(layout: Layout, name: str, formula: str, count: Number) -> LedgerLine:
    rate = peak(layout.chip, layout.precision.compute)
    return rated_line(layout, "matmul", name, formula, "mxu", count, rate)


def ledger_of_parts(
    parts: Mapping[LineKind, Number],
    formulas: Mapping[LineKind, tuple[str, str, dict[str, Number]]],
    lower_s: Number,
    source: str,
) -> tuple[LedgerLine, ...]:
    """An expected step as a ledger that adds up to it, from the seconds of its parts and the name,
    the formula and the numbers of each.
    """
    lines = []
    for kind, seconds in parts.items():
        if seconds > 0:
            name, formula, inputs = formulas[kind]
            lines.append(
                LedgerLine(
                    kind=kind, name=name, value=seconds, unit="s", formula=formula, inputs=inputs,
                    sources=(source,),
                )
            )  # fmt: skip
    total_s = sum(parts.values())
    return (*lines, *([busiest_line(lower_s, total_s, source)] if total_s < lower_s else []))


def busiest_line(lower_s: float, above_s: float, source: str) -> LedgerLine:
    """What an expected step lacks to its lower bound."""
    return LedgerLine(
        kind="busiest_resource",
        name="waiting for the busiest resource",
        value=lower_s - above_s,
        unit="s",
        formula="lower - above",
        inputs={"lower": lower_s, "above": above_s},
        sources=(source,),
    )


@dataclass(frozen=True)
class StepTime:
    """Seconds by resource and by torus axis, and the sum of all lines. `serial_s` is what no matmul
    hides; `overlapped_s` what the rest takes of its busiest resource.
    """

    busy_s: dict[str, Number]
    torus_axis_s: Number
    serial_s: Number
    overlapped_s: Number
    unoverlapped_s: Number

    @property
    def lower_s(self) -> Number:
        busiest = _busiest_s(self.busy_s, self.torus_axis_s)
        return np.maximum(busiest, self.overlapped_s + self.serial_s)

    @property
    def dcn_s(self) -> Number:
        return _between_slices_s(self.busy_s)


# A parameter is updated as soon as its gradient is reduced, while others are still on their way.
_DURING_REDUCTION: tuple[LineKind, ...] = ("optimizer_update",)


def step_time(layout: Training, lines: list[LedgerLine]) -> StepTime:
    """Add up a ledger. Collectives on one torus axis take turns; serial ones overlap each other."""
    busy: dict[str, Number] = {}
    serial: dict[str, Number] = {}
    overlapped: dict[str, Number] = {}
    for line in lines:
        _add(busy, line, line.value)
        if np.any(line.serial_s):
            _add(serial, line, line.serial_s)
        if line.kind not in _DURING_REDUCTION:
            _add(overlapped, line, line.value)
    for name, seconds in serial.items():
        overlapped[name] = overlapped[name] - seconds
    torus_axis_s = _axis_s(layout, busy)
    return StepTime(
        busy_s=busy,
        torus_axis_s=torus_axis_s,
        serial_s=_busiest_s(serial, _axis_s(layout, serial)),
        overlapped_s=_busiest_s(overlapped, _axis_s(layout, overlapped)),
        unoverlapped_s=sum(line.value for line in lines),
    )


def _add(by_resource: dict[str, Number], line: LedgerLine, seconds: Number) -> None:
    name = line.resource or ""
    by_resource[name] = by_resource.get(name, 0.0) + seconds


def _axis_s(layout: Layout, by_resource: dict[str, Number]) -> Number:
    return sum(
        (
            np.expand_dims(np.asarray(by_resource[group]), -1) * uses
            for group, uses in layout.links.uses.items()
            if group in by_resource
        ),
        start=np.zeros(1),
    )


def _busiest_s(by_resource: dict[str, Number], torus_axis_s: Number) -> Number:
    slowest_axis = np.max(torus_axis_s, axis=-1)
    others = [by_resource[name] for name in ("mxu", "hbm", "host") if name in by_resource]
    between = _between_slices_s(by_resource)
    return np.maximum.reduce(np.broadcast_arrays(slowest_axis, between, *others))


def _between_slices_s(by_resource: dict[str, Number]) -> Number:
    """Collectives between slices take turns on one network."""
    return sum(by_resource.get(group, 0.0) for group in DCN_GROUPS)
