"""The collectives of a step, message by message, as the trainer sends them.

They price a step where a message costs more than its bytes, as between processes of one machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.network.mesh_axes import AXES, GROUPS, PARAMETER_AXES
from orchestrator.plan.collectives import GATHER, REDUCE, SCATTER, Exchange, Part, exchanges
from orchestrator.plan.kernel_constants import LOSS_CHUNK_BYTES
from orchestrator.plan.layout import DTYPE_BYTES, Layout
from orchestrator.types.chip_profile import Operation
from orchestrator.types.plan import CollectiveKind, LineKind
from orchestrator.types.spec_fields import DType

FP32_BYTES = DTYPE_BYTES["fp32"]


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
