"""The ledger of bytes on one device: the largest of the phases of a step.

What is alive in a layer's backward pass, in the loss, and in the optimizer is not alive at once:
the peak is the largest phase, not the sum of all lines.
"""

from functools import partial
from math import prod

import numpy as np

from orchestrator.network.description import MLP, Attention, Block, LatentAttention, Mixture, Tensor
from orchestrator.network.mesh_axes import GROUPS, REPLICA_AXES, SHARED_OVER_DCN, SLICE_REPLICAS
from orchestrator.planning.flops import partial_sums_of
from orchestrator.planning.kernels import loss_chunk_bytes
from orchestrator.planning.layout import Layout, Number, Training, whole
from orchestrator.planning.optimizers import other_moments
from orchestrator.values.fields import Treatment
from orchestrator.values.plan import LedgerLine, LineKind, MemoryPhase

# What the ledgers of bytes share: a line, and sizes that several phases have.


_FP32_BYTES = 4
ACCUMULATION_BYTES = _FP32_BYTES  # gradients add up in fp32, whatever travels


def _line(kind: LineKind, name: str, formula: str, **inputs: Number) -> LedgerLine:
    """A line that is the product of its inputs."""
    value = prod(inputs.values())
    return LedgerLine(
        kind=kind, name=name, value=value, unit="bytes", formula=formula, inputs=inputs
    )


def _named(block: Block, what: str) -> str:
    """Something of a block, with the block's kind where the network has several."""
    return f"{block.kind} {what}" if block.kind else what


def stream_bytes(layout: Layout) -> Number:
    """The residual stream of a microbatch, gathered over `tensor`."""
    return layout.tokens * layout.model.d_model * layout.compute_bytes


def _split_ways(layout: Layout) -> Number:
    """The devices between which the positions of the stream are split outside of matmuls."""
    return layout.ways("residual_length") / layout.ways("length")


# Rows of experts that are alive at once: those sent, those that come back, and the gradients of
# both. Dropless: those sent, and the gradients of those that come back.
_ROUTED_STAGES, _DROPLESS_STAGES = 4, 2
# First matrices of experts that are alive at once before the backward pass: joined and gathered,
# split, and transposed for the gradients of their rows.
_TURNED_STAGES = 3


def _backward_lines(layout: Training, block: Block) -> tuple[tuple[str, list[LedgerLine]], ...]:
    """The phases of a block's backward pass, by name."""
    attention = (_named(block, "attention"), _attention_lines(layout, block))
    if isinstance(block.mlp, Mixture) and _is_dropless(layout):
        experts = _dropless_phases(layout, block, block.mlp)
        return (*((_named(block, name), lines) for name, lines in experts), attention)
    ring = _ring_phases(layout, block)
    return (
        (_named(block, "mlp"), _mlp_lines(layout, block, *_activation_moment(layout, block))),
        *((_named(block, name), lines) for name, lines in ring),
        (_named(block, "attention again"), _again_lines(layout, block)),
        attention,
    )


def _is_early(layout: Training, block: Block) -> Number:
    """One where the MLP's gradients are made before the attention's backward pass: those of a plain
    MLP, and those of experts whose sums overlap it.
    """
    is_mixture = isinstance(block.mlp, Mixture)
    return (layout.sums_beside_products if is_mixture else 1) * (_split_ways(layout) == 1)


def _is_narrow(layout: Training) -> Number:
    """One where the log-sum-exp of recomputed attention is narrow at once, as sums overlap
    products.
    """
    return layout.sums_beside_products * (_split_ways(layout) == 1)


def _is_dropless(layout: Layout) -> bool:
    return layout.model.moe is not None and layout.model.moe.capacity_factor is None


def _dropless_phases(
    layout: Training, block: Block, mixture: Mixture
) -> tuple[tuple[str, list[LedgerLine]], ...]:
    """The backward pass of experts whose rows lie in groups of any size.

    A kernel reads matrices in only one order, so those for the gradients of rows are copies, made
    before the first product. Then the products are made again, and their gradients, after that of
    the last matrix, which is not needed any more. At last each of the first matrices has a part of
    the rows' gradient; they are added up next to the rows and the gradient of the results. Where
    experts lie apart, which no compiled program has shown yet, one more of each is counted.
    """
    apart = np.where(layout.ways("experts") > 1, 1, 0)
    products = _mlp_products(layout, block)
    first = sum(layout.elements(one.weight) for one in mixture.inputs)
    inputs = len(mixture.inputs)
    return tuple(
        (
            name,
            [
                _line("gathered_weights", "gathered weights", "size x stages x first",
                     size=layout.compute_bytes, stages=stages, first=first),
                _line("working_activations", "stream", "stages x stream",
                     stages=4, stream=stream_bytes(layout)),
                _line("working_activations", "mlp", "products x product",
                     products=alive + apart, product=_product_bytes(layout, block)),
                _routed_line(layout, rows + apart),
                _line("working_activations", "attention", "size",
                     size=_attention_bytes(layout, block)),
            ],
        )
        for name, stages, alive, rows in (
            ("turned experts", _TURNED_STAGES, 1, _DROPLESS_STAGES),
            ("mlp", 1, products, _DROPLESS_STAGES),
            ("rows of experts", 1, inputs, _DROPLESS_STAGES + inputs),
        )
    )  # fmt: skip


def _mlp_lines(
    layout: Training, block: Block, stages: Number, products: Number
) -> list[LedgerLine]:
    """The MLP's backward pass, with all that the attention's will need, and so many stages of the
    stream and inner tensors. Where slices share weights, the MLP's last matrix is there twice: for
    the pass, and as it arrived.
    """
    twice = (layout.devices_along(SHARED_OVER_DCN) > 1) * layout.elements(block.mlp.output.weight)
    return [
        _line("gathered_weights", "gathered weights", "size x block",
             size=layout.compute_bytes, block=layout.block_elements(block) + twice),
        _line("working_activations", "stream", "stages x stream",
             stages=stages, stream=stream_bytes(layout)),
        _line("working_activations", "mlp", "products x product",
             products=products, product=_product_bytes(layout, block)),
        *([_routed_line(layout, _ROUTED_STAGES)] if isinstance(block.mlp, Mixture) else []),
        _line("working_activations", "attention", "size",
             size=_attention_before(layout, block) + _in_order_of_arrival(layout, block)),
    ]  # fmt: skip


def _attention_before(layout: Training, block: Block) -> Number:
    """Bytes of the attention that are alive in the MLP's backward pass.

    All of it where its kernel runs again for the MLP's input. Where the result is kept, the rest is
    made again later. Chips whose sums overlap products make it first, and turn the kept result.
    """
    whole, result = _attention_bytes(layout, block), block.attention.result
    again = layout.remat.share(result.name, "recompute")
    kept = layout.compute_bytes * layout.stored_tensor_elements(result)
    early = kept + _attention_inputs(layout, block) * (whole - kept)
    ahead = again * whole + (1 - again) * layout.sums_beside_products * early
    is_mixture = isinstance(block.mlp, Mixture)
    return np.where((_split_ways(layout) > 1) | is_mixture, whole, ahead)


def _activation_moment(layout: Training, block: Block) -> tuple[Number, Number]:
    """Stages of the stream, and inner tensors, while the activation is differentiated.

    Around a ring of `tensor`, what the chips exchanged is there whole: the MLP's input, and the
    attention's where its products are made again. The inner tensor and its gradient live with a
    gradient of the first products and, made again, the products, which are one array.
    """
    ways = _split_ways(layout)
    if isinstance(block.mlp, Mixture):
        return 4 * (ways > 1) + 4 / ways, _mlp_products(layout, block)
    alone = 4 if len(block.mlp.inputs) == 1 else 3
    return (
        np.where(ways > 1, 1 + _attention_inputs(layout, block) + 3 / ways, alone),
        np.where(ways > 1, 3 + _joined_products(layout, block), _mlp_products(layout, block)),
    )


def _ring_phases(layout: Training, block: Block) -> tuple[tuple[str, list[LedgerLine]], ...]:
    """A ring's exchange of the gradient of the MLP's result, with what the activation needs.

    About half of it is there twice: as it arrives, and where it is whole.
    """
    ways = _split_ways(layout)
    if isinstance(block.mlp, Mixture) or not np.any(ways > 1):
        return ()
    exchange = 3.5 + _attention_inputs(layout, block), 1 + _joined_products(layout, block)
    before = _activation_moment(layout, block)
    moment = (np.where(ways > 1, *both) for both in zip(exchange, before, strict=True))
    return (("mlp ring", _mlp_lines(layout, block, *moment)),)


def _attention_inputs(layout: Training, block: Block) -> Number:
    """One where the attention's input is gathered again, to make its products; else zero."""
    return np.maximum.reduce([layout.recomputed(one) for one in block.attention.inputs])


def _joined_products(layout: Training, block: Block) -> Number:
    """The inner tensors that a ring recomputes, as one array."""
    return np.where(_inputs_away(layout, block.mlp) > 0, len(block.mlp.inputs), 0)


def _mlp_products(layout: Training, block: Block) -> Number:
    """Inner tensors of the MLP that are alive at once in its backward pass, where no ring exchanges
    them, and while attention runs again after it.

    Recomputed products are alive with their gradients. The input of the last matmul is there
    too where products are kept, and on chips whose sums overlap products but whose gathers do
    not. Experts are made again after attention that runs again.
    """
    inputs, away = len(block.mlp.inputs), _inputs_away(layout, block.mlp)
    again = layout.remat.share(block.attention.result.name, "recompute")
    own = np.minimum(away, 1) * layout.sums_beside_products * (1 - layout.gathers_beside_products)
    if inputs == 1:
        without_ring = inputs + away
    elif isinstance(block.mlp, Mixture):
        without_ring = inputs + 1 + away * (1 - again)
    else:
        without_ring = inputs + np.maximum(away, 1) + own
    return np.where(_split_ways(layout) > 1, inputs + 1, without_ring)


def _inputs_away(layout: Training, mlp: MLP) -> Number:
    """How many of an MLP's inner tensors have to come back for the backward pass."""
    return sum(
        layout.remat.share(one.output.name, treatment)
        for one in mlp.inputs
        for treatment in ("recompute", "offload")
    )


def _again_lines(layout: Training, block: Block) -> list[LedgerLine]:
    """The attention kernel where the backward pass runs it again: its log-sum-exp is copied, the
    gradient of its result is there, and inner tensors of the MLP wait for their products, but where
    these come early.
    """
    attention, attended = block.attention, block.attention.result
    again, late = layout.remat.share(attended.name, "recompute"), 1 - _is_early(layout, block)
    gradient = layout.compute_bytes * layout.stored_tensor_elements(attended)
    wide = 1 - _is_narrow(layout)
    more = again * (gradient + wide * _statistics_bytes(layout, block))
    return [
        _line("gathered_weights", "gathered weights", "size x output",
             size=layout.compute_bytes, output=layout.elements(attention.output.weight)),
        _line("working_activations", "stream", "stages x stream",
             stages=4 / _split_ways(layout), stream=stream_bytes(layout)),
        _line("working_activations", "mlp", "products x product",
             products=late * _mlp_products(layout, block), product=_product_bytes(layout, block)),
        _line("working_activations", "attention", "size",
             size=_attention_bytes(layout, block) + more),
    ]  # fmt: skip


def _routed_line(layout: Layout, stages: Number) -> LedgerLine:
    """Rows of a mixture's experts, sent or come back, and their gradients."""
    return _line(
        "routed_rows",
        "rows of experts",
        "stages x rows x stream",
        stages=stages,
        rows=layout.buffer_of_token,
        stream=stream_bytes(layout),
    )


def _product_bytes(layout: Layout, block: Block) -> Number:
    """The result of one of the MLP's first matmuls."""
    first = block.mlp.inputs[0].output
    return layout.compute_bytes * layout.tensor_elements(first)


def _attention_bytes(layout: Training, block: Block) -> Number:
    """What the attention kernel reads and writes in one layer, keys and values of all positions.

    Its log-sum-exp comes as a whole row of fp32 lanes for each query and head, and waits so.
    """
    attention = block.attention
    read = sum(layout.stored_tensor_elements(matmul.output) for matmul in attention.inputs)
    whole = sum(layout.stored_tensor_elements(tensor) for tensor in attention.whole)
    written = layout.stored_tensor_elements(attention.result)
    others = whole * (layout.ways("length") - 1)
    tensors = layout.compute_bytes * (read + others + written)
    again = layout.remat.share(attention.result.name, "recompute")
    return tensors + again * (1 - _is_narrow(layout)) * _statistics_bytes(layout, block)


def _in_order_of_arrival(layout: Layout, block: Block) -> Number:
    """The attention's result as a ring of `tensor` multiplies it: a copy of the kernel's."""
    ring = _split_ways(layout) > 1
    return ring * layout.compute_bytes * layout.tensor_elements(block.attention.result)


def _statistics_bytes(layout: Layout, block: Block) -> Number:
    """The attention's log-sum-exp as its kernel writes it."""
    attended = block.attention.result
    rows = Tensor("", attended.positions, attended.statistics)
    return _FP32_BYTES * layout.tile[1] * layout.tensor_elements(rows)


def _attention_lines(layout: Training, block: Block) -> list[LedgerLine]:
    """The attention's backward pass: q, the result and their gradients, that of q also in fp32.

    Keys and values of latent attention are as many, and have gradients too.

    One kernel writes the gradient of q for each block of keys. The gradients of the MLP's inputs
    wait for their product, but where these come early.
    """
    return [
        _line("gathered_weights", "gathered weights", "size x attention",
             size=layout.compute_bytes, attention=layout.total_elements(block.attention.matmuls)),
        _line("working_activations", "stream", "stages x stream",
             stages=3, stream=stream_bytes(layout)),
        _line("working_activations", "mlp", "products x product",
             products=len(block.mlp.inputs) * (1 - _is_early(layout, block)),
             product=_product_bytes(layout, block)),
        _line("working_activations", "attention", "size x heads",
             size=_FP32_BYTES + 4 * layout.compute_bytes,
             heads=_backward_heads(layout, block.attention)),
        _line("working_activations", "gradients of queries", "size x sums x queries",
             size=layout.compute_bytes, sums=partial_sums_of(layout, block.attention),
             queries=layout.stored_tensor_elements(block.attention.queries)),
    ]  # fmt: skip


def _backward_heads(layout: Training, attention: Attention) -> Number:
    """Numbers of heads that are alive in four copies and once in fp32, as if all were queries."""
    queries, result = map(layout.stored_tensor_elements, (attention.queries, attention.result))
    compute = layout.compute_bytes
    alive = (_FP32_BYTES + 2 * compute) * queries + 2 * compute * result
    if isinstance(attention, LatentAttention):
        alive += 2 * compute * sum(map(layout.stored_tensor_elements, attention.whole))
    return alive / (_FP32_BYTES + 4 * compute)


def phases(layout: Training) -> tuple[MemoryPhase, ...]:
    """All phases of a step, each with its lines."""
    resting = _resting_lines(layout)
    kept, gradients = _kept_lines(layout), _gradient_lines(layout)
    saved = [*resting, _copy_line(layout, _waiting_copies(layout)), *kept]
    in_layers = [*resting, _copy_line(layout, layout.stored_layer_elements), *kept, *gradients]
    backward = [
        _phase(f"{name} backward", [*in_layers, *lines])
        for block in layout.network.blocks
        for name, lines in _backward_lines(layout, block)
    ]
    arrival = _arrival_lines(layout)
    return (
        *([_phase("unembedding", [*saved, *arrival])] if arrival else []),
        _phase("loss", [*saved, *_loss_lines(layout)]),
        *backward,
        _phase("embedding backward", [*resting, *gradients, *_embedding_lines(layout)]),
        _phase("optimizer", [*resting, *_optimizer_lines(layout)]),
    )


def peak_bytes(layout: Training) -> Number:
    """The largest phase."""
    return np.maximum.reduce(np.broadcast_arrays(*(phase.bytes for phase in phases(layout))))


def _phase(name: str, lines: list[LedgerLine]) -> MemoryPhase:
    return MemoryPhase(name=name, lines=tuple(lines), bytes=sum(line.value for line in lines))


def _resting_lines(layout: Training) -> list[LedgerLine]:
    """State that a device holds all through the step. Replicated KV heads, and rows that pad the
    vocabulary, have lines of their own.
    """
    copied, filled = layout.copied_elements, layout.padding_elements
    own = layout.stored_parameter_elements - copied - filled
    parameter, moments = layout.parameter_bytes, layout.moment_bytes
    sums = ACCUMULATION_BYTES * (layout.microbatches > 1)
    return [
        _line("parameters", "parameters", "size x owned", size=parameter, owned=own),
        _line("optimizer_state", "optimizer", "size x owned", size=moments, owned=own),
        *_other_moment_lines(layout),
        _line("copied_heads", "copied kv heads", "size x copied",
             size=parameter + moments, copied=copied),
        _line("vocab_padding", "vocabulary padding", "size x filled",
             size=parameter + moments, filled=filled),
        _line("gradient_sums", "gradient sums", "size x elements",
             size=sums, elements=own + copied + filled),
    ]  # fmt: skip


def _other_moment_lines(layout: Training) -> list[LedgerLine]:
    """Moments that not every parameter has as many of."""
    if layout.optimizer.name == "adamw":
        return []
    size, numbers = other_moments(layout)
    return [_line("optimizer_state", "other moments", "size x numbers", size=size, numbers=numbers)]


def _tensor_bytes(layout: Training, tensor: Tensor) -> Number:
    """An activation of one layer and microbatch, with its fp32 statistics."""
    size = layout.compute_bytes * layout.stored_tensor_elements(tensor)
    if not tensor.statistics:
        return size
    statistics = Tensor(tensor.name, tensor.positions, tensor.statistics)
    return size + _FP32_BYTES * layout.tensor_elements(statistics)


def _block_activation_bytes(layout: Training, treatment: Treatment, block: Block) -> Number:
    """Activations of a block that the policy keeps, offloads or recomputes."""
    return sum(
        layout.remat.share(tensor.name, treatment) * _tensor_bytes(layout, tensor)
        for tensor in block.tensors
    )


def activation_bytes(layout: Training, treatment: Treatment) -> Number:
    """Activation bytes of all layers."""
    return layout.over_layers(partial(_block_activation_bytes, layout, treatment))


def _kept_lines(layout: Training) -> list[LedgerLine]:
    """The activations that a device holds from a microbatch's forward pass to its backward pass."""
    return [
        _line("kept_activations", f"kept {_named(block, 'activations')}", "layers x size",
             layers=layers, size=_block_activation_bytes(layout, "keep", block))
        for block, layers in layout.network.kinds
    ]  # fmt: skip


def _copy_line(layout: Training, elements: Number) -> LedgerLine:
    """Matrices in the compute type. The compiler casts those of all layers at once, before the loop
    over layers, wherever parameters and compute differ in type.
    """
    differ = layout.precision.parameters != layout.activation_type
    return _line("compute_copy", "compute copy", "size x layers",
                size=layout.compute_bytes * differ, layers=elements)  # fmt: skip


def _waiting_copies(layout: Training) -> Number:
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


def _head_line(layout: Training, name: str, *, by_chunk: Number = False) -> LedgerLine:
    """The gathered unembedding in the compute type, and its gradient: in fp32, or of each chunk in
    the type it travels in.
    """
    gradient = np.where(by_chunk, layout.gradient_bytes, ACCUMULATION_BYTES)
    size = layout.compute_bytes + gradient
    return _line("gathered_weights", name, "size x table", size=size, table=layout.table_elements)


def _arrival_lines(layout: Training) -> list[LedgerLine]:
    """The unembedding as it arrives, before the loss, where the rows of each device do not fill
    sublanes: the one in which rows follow each other is alive too, and the stream.
    """
    rows = layout.model.d_model / layout.devices_along(GROUPS["weights"])
    padded = whole(rows, layout.tile[0])
    if np.all(padded == rows):
        return []
    table = np.where(padded == rows, 0, layout.table_elements * padded / rows)
    return [
        _head_line(layout, "unembedding"),
        _line("gathered_weights", "padded unembedding", "size x table",
             size=layout.compute_bytes, table=table),
        _line("working_activations", "stream", "stages x stream",
             stages=1, stream=stream_bytes(layout)),
    ]  # fmt: skip


def _head_stream_line(layout: Training) -> LedgerLine:
    """The gathered stream and its gradient, and the stream that each device keeps its part of."""
    return _line("working_activations", "stream", "stages x stream",
                stages=2 + 1 / _split_ways(layout), stream=stream_bytes(layout))  # fmt: skip


def _loss_lines(layout: Training) -> list[LedgerLine]:
    """The unembedding gathered, its fp32 gradient, and one chunk of logits."""
    vocab, _ = layout.network.head.dimensions
    of_token = _FP32_BYTES * layout.size(vocab)
    chunk = loss_chunk_bytes(layout.loss_chunk_tokens, of_token)
    return [
        _head_line(layout, "unembedding", by_chunk=layout.sums_loss_by_chunk),
        _line("logits", "logits", "chunk", chunk=np.minimum(chunk, layout.tokens * of_token)),
        _head_stream_line(layout),
    ]


def _gradient_lines(layout: Training) -> list[LedgerLine]:
    """Gradients of the layers and of the unembedding.

    A single gradient is not summed: it stays in the type it came in. What replicas of
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
    return [_line("gradients", "gradients", "size x elements", size=size, elements=elements)]


# --- the end of a step


def _embedding_lines(layout: Training) -> list[LedgerLine]:
    """The gradient of the gathered embedding, in fp32 and in the compute type."""
    return [_head_line(layout, "embedding")]


def _optimizer_lines(layout: Training) -> list[LedgerLine]:
    """All gradients: their fp32 sums, and the copies that replicas exchange."""
    owned, sums = layout.stored_parameter_elements, ACCUMULATION_BYTES * (layout.microbatches == 1)
    return [
        _line("gradients", "gradients", "size x elements", size=sums, elements=owned),
        _line("gradient_payload", "gradients on the wire", "size x elements",
             size=layout.gradient_bytes, elements=owned),
    ]  # fmt: skip
