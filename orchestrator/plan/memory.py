"""Plan room: the ledger of bytes on one device, as the largest of three phases.

What is alive in a layer's backward pass, in the loss, and in the optimizer is not alive at once:
the peak is the largest phase, not the sum of all lines.
"""

import numpy as np

from orchestrator.plan.kernel_constants import LOSS_CHUNK_BYTES
from orchestrator.plan.layout import DTYPE_BYTES, Layout, Number
from orchestrator.types.plan import LedgerLine, LineKind, MemoryPhase

ACCUMULATION_BYTES = 4  # gradients add up in fp32, whatever travels


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


def line(kind: LineKind, name: str, formula: str, value: Number, **inputs: Number) -> LedgerLine:
    return LedgerLine(
        kind=kind, name=name, value=value, unit="bytes", formula=formula, inputs=inputs
    )


def resting_lines(layout: Layout) -> list[LedgerLine]:
    """What a device holds all through the step; copied kv heads on a line of their own."""
    copied = layout.copied_elements
    own = layout.owned_elements - copied
    parameter = DTYPE_BYTES[layout.precision.parameters]
    moments = 2 * DTYPE_BYTES[layout.precision.optimizer]
    size, sums = parameter + moments, ACCUMULATION_BYTES * (layout.microbatches > 1)
    return [
        line(
            "parameters", "parameters", "size x owned", parameter * own, size=parameter, owned=own
        ),
        line(
            "optimizer_state", "optimizer", "size x owned", moments * own, size=moments, owned=own
        ),
        line(
            "copied_heads",
            "copied kv heads",
            "size x copied",
            size * copied,
            size=size,
            copied=copied,
        ),
        gradient_line("gradient_sums", "gradient sums", sums, layout.owned_elements),
    ]


def gradient_line(kind: LineKind, name: str, size: Number, elements: Number) -> LedgerLine:
    return line(kind, name, "size x elements", size * elements, size=size, elements=elements)


def kept_elements(layout: Layout) -> dict[str, Number]:
    """Elements a layer and microbatch of each tensor that can be kept, on one device."""
    tokens, head = layout.tokens, layout.model.head_dim
    elements = {
        "q": tokens * layout.heads * head,
        "k": tokens * layout.kv_heads * head,
        "v": tokens * layout.kv_heads * head,
        "attention": tokens * layout.heads * head,
        "mid": tokens / layout.tensor * layout.model.d_model,
        "up": tokens * layout.d_ff,
    }
    if layout.model.gated:
        elements["gate"] = tokens * layout.d_ff
    return elements


def block_input_bytes(layout: Layout) -> Number:
    """A layer's input of one microbatch, split by position over `tensor`."""
    return layout.tokens / layout.tensor * layout.model.d_model * layout.compute_bytes


def kept_bytes(layout: Layout) -> Number:
    """A layer's tensors that the policy keeps, and the fp32 log-sum-exp with the attention."""
    elements, kept = kept_elements(layout), layout.remat.kept
    statistics = 4 * layout.tokens * layout.heads if "attention" in kept else 0
    return layout.compute_bytes * sum(elements[name] for name in elements if name in kept) + (
        statistics
    )


def offloaded_bytes(layout: Layout) -> Number:
    """What of a layer's activations waits on the host."""
    remat = layout.remat
    inputs = block_input_bytes(layout) if remat.offloads_block_input else 0
    return inputs + (kept_bytes(layout) if remat.offloaded else 0)


def saved_bytes(layout: Layout) -> Number:
    """What of a layer's activations waits in HBM."""
    return block_input_bytes(layout) + kept_bytes(layout) - offloaded_bytes(layout)


def layers_elements(layout: Layout) -> Number:
    """Matrix elements of all layers that a device owns."""
    return layout.model.layers * layout.layer_elements / layout.weight_ways


def saved_lines(layout: Layout) -> list[LedgerLine]:
    """What stands from a microbatch's forward pass to its backward pass.

    The compiler casts all layers' matrices at once, before the loop over layers, wherever
    parameters and compute differ in type.
    """
    layers, size = layout.model.layers, saved_bytes(layout)
    matrices = layers_elements(layout)
    differ = layout.precision.parameters != layout.precision.compute
    cast = layout.compute_bytes * differ
    return [
        line(
            "compute_copy",
            "compute copy",
            "size x layers",
            cast * matrices,
            size=cast,
            layers=matrices,
        ),
        line(
            "kept_activations",
            "kept activations",
            "layers x size",
            layers * size,
            layers=layers,
            size=size,
        ),
    ]


def layer_lines(layout: Layout) -> list[LedgerLine]:
    """Gradients of the layers, and the working set of one layer's backward pass.

    It peaks in the MLP, of which the product and its gradient are alive, with the residual stream
    in its several stages: normed, gathered, and the gradients of both. Where `tensor` goes round a
    ring, the pieces of one more product wait to be joined, and one stage of the stream is split.
    """
    ring = layout.tensor > 1
    stream = layout.tokens * layout.model.d_model * layout.compute_bytes
    product = layout.tokens * layout.d_ff * layout.compute_bytes
    heads = layout.tokens * layout.heads * layout.model.head_dim
    matrices = layout.layer_matrices
    mlp = sum(matrices[name] for name in ("gate", "up", "down") if name in matrices)
    alone = (layout.microbatches == 1) & (layout.pods * layout.data == 1)
    # Nothing is added to a gradient that is alone: it stays in the type it came in.
    size = np.where(alone, layout.gradient_bytes, ACCUMULATION_BYTES)
    return [
        gradient_line("gradients", "gradients", size, layers_elements(layout)),
        line(
            "gathered_weights",
            "gathered weights",
            "size x mlp",
            mlp * layout.compute_bytes,
            size=layout.compute_bytes,
            mlp=mlp,
        ),
        line(
            "working_activations",
            "stream",
            "stages x stream",
            (6 - ring) * stream,
            stages=6 - ring,
            stream=stream,
        ),
        line(
            "working_activations",
            "mlp",
            "products x product",
            (2 + ring) * product,
            products=2 + ring,
            product=product,
        ),
        line(
            "working_activations",
            "attention",
            "size x heads",
            (4 + layout.compute_bytes) * heads,
            size=4 + layout.compute_bytes,
            heads=heads,
        ),
    ]


def loss_lines(layout: Layout) -> list[LedgerLine]:
    """The unembedding gathered, its fp32 gradient, and one chunk of logits with its gradient."""
    table, size = layout.table_elements, layout.compute_bytes + ACCUMULATION_BYTES
    chunk = np.minimum(LOSS_CHUNK_BYTES, 4 * layout.tokens * layout.vocab)
    stream = layout.tokens * layout.model.d_model * layout.compute_bytes
    return [
        line(
            "gathered_weights", "unembedding", "size x table", size * table, size=size, table=table
        ),
        line("logits", "logits", "chunk", chunk, chunk=chunk),
        line("working_activations", "gathered stream", "2 x stream", 2 * stream, stream=stream),
    ]


def optimizer_lines(layout: Layout) -> list[LedgerLine]:
    """All gradients, and beside the fp32 sums what of them travels between replicas."""
    owned, wire = layout.owned_elements, layout.gradient_bytes
    return [
        gradient_line(
            "gradients", "gradients", ACCUMULATION_BYTES * (layout.microbatches == 1), owned
        ),
        gradient_line("gradient_payload", "gradients on the wire", wire, owned),
    ]
