"""The ledger of bytes on one device: the largest of the phases of a step.

What is alive in a layer's backward pass, in the loss, and in the optimizer is not alive at once:
the peak is the largest phase, not the sum of all lines.
"""

from functools import partial

import numpy as np

from orchestrator.network.description import Block, Tensor
from orchestrator.network.mesh_axes import (
    GROUPS,
    REPLICA_AXES,
    SHARED_OVER_DCN,
    SLICE_REPLICAS,
)
from orchestrator.plan.kernel_constants import loss_chunk_bytes
from orchestrator.plan.layout import Layout, Number
from orchestrator.plan.memory_backward import backward_lines
from orchestrator.plan.memory_lines import (
    ACCUMULATION_BYTES,
    FP32_BYTES,
    line,
    named,
    split_ways,
    stream_bytes,
)
from orchestrator.plan.optimizers import other_moments
from orchestrator.plan.tiles import whole
from orchestrator.types.plan import LedgerLine, MemoryPhase
from orchestrator.types.spec_fields import Treatment


def phases(layout: Layout) -> tuple[MemoryPhase, ...]:
    """All phases of a step, each with its lines."""
    resting = resting_lines(layout)
    kept, gradients = kept_lines(layout), gradient_lines(layout)
    saved = [*resting, copy_line(layout, waiting_copies(layout)), *kept]
    in_layers = [*resting, copy_line(layout, layout.stored_layer_elements), *kept, *gradients]
    backward = [
        phase(f"{name} backward", [*in_layers, *lines])
        for block in layout.network.blocks
        for name, lines in backward_lines(layout, block)
    ]
    arrival = arrival_lines(layout)
    return (
        *([phase("unembedding", [*saved, *arrival])] if arrival else []),
        phase("loss", [*saved, *loss_lines(layout)]),
        *backward,
        phase("embedding backward", [*resting, *gradients, *embedding_lines(layout)]),
        phase("optimizer", [*resting, *optimizer_lines(layout)]),
    )


def peak_bytes(layout: Layout) -> Number:
    """The largest phase."""
    return np.maximum.reduce(np.broadcast_arrays(*(phase.bytes for phase in phases(layout))))


def phase(name: str, lines: list[LedgerLine]) -> MemoryPhase:
    return MemoryPhase(name=name, lines=tuple(lines), bytes=sum(line.value for line in lines))


def resting_lines(layout: Layout) -> list[LedgerLine]:
    """What a device holds all through the step. Copied kv heads, and rows that fill up the
    vocabulary, have lines of their own.
    """
    copied, filled = layout.copied_elements, layout.padding_elements
    own = layout.stored_parameter_elements - copied - filled
    parameter, moments = layout.parameter_bytes, layout.moment_bytes
    sums = ACCUMULATION_BYTES * (layout.microbatches > 1)
    return [
        line("parameters", "parameters", "size x owned", size=parameter, owned=own),
        line("optimizer_state", "optimizer", "size x owned", size=moments, owned=own),
        *other_moment_lines(layout),
        line("copied_heads", "copied kv heads", "size x copied",
             size=parameter + moments, copied=copied),
        line("vocab_padding", "vocabulary padding", "size x filled",
             size=parameter + moments, filled=filled),
        line("gradient_sums", "gradient sums", "size x elements",
             size=sums, elements=own + copied + filled),
    ]  # fmt: skip


def other_moment_lines(layout: Layout) -> list[LedgerLine]:
    """Moments that not every parameter has as many of."""
    if layout.optimizer.name == "adamw":
        return []
    size, numbers = other_moments(layout)
    return [line("optimizer_state", "other moments", "size x numbers", size=size, numbers=numbers)]


def tensor_bytes(layout: Layout, tensor: Tensor) -> Number:
    """An activation of one layer and microbatch, with its fp32 statistics."""
    size = layout.compute_bytes * layout.stored_tensor_elements(tensor)
    if not tensor.statistics:
        return size
    statistics = Tensor(tensor.name, tensor.positions, tensor.statistics)
    return size + FP32_BYTES * layout.tensor_elements(statistics)


def block_activation_bytes(layout: Layout, treatment: Treatment, block: Block) -> Number:
    """Activations of a block that the policy keeps, offloads or recomputes."""
    return sum(
        layout.remat.share(tensor.name, treatment) * tensor_bytes(layout, tensor)
        for tensor in block.tensors
    )


def activation_bytes(layout: Layout, treatment: Treatment) -> Number:
    """Those of all layers."""
    return layout.over_layers(partial(block_activation_bytes, layout, treatment))


def kept_lines(layout: Layout) -> list[LedgerLine]:
    """The activations that a device holds from a microbatch's forward pass to its backward pass."""
    return [
        line("kept_activations", f"kept {named(block, 'activations')}", "layers x size",
             layers=layers, size=block_activation_bytes(layout, "keep", block))
        for block, layers in layout.network.kinds
    ]  # fmt: skip


def copy_line(layout: Layout, elements: Number) -> LedgerLine:
    """Matrices in the compute type. The compiler casts those of all layers at once, before the loop
    over layers, wherever parameters and compute differ in type.
    """
    differ = layout.precision.parameters != layout.activation_type
    return line("compute_copy", "compute copy", "size x layers",
                size=layout.compute_bytes * differ, layers=elements)  # fmt: skip


def waiting_copies(layout: Layout) -> Number:
    """Elements of these copies that wait for the backward pass while the loss is computed.

    Where slices exchange something in each layer, the compiler takes the first layer out of the
    loop and casts again, all but the attention's last matrix, which it also turns.
    """
    turned = layout.over_layers(lambda block: layout.stored_elements(block.attention.output.weight))
    alone = layout.mesh[SLICE_REPLICAS] == 1
    apart = layout.devices_along(SHARED_OVER_DCN) == 1
    casts_once = apart & (alone | (layout.microbatches > 1))
    return np.where(casts_once, layout.stored_layer_elements, turned)


# --- the loss


def head_line(layout: Layout, name: str, *, by_chunk: Number = False) -> LedgerLine:
    """The gathered unembedding in the compute type, and its gradient: in fp32, or of each chunk in
    the type it travels in.
    """
    gradient = np.where(by_chunk, layout.gradient_bytes, ACCUMULATION_BYTES)
    size = layout.compute_bytes + gradient
    return line("gathered_weights", name, "size x table", size=size, table=layout.table_elements)


def arrival_lines(layout: Layout) -> list[LedgerLine]:
    """The unembedding as it arrives, before the loss, where the rows of each device do not fill
    sublanes: beside it is the one in which rows follow each other, and the stream.
    """
    rows = layout.model.d_model / layout.devices_along(GROUPS["weights"])
    padded = whole(rows, layout.tile[0])
    if np.all(padded == rows):
        return []
    table = np.where(padded == rows, 0, layout.table_elements * padded / rows)
    return [
        head_line(layout, "unembedding"),
        line("gathered_weights", "padded unembedding", "size x table",
             size=layout.compute_bytes, table=table),
        line("working_activations", "stream", "stages x stream",
             stages=1, stream=stream_bytes(layout)),
    ]  # fmt: skip


def head_stream_line(layout: Layout) -> LedgerLine:
    """The gathered stream and its gradient, and the stream that each device keeps its part of."""
    return line("working_activations", "stream", "stages x stream",
                stages=2 + 1 / split_ways(layout), stream=stream_bytes(layout))  # fmt: skip


def loss_lines(layout: Layout) -> list[LedgerLine]:
    """The unembedding gathered, its fp32 gradient, and one chunk of logits."""
    vocab, _ = layout.network.head.dimensions
    of_token = FP32_BYTES * layout.size(vocab)
    chunk = loss_chunk_bytes(layout.loss_chunk_tokens, of_token)
    return [
        head_line(layout, "unembedding", by_chunk=layout.sums_loss_by_chunk),
        line("logits", "logits", "chunk", chunk=np.minimum(chunk, layout.tokens * of_token)),
        head_stream_line(layout),
    ]


def gradient_lines(layout: Layout) -> list[LedgerLine]:
    """Gradients of the layers and of the unembedding.

    Nothing is added to a gradient that is alone: it stays in the type it came in. What replicas of
    a slice reduce layer by layer comes out of one message, and keeps the order of its dimensions.
    """
    at_once = layout.microbatches == 1
    alone = at_once & (layout.devices_along(REPLICA_AXES) == 1)
    size = np.where(alone, layout.gradient_bytes, ACCUMULATION_BYTES)
    in_order = layout.over_layers(
        lambda block: sum(layout.elements_in_order(matmul.weight) for matmul in block.matmuls)
    )
    from_message = at_once & (layout.mesh["data"] > 1)
    blocks = np.where(from_message, in_order, layout.stored_layer_elements)
    elements = blocks + layout.stored_elements(layout.network.head)
    return [line("gradients", "gradients", "size x elements", size=size, elements=elements)]


# --- the end of a step


def embedding_lines(layout: Layout) -> list[LedgerLine]:
    """The gradient of the gathered embedding, in fp32 and in the compute type."""
    return [head_line(layout, "embedding")]


def optimizer_lines(layout: Layout) -> list[LedgerLine]:
    """All gradients: their fp32 sums, and the copies that replicas exchange."""
    owned, sums = layout.stored_parameter_elements, ACCUMULATION_BYTES * (layout.microbatches == 1)
    return [
        line("gradients", "gradients", "size x elements", size=sums, elements=owned),
        line("gradient_payload", "gradients on the wire", "size x elements",
             size=layout.gradient_bytes, elements=owned),
    ]  # fmt: skip
