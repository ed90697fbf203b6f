"""Every collective of a step, once: what one device exchanges with which others.

The ledger of seconds adds them up, a line for each exchange. Where a message costs more than its
bytes, `messages` lists what the trainer sends one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from orchestrator.network.description import Matmul
from orchestrator.network.mesh_axes import (
    AXES,
    DCN_AXES,
    GATHERED,
    GROUPS,
    PARAMETER_AXES,
    REPLICA_AXES,
)
from orchestrator.plan.kernel_constants import LOSS_CHUNK_BYTES, TILE
from orchestrator.plan.layout import Layout, Number
from orchestrator.types.chip_profile import Operation
from orchestrator.types.plan import Collective, CollectiveKind, LineKind
from orchestrator.types.spec import DType

GATHER: CollectiveKind = "all-gather"
SCATTER: CollectiveKind = "reduce-scatter"
REDUCE: CollectiveKind = "all-reduce"

# Attention and MLP each gather their input over `tensor` and scatter their output; backward they
# gather the output's gradient and scatter the input's. The gathered input is not kept: gradients
# of the weights need it gathered again.
STREAM_GATHERS, STREAM_SCATTERS = 3, 2
ENDS = 2  # the embedding and the unembedding
WEIGHT_GATHERS = 2  # forward and backward; recompute shares the backward's
KV_GATHERS = 2  # forward, and again for the backward pass
FP32_BYTES = 4


@dataclass(frozen=True)
class Part:
    """`calls` collectives a step of `bytes` each, `together` of which do not wait for each other.

    `bytes` is the whole of what is gathered, scattered or reduced. A `ring` part travels piece by
    piece while the device multiplies what it has.
    """

    bytes: Number
    calls: Number
    together: int = 1
    ring: bool = False


@dataclass(frozen=True)
class Exchange:
    """What a step exchanges over some mesh axes for one purpose; `formula` names the payload.

    `calls` is how often the links' latency is paid: parts that travel side by side pay it once.
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
        twice = 2 if self.kind == REDUCE else 1
        volume = sum(part.calls * part.bytes for part in self.parts)
        return twice * volume * (self.ways - 1) / self.ways

    def collective(self) -> Collective:
        """The same as the Plan states it."""
        return Collective(
            kind=self.kind,
            axes=self.axes,
            link="dcn" if self.axes == DCN_AXES else "ici",
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


def blocks(layout: Layout) -> Number:
    """How often a step goes through a block."""
    return layout.model.layers * layout.microbatches


def stream_exchanges(layout: Layout) -> list[Exchange]:
    """The residual stream, split by position over `tensor`: around sublayers and at both ends."""
    sublayers = layout.network.block.sublayers
    again = sum(layout.remat.recomputes(part.output.output.name) for part in sublayers)
    gathers = STREAM_GATHERS * len(sublayers) * blocks(layout)
    scatters = (STREAM_SCATTERS * len(sublayers) + again) * blocks(layout)
    ends = ENDS * layout.microbatches
    stream = layout.tokens * layout.model.d_model * layout.compute_bytes

    def exchange(line: LineKind, name: str, kind: CollectiveKind, calls: Number) -> Exchange:
        axes = GROUPS["tensor"]
        return Exchange(
            line, name, kind, axes, "tokens x d_model", layout.devices_along(axes), calls + ends,
            (Part(stream, calls, ring=True), Part(stream, ends)), layout.precision.compute,
        )  # fmt: skip

    return [
        exchange("activation_gather", "residual gather", GATHER, gathers),
        exchange("activation_scatter", "residual scatter", SCATTER, scatters),
    ]


def weight_exchanges(layout: Layout) -> list[Exchange]:
    """Matrices gathered over fsdp x sequence in each microbatch, and their gradients scattered.

    Matmuls side by side travel as one.
    """
    parcels: list[tuple[Matmul, ...]] = []
    for part in layout.network.block.sublayers:
        parcels += [part.inputs, (part.output,)]
    block = [layout.total_elements(parcel) for parcel in parcels]
    tables = [layout.table_elements] * ENDS
    types, in_use, on_wire = layout.precision, layout.compute_bytes, layout.gradient_bytes
    each, once = blocks(layout), layout.microbatches

    def exchange(
        line: LineKind, name: str, kind: CollectiveKind, formula: str,
        elements: list[Number], size: int, each: Number, calls: Number, dtype: DType,
    ) -> Exchange:  # fmt: skip
        parts = tuple(Part(one * size, each) for one in elements)
        ways = layout.ways(GATHERED)
        return Exchange(line, name, kind, GROUPS["weights"], formula, ways, calls, parts, dtype)

    of_layer, of_table = "layer / tensor", "d_model x vocab / tensor"
    gathers = WEIGHT_GATHERS * each
    return [
        exchange("weight_gather", "weight gather", GATHER, of_layer,
                 block, in_use, gathers, gathers, types.compute),
        exchange("weight_gather", "table gather", GATHER, of_table,
                 tables, in_use, once, ENDS * once, types.compute),
        exchange("gradient_scatter", "gradient scatter", SCATTER, of_layer,
                 block, on_wire, each, each, types.gradients),
        exchange("gradient_scatter", "table gradient scatter", SCATTER, of_table,
                 tables, on_wire, once, ENDS * once, types.gradients),
    ]  # fmt: skip


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
        exchange("kv_gather", "kv gather", GATHER, KV_GATHERS * blocks(layout)),
        exchange("kv_scatter", "kv scatter", SCATTER, blocks(layout)),
    ]


def gradient_exchanges(layout: Layout) -> list[Exchange]:
    """Gradients over all devices that hold the parameter: first inside a slice where it is
    repeated, then over its replicas. These scatter over `data`, reduce over `pods`, gather back.
    """
    wire, data = layout.gradient_bytes, layout.devices_along(GROUPS["data"])
    parcels = gradient_parcels(layout)
    whole = tuple(Part(one.bytes * wire, one.calls, one.together) for one in parcels)
    shares = tuple(Part(one.bytes / data, one.calls, one.together) for one in whole)
    say = "owned gradient"

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
        exchange("data scatter", SCATTER, GROUPS["data"], say, whole),
        exchange("data gather", GATHER, GROUPS["data"], say, whole),
        exchange("pods", REDUCE, DCN_AXES, f"{say} / data", shares),
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
    """Gradients of projections whose kv heads stand on several devices."""
    layers, times = reduced_at_a_time(layout)
    size = layers * layout.gradient_bytes / layout.ways(GATHERED)
    weights = [matmul.weight for matmul in layout.copied_matmuls]
    return tuple(Part(size * layout.elements(weight), times) for weight in weights)


def norm_gradients(layout: Layout) -> tuple[Part, ...]:
    """Gradients of norm scales, which every device of a slice holds."""
    layers, times = reduced_at_a_time(layout)
    wire, network = layout.gradient_bytes, layout.network
    of_block = tuple(Part(layers * norm.elements * wire, times) for norm in network.block.norms)
    return (*of_block, Part(network.norm.elements * wire, 1))


def gradient_parcels(layout: Layout) -> list[Part]:
    """Elements whose gradients are reduced over replicas as one, filled up to whole tiles.

    The weights of a layer are one parcel over `data` where each layer is reduced on its own;
    elsewhere each is one, and none waits for another.
    """
    network, data, ways = (
        layout.network,
        layout.devices_along(GROUPS["data"]),
        layout.ways(GATHERED),
    )
    layers, times = reduced_at_a_time(layout)
    joined = per_layer(layout) & (data > 1)
    weights = [layout.elements(one.weight) / ways for one in network.block.matmuls]
    weights += [norm.elements for norm in network.block.norms]
    ends = [layout.elements(table) / ways for table in network.tables]
    ends.append(network.norm.elements)
    return [
        Part(padded(sum(weights), data), times * joined),
        *(Part(padded(layers * one, data), times * (1 - joined), len(weights)) for one in weights),
        *(Part(padded(one, data), 1) for one in ends),
    ]


def padded(elements: Number, ways: Number) -> Number:
    """Elements filled up to whole tiles for every device that reduces them."""
    quantum = ways * TILE[0] * TILE[1]
    return np.where(ways > 1, np.ceil(elements / quantum) * quantum, elements)


# --- the same, message by message


@dataclass(frozen=True)
class Message:
    """`calls` a step of one operation in groups of `ways` devices, `stride` apart in the order of
    all devices. `bytes` is the whole payload; of a permute, what each device sends.
    """

    line: LineKind
    name: str
    operation: Operation
    dtype: DType
    axes: tuple[str, ...]
    ways: int
    stride: int
    bytes: float
    calls: float
    together: int


def messages(layout: Layout, *, processes: int) -> list[Message]:
    """What the trainer sends in a step of one layout; over a single device nothing.

    Several processes vote before each step.
    """
    control = [*control_exchanges(layout), *([stop_vote(layout)] if processes > 1 else [])]
    return [
        message(layout, exchange, part)
        for exchange in (*exchanges(layout), *control)
        for part in exchange.parts
        if exchange.ways > 1 and part.calls > 0
    ]


def message(layout: Layout, exchange: Exchange, part: Part) -> Message:
    """One part as the trainer sends it: a ring hop by hop, a scatter over an odd number of devices
    as a reduction of which each keeps its share.
    """
    ways, size, calls = int(exchange.ways), float(part.bytes), float(part.calls)
    operation: Operation = exchange.kind
    if part.ring:
        operation, size, calls = "permute", size / ways, calls * (ways - 1)
    elif exchange.kind == SCATTER and ways % 2:
        operation = REDUCE
    return Message(
        exchange.line, exchange.name, operation, exchange.dtype, exchange.axes, ways,
        stride(layout, exchange.axes), size, calls, part.together,
    )  # fmt: skip


def stride(layout: Layout, axes: tuple[str, ...]) -> int:
    """How far neighbours of the group are apart, in the order of all devices."""
    return int(layout.devices_along(AXES[AXES.index(axes[-1]) + 1 :]))


def control_exchanges(layout: Layout) -> Iterator[Exchange]:
    """Two numbers a token of the loss, and a few numbers a step: too little for the ledger."""
    vocab, _ = layout.network.head.dimensions
    tokens = layout.tokens * layout.microbatches
    chunk = min(layout.tokens, max(1, LOSS_CHUNK_BYTES // (FP32_BYTES * layout.size(vocab))))
    tensor = layout.devices_along(GROUPS["tensor"])
    chunks = Part(2 * FP32_BYTES * tensor * chunk, tokens / chunk)
    yield control_exchange(layout, "loss of a chunk", GATHER, GROUPS["tensor"], chunks)
    yield control_exchange(layout, "loss", REDUCE, AXES, Part(3 * FP32_BYTES, 1))
    yield control_exchange(layout, "gradient norm", REDUCE, PARAMETER_AXES, Part(FP32_BYTES, 1))


def stop_vote(layout: Layout) -> Exchange:
    """Whether to stop: what the loop asks all processes before each step."""
    return control_exchange(layout, "stop vote", REDUCE, AXES, Part(1, 1))


def control_exchange(
    layout: Layout, name: str, kind: CollectiveKind, axes: tuple[str, ...], part: Part
) -> Exchange:
    ways = layout.devices_along(axes)
    return Exchange("control", name, kind, axes, "a few numbers", ways, part.calls, (part,), "fp32")
