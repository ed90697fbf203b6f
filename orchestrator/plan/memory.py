"""Plan room: the ledger of bytes on one device, as the largest of three phases.

What is alive in a layer's backward pass, in the loss, and in the optimizer is not alive at once:
the peak is the largest phase, not the sum of all lines.
"""

import numpy as np

from orchestrator.plan.layout import DTYPE_BYTES, Layout, Number
from orchestrator.stations.plan import Line, Phase

LOSS_CHUNK_BYTES = 256 * 2**20  # fp32 logits that the loss makes at a time, at most
MLP_TENSORS = 6  # gate, up, their product, and the gradients of the three
ATTENTION_TENSORS = 4  # queries, attention, and the gradients of both
ACCUMULATION_BYTES = 4  # gradients add up in fp32, whatever travels


def phases(layout: Layout) -> tuple[Phase, ...]:
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


def phase(name: str, lines: list[Line]) -> Phase:
    return Phase(name=name, lines=tuple(lines), bytes=sum(line.value for line in lines))


def line(name: str, formula: str, value: Number, **inputs: Number) -> Line:
    return Line(name=name, value=value, unit="bytes", formula=formula, inputs=inputs)


def resting_lines(layout: Layout) -> list[Line]:
    """What a device holds all through the step; copied kv heads on a line of their own."""
    copied = layout.copied_elements
    own = layout.owned_elements - copied
    parameter = DTYPE_BYTES[layout.precision.parameters]
    moments = 2 * DTYPE_BYTES[layout.precision.optimizer]
    size, sums = parameter + moments, ACCUMULATION_BYTES * (layout.microbatches > 1)
    return [
        line("parameters", "size x owned", parameter * own, size=parameter, owned=own),
        line("optimizer", "size x owned", moments * own, size=moments, owned=own),
        line("copied kv heads", "size x copied", size * copied, size=size, copied=copied),
        gradient_line("gradient sums", sums, layout.owned_elements),
    ]


def gradient_line(name: str, size: Number, elements: Number) -> Line:
    return line(name, "size x elements", size * elements, size=size, elements=elements)


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


def saved_lines(layout: Layout) -> list[Line]:
    """What stands from a microbatch's forward pass to its backward pass.

    The compiler casts all layers' matrices at once, before the loop over layers, wherever
    parameters and compute differ in type.
    """
    layers, size = layout.model.layers, saved_bytes(layout)
    matrices = layers_elements(layout)
    differ = layout.precision.parameters != layout.precision.compute
    cast = layout.compute_bytes * differ
    return [
        line("compute copy", "size x layers", cast * matrices, size=cast, layers=matrices),
        line("kept activations", "layers x size", layers * size, layers=layers, size=size),
    ]


def layer_lines(layout: Layout) -> list[Line]:
    """Gradients of the layers, and the working set of the larger of a layer's two blocks."""
    layer, use = layout.layer_elements, layout.compute_bytes
    both = use + layout.gradient_bytes
    stream = layout.tokens * layout.model.d_model * use
    head = layout.model.head_dim * use
    keys = layout.tokens * layout.sequence * layout.kv_heads * head
    attention = ATTENTION_TENSORS * (layout.tokens * layout.heads * head + keys)
    mlp = MLP_TENSORS * layout.tokens * layout.d_ff * use
    # Scattered to its owners only when the loop over layers is through.
    table = layout.table_elements
    return [
        gradient_line("gradients", ACCUMULATION_BYTES, layers_elements(layout)),
        gradient_line("unembedding gradient", ACCUMULATION_BYTES, table),
        line("gathered weights", "size x layer", both * layer, size=both, layer=layer),
        line("gathered stream", "3 x stream", 3 * stream, stream=stream),
        line(
            "block", "max(mlp, attention)", np.maximum(mlp, attention), mlp=mlp, attention=attention
        ),
    ]


def loss_lines(layout: Layout) -> list[Line]:
    """The unembedding gathered, its fp32 gradient, and one chunk of logits with its gradient."""
    table, size = layout.table_elements, layout.compute_bytes + ACCUMULATION_BYTES
    chunk = np.minimum(LOSS_CHUNK_BYTES, 4 * layout.tokens * layout.vocab)
    stream = layout.tokens * layout.model.d_model * layout.compute_bytes
    return [
        line("unembedding", "size x table", size * table, size=size, table=table),
        line("logits", "chunk", chunk, chunk=chunk),
        line("gathered stream", "2 x stream", 2 * stream, stream=stream),
    ]


def optimizer_lines(layout: Layout) -> list[Line]:
    """All gradients, and beside the fp32 sums what of them travels between replicas."""
    owned, wire = layout.owned_elements, layout.gradient_bytes
    return [
        gradient_line("gradients", ACCUMULATION_BYTES * (layout.microbatches == 1), owned),
        gradient_line("gradients on the wire", wire, owned),
    ]
