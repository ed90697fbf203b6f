"""The ledger of bytes on one device: the largest of three phases.

What is alive in a layer's backward pass, in the loss, and in the optimizer is not alive at once:
the peak is the largest phase, not the sum of all lines.
"""

from math import prod

import numpy as np

from orchestrator.network.description import Tensor
from orchestrator.network.mesh_axes import REPLICA_AXES
from orchestrator.plan.kernel_constants import LOSS_CHUNK_BYTES
from orchestrator.plan.layout import Layout, Number
from orchestrator.types.plan import LedgerLine, LineKind, MemoryPhase
from orchestrator.types.spec_fields import Treatment

FP32_BYTES = 4
ACCUMULATION_BYTES = FP32_BYTES  # gradients add up in fp32, whatever travels


def phases(layout: Layout) -> tuple[MemoryPhase, ...]:
    """All phases of a step, each with its lines."""
    resting, saved = resting_lines(layout), saved_lines(layout)
    return (
        phase("layer backward", [*resting, *saved, *layer_lines(layout)]),
        phase("loss", [*resting, *saved, *loss_lines(layout)]),
        phase("optimizer", [*resting, *optimizer_lines(layout)]),
    )


def peak_bytes(layout: Layout) -> Number:
    """The largest phase."""
    return np.maximum.reduce(np.broadcast_arrays(*(phase.bytes for phase in phases(layout))))


def phase(name: str, lines: list[LedgerLine]) -> MemoryPhase:
    return MemoryPhase(name=name, lines=tuple(lines), bytes=sum(line.value for line in lines))


def line(
    kind: LineKind, name: str, formula: str, *, copies: int = 1, **inputs: Number
) -> LedgerLine:
    """A line that is the product of its inputs, so many times."""
    value = prod(inputs.values(), start=copies)
    return LedgerLine(
        kind=kind, name=name, value=value, unit="bytes", formula=formula, inputs=inputs
    )


def resting_lines(layout: Layout) -> list[LedgerLine]:
    """What a device holds all through the step; copied kv heads have a line of their own."""
    copied = layout.copied_elements
    own = layout.owned_elements - copied
    parameter, moments = layout.parameter_bytes, layout.moment_bytes
    sums = ACCUMULATION_BYTES * (layout.microbatches > 1)
    return [
        line("parameters", "parameters", "size x owned", size=parameter, owned=own),
        line("optimizer_state", "optimizer", "size x owned", size=moments, owned=own),
        line("copied_heads", "copied kv heads", "size x copied",
             size=parameter + moments, copied=copied),
        line("gradient_sums", "gradient sums", "size x elements",
             size=sums, elements=layout.owned_elements),
    ]  # fmt: skip


def tensor_bytes(layout: Layout, tensor: Tensor) -> Number:
    """An activation of one layer and microbatch, with its fp32 statistics."""
    size = layout.compute_bytes * layout.tensor_elements(tensor)
    if not tensor.statistics:
        return size
    statistics = Tensor(tensor.name, tensor.positions, tensor.statistics)
    return size + FP32_BYTES * layout.tensor_elements(statistics)


def activation_bytes(layout: Layout, treatment: Treatment) -> Number:
    """Activations of a layer that the policy keeps, offloads or recomputes."""
    return sum(
        layout.remat.share(tensor.name, treatment) * tensor_bytes(layout, tensor)
        for tensor in layout.network.block.tensors
    )


def saved_lines(layout: Layout) -> list[LedgerLine]:
    """What a device holds from a microbatch's forward pass to its backward pass.

    The compiler casts all layers' matrices at once, before the loop over layers, wherever
    parameters and compute differ in type.
    """
    differ = layout.precision.parameters != layout.precision.compute
    return [
        line("compute_copy", "compute copy", "size x layers",
             size=layout.compute_bytes * differ, layers=layout.blocks_owned_elements),
        line("kept_activations", "kept activations", "layers x size",
             layers=layout.model.layers, size=activation_bytes(layout, "keep")),
    ]  # fmt: skip


def stream_bytes(layout: Layout) -> Number:
    """The residual stream of a microbatch, gathered over `tensor`."""
    return layout.tokens * layout.model.d_model * layout.compute_bytes


def layer_lines(layout: Layout) -> list[LedgerLine]:
    """Gradients of the layers, and the working set of one layer's backward pass.

    It peaks in the MLP, of which the product and its gradient are alive, with the residual stream
    in its several stages: normed, gathered, and the gradients of both. Where `tensor` goes round a
    ring, the pieces of one more product wait to be joined, and one stage of the stream is split.
    """
    block = layout.network.block
    ring = layout.ways("ff") > 1
    product = layout.tensor_elements(block.mlp.inputs[-1].output) * layout.compute_bytes
    heads = layout.tensor_elements(block.attention.result)
    alone = (layout.microbatches == 1) & (layout.devices_along(REPLICA_AXES) == 1)
    # Nothing is added to a gradient that is alone: it stays in the type it came in.
    gradient = np.where(alone, layout.gradient_bytes, ACCUMULATION_BYTES)
    return [
        line("gradients", "gradients", "size x elements",
             size=gradient, elements=layout.blocks_owned_elements),
        line("gathered_weights", "gathered weights", "size x mlp",
             size=layout.compute_bytes, mlp=layout.total_elements(block.mlp.matmuls)),
        line("working_activations", "stream", "stages x stream",
             stages=6 - ring, stream=stream_bytes(layout)),
        line("working_activations", "mlp", "products x product",
             products=2 + ring, product=product),
        line("working_activations", "attention", "size x heads",
             size=FP32_BYTES + layout.compute_bytes, heads=heads),
    ]  # fmt: skip


def loss_lines(layout: Layout) -> list[LedgerLine]:
    """The unembedding gathered, its fp32 gradient, and one chunk of logits with its gradient."""
    vocab, _ = layout.network.head.dimensions
    logits = FP32_BYTES * layout.tokens * layout.size(vocab)
    return [
        line("gathered_weights", "unembedding", "size x table",
             size=layout.compute_bytes + ACCUMULATION_BYTES, table=layout.table_elements),
        line("logits", "logits", "chunk", chunk=np.minimum(LOSS_CHUNK_BYTES, logits)),
        line("working_activations", "gathered stream", "2 x stream", copies=2,
             stream=stream_bytes(layout)),
    ]  # fmt: skip


def optimizer_lines(layout: Layout) -> list[LedgerLine]:
    """All gradients: their fp32 sums, and the copies that replicas exchange."""
    owned, sums = layout.owned_elements, ACCUMULATION_BYTES * (layout.microbatches == 1)
    return [
        line("gradients", "gradients", "size x elements", size=sums, elements=owned),
        line("gradient_payload", "gradients on the wire", "size x elements",
             size=layout.gradient_bytes, elements=owned),
    ]  # fmt: skip
