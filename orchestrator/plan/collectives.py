"""Every collective of a step: what one device exchanges, with which others, how often.

The ledger of seconds has a line for each exchange.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from orchestrator.network.mesh_axes import (
    GATHERED,
    GROUPS,
    REPLICA_AXES,
    SHARED_OVER_DCN,
    SLICE_REPLICAS,
    link_of,
)
from orchestrator.plan.kernel_constants import TILE
from orchestrator.plan.layout import DTYPE_BYTES, Layout, Number
from orchestrator.types.plan import Collective, CollectiveKind, LineKind
from orchestrator.types.spec_fields import DType

GATHER: CollectiveKind = "all-gather"
SCATTER: CollectiveKind = "reduce-scatter"
REDUCE: CollectiveKind = "all-reduce"

# Attention and MLP each gather their input over `tensor` and scatter their output; backward they
# gather the output's gradient and scatter the input's. The gathered input is not kept: gradients
# of the weights need it gathered again.
STREAM_GATHERS, STREAM_SCATTERS = 3, 2
ENDS = 2  # the embedding and the unembedding
WEIGHT_GATHERS = 2  # forward and backward; recompute shares the backward's
OVER_DCN = " over dcn"
KV_GATHERS = 2  # forward, and again for the backward pass


@dataclass(frozen=True)
class Part:
    """`calls` collectives a step; each gathers, scatters or reduces `bytes` in all.

    `serial` of the calls come before the first layer or after the last backward pass, where no
    matmul is left to hide them.
    """

    bytes: Number
    calls: Number
    serial: Number = 0


@dataclass(frozen=True)
class Exchange:
    """What a step exchanges over some mesh axes for one purpose; `formula` names the payload.

    `calls` is how often the links' latency is paid: parts that are sent in parallel pay it once.
    """

    line: LineKind
    name: str
    kind: CollectiveKind
    axes: tuple[str, ...]
    formula: str
    ways: Number
    calls: Number
    parts: tuple[Part, ...]
    dtype: DType

    @property
    def group(self) -> str:
        """The name of the devices that it joins."""
        return next((name for name, axes in GROUPS.items() if axes == self.axes), self.axes[0])

    @property
    def moved_bytes(self) -> Number:
        """Logical payload of a device in a step: V (n - 1) / n a call, an all-reduce twice that."""
        return self.moved(sum(part.calls * part.bytes for part in self.parts))

    @property
    def serial_bytes(self) -> Number:
        """The part of it that no matmul hides."""
        return self.moved(sum(p.serial * p.bytes for p in self.parts if np.any(p.serial)))

    def moved(self, volume: Number) -> Number:
        twice = 2 if self.kind == REDUCE else 1
        return twice * volume * (self.ways - 1) / self.ways

    def collective(self) -> Collective:
        """The exchange as a value of the Plan."""
        return Collective(
            kind=self.kind,
            axes=self.axes,
            link=link_of(self.axes),
            dtype=self.dtype,
            bytes_per_step=float(self.moved_bytes),
            calls_per_step=float(self.calls),
        )


def exchanges(layout: Layout) -> list[Exchange]:
    """Everything that counts in a step's time; over a single device nothing moves."""
    return [
        *stream_exchanges(layout),
        *weight_exchanges(layout),
        *key_value_exchanges(layout),
        *gradient_exchanges(layout),
    ]


def block_passes(layout: Layout) -> Number:
    """Forward passes of single blocks in a step."""
    return layout.model.layers * layout.microbatches


def stream_exchanges(layout: Layout) -> list[Exchange]:
    """The residual stream, split by position over `tensor`: around sublayers and at both ends."""
    sublayers = layout.network.block.sublayers
    again = sum(layout.recomputed(part.output) for part in sublayers)
    gathers = STREAM_GATHERS * len(sublayers) * block_passes(layout)
    scatters = (STREAM_SCATTERS * len(sublayers) + again) * block_passes(layout)
    ends = ENDS * layout.microbatches
    stream = layout.tokens * layout.model.d_model * layout.compute_bytes

    def exchange(line: LineKind, name: str, kind: CollectiveKind, calls: Number) -> Exchange:
        axes = GROUPS["tensor"]
        return Exchange(
            line, name, kind, axes, "tokens x d_model", layout.devices_along(axes), calls + ends,
            (Part(stream, calls + ends),), layout.precision.compute,
        )  # fmt: skip

    return [
        exchange("activation_gather", "residual gather", GATHER, gathers),
        exchange("activation_scatter", "residual scatter", SCATTER, scatters),
    ]


def weight_exchanges(layout: Layout) -> list[Exchange]:
    """Matrices gathered in each microbatch, and their gradients scattered.

    The weights of parallel matmuls are gathered as one. A tied table is gathered once for both of
    its uses; each of them has a gradient. A device first gets its own part from the other slices
    that share it, then the other parts over fsdp x sequence inside its slice. Nothing hides the
    first gathers, of the embedding and of the first matmuls, nor the scatters of their gradients,
    which come last.
    """
    block = [
        layout.total_elements(matmuls)
        for part in layout.network.block.sublayers
        for matmuls in (part.inputs, (part.output,))
    ]
    table, types = [layout.table_elements], layout.precision
    gather = partial(weight_exchange, layout, "weight_gather", GATHER, types.compute)
    scatter = partial(weight_exchange, layout, "gradient_scatter", SCATTER, types.gradients)
    of_block, of_table = "layer / tensor", "d_model x vocab / tensor"
    each, ends = block_passes(layout), ENDS * layout.microbatches
    tables = len(layout.network.tables) * layout.microbatches
    return [
        exchange
        for axes, suffix in ((GROUPS["weights"], ""), (SHARED_OVER_DCN, OVER_DCN))
        for exchange in (
            gather(axes, f"weight gather{suffix}", of_block, block, WEIGHT_GATHERS * each),
            gather(axes, f"table gather{suffix}", of_table, table, tables),
            scatter(axes, f"gradient scatter{suffix}", of_block, block, each),
            scatter(axes, f"table gradient scatter{suffix}", of_table, table, ends),
        )
    ]


def weight_exchange(
    layout: Layout,
    line: LineKind,
    kind: CollectiveKind,
    dtype: DType,
    axes: tuple[str, ...],
    name: str,
    formula: str,
    elements: list[Number],
    calls: Number,
) -> Exchange:
    """One exchange of weights or their gradients over the axes of one link."""
    parts_elsewhere, ways = 1, layout.devices_along(axes)
    if link_of(axes) == "dcn":
        formula += " / fsdp / sequence"
        parts_elsewhere = layout.devices_along(GROUPS["weights"])
    size = DTYPE_BYTES[dtype] / parts_elsewhere
    parts = tuple(Part(n * size, calls, serial=int(i == 0)) for i, n in enumerate(elements))
    return Exchange(line, name, kind, axes, formula, ways, calls, parts, dtype)


def key_value_exchanges(layout: Layout) -> list[Exchange]:
    """Keys and values of whole sequences, gathered forward and backward; their gradients back."""
    ways, tensors = layout.ways("length"), layout.network.block.attention.whole
    volumes = [layout.tensor_elements(one) * ways * layout.compute_bytes for one in tensors]

    def exchange(line: LineKind, name: str, kind: CollectiveKind, calls: Number) -> Exchange:
        return Exchange(
            line, name, kind, GROUPS["sequence"], "tokens x sequence x kv_heads x head_dim", ways,
            len(tensors) * calls, tuple(Part(volume, calls) for volume in volumes),
            layout.precision.compute,
        )  # fmt: skip

    return [
        exchange("kv_gather", "kv gather", GATHER, KV_GATHERS * block_passes(layout)),
        exchange("kv_scatter", "kv scatter", SCATTER, block_passes(layout)),
    ]


def gradient_exchanges(layout: Layout) -> list[Exchange]:
    """Gradients over all devices that hold the parameter: first inside a slice where it is
    repeated, and over the slices that share weights, then over its replicas. These scatter over
    `data`, reduce over `pods`, gather back.
    """
    wire, data = layout.gradient_bytes, layout.devices_along(GROUPS["data"])
    buckets = gradient_buckets(layout)
    whole = tuple(replace(one, bytes=one.bytes * wire) for one in buckets)
    shares = tuple(replace(one, bytes=one.bytes / data) for one in whole)
    payload = "owned gradient"

    def exchange(
        name: str, kind: CollectiveKind, axes: tuple[str, ...], formula: str,
        parts: tuple[Part, ...], ways: Number | None = None,
    ) -> Exchange:  # fmt: skip
        ways = layout.devices_along(axes) if ways is None else ways
        return Exchange("gradient_reduction", name, kind, axes, formula, ways, 1, parts,
                        layout.precision.gradients)  # fmt: skip

    return [
        exchange("kv weight copies", REDUCE, GROUPS["tensor"], "wk, wv",
                 copied_gradients(layout), layout.copies),
        exchange("norm gradients", REDUCE, GROUPS["replicas"], "norms", norm_gradients(layout)),
        exchange(f"norm gradients{OVER_DCN}", REDUCE, SHARED_OVER_DCN, "norms",
                 norm_gradients(layout)),
        exchange("data scatter", SCATTER, GROUPS["data"], payload, whole),
        exchange("data gather", GATHER, GROUPS["data"], payload, whole),
        exchange("pods", REDUCE, (SLICE_REPLICAS,), f"{payload} / data", shares),
    ]  # fmt: skip


def reduced_at_a_time(layout: Layout) -> tuple[Number, Number]:
    """Layers whose gradients are reduced at once, and how often that is done in a step.

    Each layer on its own where nothing accumulates; all layers at the end otherwise.
    """
    layers = layout.model.layers
    stacked = np.where(per_layer(layout), 1, layers)
    return stacked, layers // stacked


def per_layer(layout: Layout) -> Number:
    """Whether each layer's gradients are reduced as soon as the backward pass has them."""
    return (layout.microbatches == 1) & (layout.devices_along(REPLICA_AXES) > 1)


def copied_gradients(layout: Layout) -> tuple[Part, ...]:
    """Gradients of projections whose kv heads are copied to several devices."""
    layers, times = reduced_at_a_time(layout)
    size = layers * layout.gradient_bytes / layout.ways(GATHERED)
    weights = [matmul.weight for matmul in layout.copied_matmuls]
    return tuple(Part(size * layout.elements(weight), times, serial=1) for weight in weights)


def norm_gradients(layout: Layout) -> tuple[Part, ...]:
    """Gradients of norm scales, which every device of a slice holds."""
    layers, times = reduced_at_a_time(layout)
    wire, network = layout.gradient_bytes, layout.network
    of_block = tuple(
        Part(layers * norm.elements * wire, times, serial=1) for norm in network.block.norms
    )
    return (*of_block, Part(network.norm.elements * wire, 1, serial=1 - per_layer(layout)))


def gradient_buckets(layout: Layout) -> list[Part]:
    """Elements whose gradients are reduced over replicas as one, filled up to whole tiles.

    The weights of a layer are one bucket over `data` where each layer is reduced on its own;
    elsewhere each is one, and none waits for another. The first layer and the embedding come after
    the last backward pass, and where gradients accumulate all come there.
    """
    network, ways = layout.network, layout.ways(GATHERED)
    data = layout.devices_along(GROUPS["data"])
    layers, times = reduced_at_a_time(layout)
    joined = per_layer(layout) & (data > 1)
    weights = [layout.elements(one.weight) / ways for one in network.block.matmuls]
    weights += [norm.elements for norm in network.block.norms]
    embedding, *ends = [layout.elements(table) / ways for table in network.tables]
    ends.append(network.norm.elements)
    alone, early = 1 - joined, per_layer(layout)
    return [
        Part(padded(sum(weights), data), times * joined, serial=1 * joined),
        *(Part(padded(layers * one, data), times * alone, serial=alone) for one in weights),
        Part(padded(embedding, data), 1, serial=1),
        *(Part(padded(one, data), 1, serial=1 - early) for one in ends),
    ]


def padded(elements: Number, ways: Number) -> Number:
    """Elements filled up to whole tiles for every device that reduces them."""
    quantum = ways * TILE[0] * TILE[1]
    return np.where(ways > 1, np.ceil(elements / quantum) * quantum, elements)
