"""Plan room: every collective that the Llama trainer's body writes, one by one.

`traffic` adds up what travels, for links that are kept busy. Where a message costs more than its
bytes, as between processes of one machine, their number counts: here each has its own size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from orchestrator.plan.kernel_constants import LOSS_CHUNK_BYTES
from orchestrator.plan.layout import Layout
from orchestrator.plan.traffic import WEIGHT_GATHERS, padded
from orchestrator.types.chip_profile import Operation
from orchestrator.types.plan import AXES, LineKind
from orchestrator.types.spec import DType

SLICE = ("fsdp", "sequence", "tensor")
WEIGHTS = ("fsdp", "sequence")
FP32_BYTES = 4


@dataclass(frozen=True)
class Message:
    """`calls` a step of one collective over some mesh axes. `bytes` as for a Benchmark.

    `copies` stands for the innermost devices of `tensor` that share a kv head. So many as
    `together` says do not wait for one another.
    """

    line: LineKind
    name: str
    kind: Operation
    dtype: DType
    axes: tuple[str, ...]
    bytes: float
    calls: float
    together: int = 1


@dataclass(frozen=True)
class Leaf:
    """Parameters of one name on a device, and the axes of a slice over which they are repeated."""

    elements: float
    repeated: tuple[str, ...] = ()


def messages(layout: Layout, per_layer: bool) -> list[Message]:
    """Those of one step; over a single device nothing is sent."""
    found = [
        *stream_messages(layout),
        *weight_messages(layout),
        *key_value_messages(layout),
        *gradient_messages(layout, per_layer),
        *small_messages(layout),
    ]
    return [message for message in found if ways(layout, message.axes) > 1]


def ways(layout: Layout, axes: tuple[str, ...]) -> int:
    """Devices of the group."""
    return prod(int(size(layout, axis)) for axis in axes)


def stride(layout: Layout, axes: tuple[str, ...]) -> int:
    """How far neighbours of the group are apart, in the order of all devices."""
    if axes[-1] == "copies":
        return 1
    return prod(int(size(layout, axis)) for axis in AXES[AXES.index(axes[-1]) + 1 :])


def size(layout: Layout, axis: str) -> float:
    return float(layout.kv_copies if axis == "copies" else getattr(layout, axis))


def stream_messages(layout: Layout) -> Iterator[Message]:
    """The residual stream: piece by piece round the ring in the blocks, at once at the ends."""
    blocks, tensor = layout.model.layers * layout.microbatches, ("tensor",)
    use = layout.precision.compute
    stream = layout.tokens * layout.model.d_model * layout.compute_bytes
    gathers, scatters = 4 + 2, 4 + int(layout.remat.recomputes("mid"))
    hops = layout.tensor - 1
    yield Message(
        "activation_gather",
        "residual ring",
        "permute",
        use,
        tensor,
        stream / layout.tensor,
        (gathers + scatters) * hops * blocks,
    )
    for kind in ("all-gather", "reduce-scatter"):
        yield Message(
            "activation_gather",
            "residual ends",
            _scattering(kind, layout.tensor),
            use,
            tensor,
            stream,
            2 * layout.microbatches,
        )


def _scattering(kind: Operation, ways: float) -> Operation:
    """Over an odd number of devices the trainer reduces, and each keeps its part."""
    return "all-reduce" if kind == "reduce-scatter" and ways % 2 else kind


def weight_messages(layout: Layout) -> Iterator[Message]:
    """Matrices of a block as they travel together, both tables, and all their gradients."""
    blocks = layout.model.layers * layout.microbatches
    made = layout.layer_matrices
    together = [
        made["q"] + made["k"] + made["v"],
        made["mid"],
        made["up"] + made.get("gate", 0),
        made["down"],
    ]
    scatter = _scattering("reduce-scatter", layout.weight_ways)
    use, wire, types = layout.compute_bytes, layout.gradient_bytes, layout.precision
    for elements, gathers, count in (
        *((one, WEIGHT_GATHERS, blocks) for one in together),
        *((layout.table_elements, 1, layout.microbatches),) * 2,
    ):
        yield Message(
            "weight_gather",
            "weight gather",
            "all-gather",
            types.compute,
            WEIGHTS,
            elements * use,
            gathers * count,
        )
        yield Message(
            "gradient_scatter",
            "gradient scatter",
            scatter,
            types.gradients,
            WEIGHTS,
            elements * wire,
            count,
        )


def key_value_messages(layout: Layout) -> Iterator[Message]:
    """Keys and values of whole sequences: forward, again for the backward pass, and back."""
    calls = 2 * layout.model.layers * layout.microbatches
    width = layout.kv_heads * layout.model.head_dim * layout.compute_bytes
    volume = layout.tokens * layout.sequence * width
    scatter = _scattering("reduce-scatter", layout.sequence)
    use = layout.precision.compute
    yield Message("kv_gather", "kv gather", "all-gather", use, ("sequence",), volume, 2 * calls)
    yield Message("kv_scatter", "kv scatter", scatter, use, ("sequence",), volume, calls)


def gradient_messages(layout: Layout, per_layer: bool) -> Iterator[Message]:
    """Over the slice where a parameter is repeated, then over its replicas in three steps."""
    wire = layout.precision.gradients
    for parcel, times, together in gradient_parcels(layout, per_layer):
        sent = sum(leaf.elements for leaf in parcel)
        whole = float(padded(sent, layout.data)) * layout.gradient_bytes
        for leaf in parcel:
            if leaf.repeated:
                yield Message(
                    "gradient_reduction",
                    "repeated gradients",
                    "all-reduce",
                    wire,
                    leaf.repeated,
                    leaf.elements * layout.gradient_bytes,
                    times,
                )
        scatter = _scattering("reduce-scatter", layout.data)
        yield Message("gradient_reduction", "data scatter", scatter, wire, ("data",), whole, times)
        yield Message(
            "gradient_reduction",
            "pods",
            "all-reduce",
            wire,
            ("pods",),
            whole / layout.data,
            times,
            together,
        )
        yield Message(
            "gradient_reduction", "data gather", "all-gather", wire, ("data",), whole, times
        )


def gradient_parcels(layout: Layout, per_layer: bool) -> Iterator[tuple[list[Leaf], int, int]]:
    """The parameters whose gradients are reduced as one, how often in a step, and beside how many.

    Those of a layer are one parcel over `data`; elsewhere each is one, and none waits for another.
    """
    layers, norm = layout.model.layers, layout.model.d_model
    stacked, times = (1, layers) if per_layer else (layers, 1)
    leaves = [
        Leaf(stacked * elements / layout.weight_ways, ("copies",) if name in ("k", "v") else ())
        for name, elements in layout.layer_matrices.items()
    ]
    leaves += [Leaf(stacked * norm, SLICE)] * 2
    parcels = [leaves] if per_layer and layout.data > 1 else [[one] for one in leaves]
    yield from ((parcel, times, len(parcels)) for parcel in parcels)
    yield from (([Leaf(layout.table_elements / layout.weight_ways)], 1, 1),) * layout.tables
    yield [Leaf(norm, SLICE)], 1, 1


def small_messages(layout: Layout) -> Iterator[Message]:
    """Two numbers a token of the loss, and a few numbers a step."""
    tokens = layout.tokens * layout.microbatches
    chunk = min(layout.tokens, max(1, LOSS_CHUNK_BYTES // (FP32_BYTES * layout.vocab)))
    yield Message(
        "control",
        "loss of a chunk",
        "all-gather",
        "fp32",
        ("tensor",),
        2 * FP32_BYTES * layout.tensor * chunk,
        tokens / chunk,
    )
    yield Message("control", "loss", "all-reduce", "fp32", AXES, 3 * FP32_BYTES, 1)
    yield Message("control", "gradient norm", "all-reduce", "fp32", SLICE, FP32_BYTES, 1)


def vote() -> Message:
    """Whether to stop: what the loop asks all processes before each step."""
    return Message("control", "stop vote", "all-reduce", "fp32", AXES, 1, 1)
