"""The ledger of bytes on one device: the largest phase of a step, not the sum of all lines."""

from functools import partial
from math import prod

import numpy as np

from orchestrator.network import mesh_axes
from orchestrator.network.description import Block, LatentAttention, Mixture, Tensor, Weight
from orchestrator.network.mlp import EXPERTS
from orchestrator.planning.flops import lacks_gpu_kernel, partial_sums_of
from orchestrator.planning.kernels import MOST_KEYS, loss_chunk_bytes
from orchestrator.planning.layout import MOMENT_BYTES, Layout, Number, Training, whole
from orchestrator.values.codec import Treatment
from orchestrator.values.plan import LedgerLine, LineKind, MemoryPhase

_FP32_BYTES = 4
ACCUMULATION_BYTES = _FP32_BYTES  # gradients add up in fp32, whatever travels
# Rows of experts that are alive at once: those sent, those that come back, and the gradients of
# both. Dropless: those sent, and the gradients of those that come back.
_ROUTED_STAGES, _DROPLESS_STAGES = 4, 2
# First matrices of experts that are alive at once before the backward pass: joined and gathered,
# split, and transposed for the gradients of their rows.
_TURNED_STAGES = 3
_STAGE_BUFFERS = 4  # of the stream, in a pipeline: those that arrive and those that are sent


def phases(layout: Training) -> tuple[MemoryPhase, ...]:

    def phase(name: str, *lines: LedgerLine) -> MemoryPhase:
        return MemoryPhase(name=name, lines=lines, bytes=sum(line.value for line in lines))

    # Gradients of the layers and of the unembedding. A single gradient is not summed: it stays in
    # the type it came in. What replicas of a slice reduce layer by layer comes out of one message,
    # and keeps the order of its dimensions.
    at_once = (layout.microbatches == 1) & (layout.stages == 1)
    single = at_once & (layout.devices_along(mesh_axes.REPLICA_AXES) == 1)
    size: Number = np.where(single, layout.gradient_bytes, ACCUMULATION_BYTES)
    if layout.chip.switched:  # the compiler for GPUs stacks them in the type of the parameters
        size = np.where(at_once, layout.parameter_bytes, ACCUMULATION_BYTES)
    in_order = layout.over_layers(
        lambda block: sum(layout.stored_elements(m.weight, in_order=True) for m in block.matmuls)
    )
    from_message = at_once & (layout.mesh["data"] > 1)
    blocks: Number = np.where(from_message, in_order, layout.stored_layer_elements)
    # A pipeline makes those of a chunk at a time: whole ones, where matrices were gathered once.
    once, chunks = layout.gathers_once, layout.chunks
    if np.any(once):
        blocks = np.where(once, layout.layer_elements, blocks)
        size = np.where(once, layout.compute_bytes, size)
    elements = blocks / chunks + layout.stored_elements(layout.network.head)
    resting = _resting_lines(layout)
    gradients = _line("gradients", "gradients", "size x elements", size=size, elements=elements)
    # What a device holds from a microbatch's forward pass to its backward pass: for the layers of
    # each chunk that is in flight.
    in_flight = layout.stage_share * layout.chunks_in_flight
    kept = [
        _line("kept_activations", f"kept {_named(block, 'activations')}", "layers x size",
             layers=layers * in_flight, size=_block_activation_bytes(layout, "keep", block))
        for block, layers in layout.network.kinds
    ]  # fmt: skip
    # Copies of matrices that wait for the backward pass while the loss is computed. Where slices
    # exchange something in each layer, the compiler takes the first layer out of the loop and
    # casts again, all but the attention's last matrix, which it also turns.
    turned = layout.over_layers(lambda block: layout.stored_elements(block.attention.output.weight))
    one_replica = layout.mesh[mesh_axes.SLICE_REPLICAS] == 1
    unshared = layout.devices_along(mesh_axes.SHARED_OVER_DCN) == 1
    casts_once = unshared & (one_replica | (layout.microbatches > 1))
    waiting = np.where(casts_once, layout.stored_layer_elements, turned)
    saved = [*resting, _copy_line(layout, waiting), *kept]
    in_layers = [*resting, _copy_line(layout, layout.stored_layer_elements), *kept, gradients]
    arrival = _arrival_lines(layout)
    owned, sums = layout.stored_parameter_elements, ACCUMULATION_BYTES * at_once
    return (
        *([phase("unembedding", *saved, *arrival)] if arrival else []),
        phase("loss", *saved, *_loss_lines(layout)),
        *(
            phase(f"{_named(block, name)} backward", *in_layers, *lines)
            for block in layout.network.blocks
            for name, lines in _backward_lines(layout, block)
        ),
        # The gradient of the gathered embedding, in fp32 and in the compute type.
        phase("embedding backward", *resting, gradients, _head_line(layout, "embedding")),
        # All gradients: their fp32 sums, and the copies that replicas exchange. On GPUs one array
        # is sent after another.
        phase(
            "optimizer",
            *resting,
            _line("gradients", "gradients", "size x elements", size=sums, elements=owned),
            _line("gradient_payload", "gradients on the wire", "size x elements",
                 size=layout.gradient_bytes * (not layout.chip.switched), elements=owned),
        ),
    )  # fmt: skip


def peak_bytes(layout: Training) -> Number:
    return np.maximum.reduce(np.broadcast_arrays(*(phase.bytes for phase in phases(layout))))


# --- lines and sizes that several phases have


def _line(kind: LineKind, name: str, formula: str, **inputs: Number) -> LedgerLine:
    value = prod(inputs.values())
    return LedgerLine(
        kind=kind, name=name, value=value, unit="bytes", formula=formula, inputs=inputs
    )


def _named(block: Block, what: str) -> str:
    return f"{block.kind} {what}" if block.kind else what


def stream_bytes(layout: Layout) -> Number:
    """The residual stream of a microbatch, gathered over `tensor`."""
    return layout.tokens * layout.model.d_model * layout.compute_bytes


def _stream_line(layout: Layout, stages: Number) -> LedgerLine:
    stream = stream_bytes(layout)
    return _line("working_activations", "stream", "stages x stream", stages=stages, stream=stream)


def _matrices_line(layout: Layout, name: str, elements: Number) -> LedgerLine:
    inputs = {"size": layout.compute_bytes, name: elements}
    return _line("gathered_weights", "gathered weights", f"size x {name}", **inputs)


def _products_line(layout: Layout, block: Block, products: Number) -> LedgerLine:
    first = layout.compute_bytes * layout.tensor_elements(block.mlp.inputs[0].output)
    formula = "products x product"
    return _line("working_activations", "mlp", formula, products=products, product=first)


def _attention_line(size: Number) -> LedgerLine:
    return _line("working_activations", "attention", "size", size=size)


def _routed_line(layout: Layout, stages: Number) -> LedgerLine:
    rows, stream = layout.buffer_of_token, stream_bytes(layout)
    formula = "stages x rows x stream"
    return _line("routed_rows", "rows of experts", formula, stages=stages, rows=rows, stream=stream)


def _copy_line(layout: Training, elements: Number) -> LedgerLine:
    """Matrices in the compute type: the compiler casts all layers at once, before their loop. The
    one for GPUs does so before a loop over microbatches. Without one it casts each layer's, and
    first turns matrices so that the dimension along which they are gathered is the first.
    """
    casts = layout.precision.parameters != layout.activation_type
    size: Number = layout.compute_bytes * casts * (1 - layout.gathers_once)
    if layout.chip.switched:
        turned = layout.over_layers(
            lambda block: sum(_turned_elements(layout, m.weight) for m in block.matmuls)
        )
        is_whole = layout.microbatches > 1
        elements = np.where(is_whole, elements, turned)
        size = np.where(is_whole, size, layout.parameter_bytes * (1 - layout.gathers_once))
    return _line("compute_copy", "compute copy", "size x layers", size=size, layers=elements)


def _turned_elements(layout: Layout, weight: Weight) -> Number:
    """A matrix that is gathered along another dimension than its first, or nothing."""
    before: Number = 1
    for dimension in weight.dimensions:
        if dimension.axis in mesh_axes.GATHERED_AXES:
            is_turned = (before > 1) & (layout.ways(dimension.axis) > 1)
            return is_turned * layout.stored_elements(weight)
        before = before * layout.size(dimension)
    return 0


def _head_line(layout: Training, name: str, *, by_chunk: Number = False) -> LedgerLine:
    """A gathered table in the compute type, and its gradient: fp32, or of chunks as they travel."""
    gradient = np.where(by_chunk, layout.gradient_bytes, ACCUMULATION_BYTES)
    size = layout.compute_bytes + gradient
    return _line("gathered_weights", name, "size x table", size=size, table=layout.table_elements)


def _split_ways(layout: Layout) -> Number:
    """The devices between which the positions of the stream are split outside of matmuls."""
    return layout.ways("residual_length") / layout.ways("length")


# --- the backward pass of a block


def _backward_lines(layout: Training, block: Block) -> list[tuple[str, list[LedgerLine]]]:
    moe, ways = layout.model.moe, _split_ways(layout)
    if isinstance(block.mlp, Mixture) and moe and moe.capacity_factor is None:
        # The backward pass of experts whose rows lie in groups of any size. A kernel reads matrices
        # in only one order, so those for the gradients of rows are copies, made before the first
        # product. Then the products are made again, and their gradients, after that of the last
        # matrix, which is not needed any more. At last each of the first matrices has a part of the
        # rows' gradient; they are added up next to the rows and the gradient of the results. Where
        # experts lie apart, which no compiled program has shown yet, one more of each is counted.
        apart = np.where(layout.ways("experts") > 1, 1, 0)
        first = sum(layout.elements(matmul.weight) for matmul in block.mlp.inputs)
        inputs = len(block.mlp.inputs)
        found = [
            (
                name,
                [
                    _line("gathered_weights", "gathered weights", "size x stages x first",
                         size=layout.compute_bytes, stages=stages, first=first),
                    _stream_line(layout, 4),
                    _products_line(layout, block, products + apart),
                    _routed_line(layout, rows + apart),
                    _attention_line(_attention_bytes(layout, block)),
                ],
            )
            for name, stages, products, rows in (
                ("turned experts", _TURNED_STAGES, 1, _DROPLESS_STAGES),
                ("mlp", 1, _mlp_products(layout, block), _DROPLESS_STAGES),
                ("rows of experts", 1, inputs, _DROPLESS_STAGES + inputs),
            )
        ]  # fmt: skip
    elif isinstance(block.mlp, Mixture):
        stages = 4 * (ways > 1) + 4 / ways
        mlp = _mlp_lines(layout, block, stages, _mlp_products(layout, block))
        found = [("mlp", mlp), ("attention again", _again_lines(layout, block))]
    else:
        # Stages of the stream, and inner tensors, while the activation is differentiated. Around a
        # ring of `tensor`, what the chips exchanged is there whole: the MLP's input, and the
        # attention's where its products are made again. The inner tensor and its gradient live with
        # a gradient of the first products and, made again, the products, which are one array.
        inputs, again = len(block.mlp.inputs), _attention_inputs(layout, block)
        joined = np.where(_missing_products(layout, block) > 0, inputs, 0)
        moment = (
            np.where(ways > 1, 1 + again + 3 / ways, 4 if inputs == 1 else 3),
            np.where(ways > 1, 3 + joined, _mlp_products(layout, block)),
        )
        found = [("mlp", _mlp_lines(layout, block, *moment))]
        if np.any(ways > 1):
            # A ring's exchange of the gradient of the MLP's result, with what the activation needs.
            # About half of it is there twice: as it arrives, and where it is whole.
            exchange = 3.5 + again, 1 + joined
            in_ring = (np.where(ways > 1, *both) for both in zip(exchange, moment, strict=True))
            found.append(("mlp ring", _mlp_lines(layout, block, *in_ring)))
        found.append(("attention again", _again_lines(layout, block)))
    found.append(("attention", _attention_lines(layout, block)))
    if layout.chip.switched:
        # The compiler for GPUs scatters the gradients of one round of the loop over layers in the
        # next. A round of a pattern of several layers makes most of its own before it does.
        segments = layout.network.segments
        pattern = max(
            len(segment.stacks)
            for segment in segments
            if any(stack.block == block for stack in segment.stacks)
        )
        rounds = (2 * pattern - 1) * (layout.ways(mesh_axes.GATHERED) > 1)
        rounds = rounds * (1 - layout.gathers_once)
        sent = layout.total_elements(block.matmuls) * rounds
        late = _line("gathered_weights", "gradients on their way", "size x block",
                     size=layout.gradient_bytes, block=sent)  # fmt: skip
        found = [(name, [*lines, late]) for name, lines in found]
    return found


def _mlp_lines(
    layout: Training, block: Block, stages: Number, products: Number
) -> list[LedgerLine]:
    """The MLP's backward pass, with what the attention's needs, `stages` and inner tensors."""
    # Where slices share weights, the last matrix is there twice: for the pass, and as it arrived.
    shared = (layout.devices_along(mesh_axes.SHARED_OVER_DCN) > 1) & (not layout.chip.switched)
    twice = shared * layout.elements(block.mlp.output.weight)
    # All of the attention where its kernel runs again for the MLP's input. Where the result is
    # kept, the rest is made again later. Chips whose sums overlap products make it first, and turn
    # the kept result.
    attention, result = _attention_bytes(layout, block), block.attention.result
    again = layout.remat.share(result.name, "recompute")
    kept = layout.compute_bytes * layout.stored_tensor_elements(result)
    early = kept + _attention_inputs(layout, block) * (attention - kept)
    ahead = again * attention + (1 - again) * layout.sums_beside_products * early
    in_ring, is_mixture = _split_ways(layout) > 1, isinstance(block.mlp, Mixture)
    alive = np.where(in_ring | is_mixture, attention, ahead)
    # A ring multiplies the attention's result in order of arrival: a copy of the kernel's.
    in_order = in_ring * layout.compute_bytes * layout.tensor_elements(result)
    return [
        _matrices_line(layout, "block", layout.total_elements(block.matmuls) + twice),
        _stream_line(layout, stages),
        _products_line(layout, block, products),
        *([_routed_line(layout, _ROUTED_STAGES)] if is_mixture else []),
        _attention_line(alive + in_order),
    ]


def _attention_inputs(layout: Training, block: Block) -> Number:
    """One where the attention's input is gathered again, to make its products; else zero."""
    return np.maximum.reduce([layout.recomputed(matmul) for matmul in block.attention.inputs])


def _mlp_products(layout: Training, block: Block) -> Number:
    """Inner tensors of the MLP that are alive at once in its backward pass, without a ring, and
    while attention runs again after it. Recomputed products are alive with their gradients. The
    last matmul's input is there too where products are kept, and on chips whose sums but not
    gathers overlap products.
    """
    inputs, missing = len(block.mlp.inputs), _missing_products(layout, block)
    again = layout.remat.share(block.attention.result.name, "recompute")
    gathers_beside_products = layout.has_option("xla_enable_async_all_gather")
    own = np.minimum(missing, 1) * layout.sums_beside_products * (1 - gathers_beside_products)
    if inputs == 1:
        without_ring = inputs + missing
    elif isinstance(block.mlp, Mixture):
        without_ring = inputs + 1 + missing * (1 - again)
    else:
        without_ring = inputs + np.maximum(missing, 1) + own
    return np.where(_split_ways(layout) > 1, inputs + 1, without_ring)


def _missing_products(layout: Training, block: Block) -> Number:
    """How many of the MLP's inner tensors have to come back for the backward pass."""
    return sum(
        layout.remat.share(matmul.output.name, treatment)
        for matmul in block.mlp.inputs
        for treatment in ("recompute", "offload")
    )


def _late_gradients(layout: Training, block: Block) -> Number:
    """Zero where the MLP's gradients are made before the attention's backward pass, else one."""
    is_mixture = isinstance(block.mlp, Mixture)
    return 1 - (layout.sums_beside_products if is_mixture else 1) * (_split_ways(layout) == 1)


def _wide_statistics(layout: Training, block: Block) -> Number:
    """Bytes of recomputed attention's log-sum-exp as its kernel writes it, a row of fp32 lanes
    for each query and head; zero where sums overlap products, which make it narrow at once.
    """
    result = block.attention.result
    rows = Tensor("", result.positions, result.statistics)
    wide = 1 - layout.sums_beside_products * (_split_ways(layout) == 1)
    return wide * (_FP32_BYTES * layout.tile[1] * layout.tensor_elements(rows))


def _attention_bytes(layout: Training, block: Block) -> Number:
    """What the attention kernel reads and writes in one layer, keys and values of all positions."""
    attention = block.attention
    gathered = sum(layout.stored_tensor_elements(tensor) for tensor in attention.whole)
    read = layout.stored_tensor_elements(attention.queries) + gathered
    written = layout.stored_tensor_elements(attention.result)
    others = gathered * (layout.ways("length") - 1)
    tensors = layout.compute_bytes * (read + others + written)
    again = layout.remat.share(attention.result.name, "recompute")
    return tensors + again * _wide_statistics(layout, block)


def _again_lines(layout: Training, block: Block) -> list[LedgerLine]:
    """The attention kernel where the backward pass runs it again: its log-sum-exp is copied, and
    inner tensors of the MLP wait for their products, unless these come early.
    """
    attention, result = block.attention, block.attention.result
    gradient = layout.compute_bytes * layout.stored_tensor_elements(result)
    again = layout.remat.share(result.name, "recompute")
    copied = again * (gradient + _wide_statistics(layout, block))
    waiting = _late_gradients(layout, block) * _mlp_products(layout, block)
    return [
        _matrices_line(layout, "output", layout.elements(attention.output.weight)),
        _stream_line(layout, 4 / _split_ways(layout)),
        _products_line(layout, block, waiting),
        _attention_line(_attention_bytes(layout, block) + copied),
    ]


def _attention_lines(layout: Training, block: Block) -> list[LedgerLine]:
    """The attention's backward pass: q, the result and their gradients, that of q also in fp32.
    Keys and values of latent attention are as many, and have gradients too. One kernel writes the
    gradient of q for each block of keys. The gradients of the MLP's inputs wait for their product,
    but where these come early.
    """
    attention, compute = block.attention, layout.compute_bytes
    queries, result = map(layout.stored_tensor_elements, (attention.queries, attention.result))
    alive = (_FP32_BYTES + 2 * compute) * queries + 2 * compute * result
    if isinstance(attention, LatentAttention):
        alive += 2 * compute * sum(map(layout.stored_tensor_elements, attention.whole))
    size = _FP32_BYTES + 4 * compute  # as if all heads were queries, in four copies and in fp32
    waiting = len(block.mlp.inputs) * _late_gradients(layout, block)
    # Without a kernel of cuDNN: weights and their gradients, of a block of keys, in fp32 and bf16.
    by_blocks = layout.chip.switched * lacks_gpu_kernel(layout, attention)
    pairs = queries / attention.queries.dimensions[-1].size * min(MOST_KEYS, layout.length)
    scores = _line("working_activations", "scores of a block", "size x pairs",
                   size=2 * (_FP32_BYTES + compute), pairs=by_blocks * pairs)  # fmt: skip
    return [
        *([scores] if layout.chip.switched else []),
        _matrices_line(layout, "attention", layout.total_elements(attention.matmuls)),
        _stream_line(layout, 3),
        _products_line(layout, block, waiting),
        _line("working_activations", "attention", "size x heads", size=size, heads=alive / size),
        _line("working_activations", "gradients of queries", "size x sums x queries",
             size=compute, sums=partial_sums_of(layout, attention), queries=queries),
    ]  # fmt: skip


# --- parameters, moments, gradients and activations


def _resting_lines(layout: Training) -> list[LedgerLine]:
    """State that a device holds all through the step; copies and padding have their own lines."""
    split = layout.ways(mesh_axes.GATHERED)
    copied = layout.copied_heads * layout.layer_elements_of_a_head / split
    words = [table for table in layout.network.tables if table is not layout.network.positions]
    filled = len(words) * layout.table_padding_elements / split
    own = layout.stored_parameter_elements - copied - filled
    parameter, moments = layout.parameter_bytes, layout.moment_bytes
    sums = ACCUMULATION_BYTES * ((layout.microbatches > 1) | (layout.stages > 1))
    # What a stage holds in all ticks: the stream that comes and goes, forward and backward, and
    # where it gathers only once, its whole matrices and their gradients.
    of_stages = list[LedgerLine]()
    if np.any(layout.stages > 1):
        buffers = np.where(layout.stages > 1, _STAGE_BUFFERS / _split_ways(layout), 0)
        of_stages.append(_stream_line(layout, buffers))
        if np.any(once := layout.gathers_once):
            stage = layout.layer_elements + layout.total_tables
            of_stages += [
                _line("gathered_weights", "matrices of the stage", "size x stage",
                     size=layout.compute_bytes * once, stage=stage),
                _line("gradient_sums", "gradient sums of the stage", "size x stage",
                     size=ACCUMULATION_BYTES * once, stage=stage),
            ]  # fmt: skip
    return [
        *of_stages,
        _line("parameters", "parameters", "size x owned", size=parameter, owned=own),
        _line("optimizer_state", "optimizer", "size x owned", size=moments, owned=own),
        *_other_moment_lines(layout),
        _line("copied_heads", "copied kv heads", "size x copied",
             size=parameter + moments, copied=copied),
        _line("vocab_padding", "vocabulary padding", "size x filled",
             size=parameter + moments, filled=filled),
        _line("gradient_sums", "gradient sums", "size x elements",
             size=sums * (1 - layout.gathers_once), elements=own + copied + filled),
    ]  # fmt: skip


def _other_moment_lines(layout: Training) -> list[LedgerLine]:
    """Optimizer moments whose count differs between parameters. Adafactor holds fp32 means of rows
    and columns (arXiv 1804.04235) and whole moments of vectors; Muon one moment of the layers'
    matrices, and two of all else.
    """
    if layout.optimizer.name == "adamw":
        return []

    def means(weight: Weight) -> Number:
        """Adafactor's means of a matrix's rows and columns, or of those of all its experts."""
        sizes = {size.axis: layout.stored_size(size) for size in weight.dimensions}
        experts = sizes.pop(EXPERTS, 1)
        rows = prod(size for axis, size in sizes.items() if axis in mesh_axes.GATHERED_AXES)
        columns = prod(size for axis, size in sizes.items() if axis not in mesh_axes.GATHERED_AXES)
        return experts * (rows + columns)

    size: float = _FP32_BYTES
    if layout.optimizer.name == "adafactor":
        blocks = layout.over_layers(lambda block: sum(means(m.weight) for m in block.matmuls))
        numbers = blocks + sum(map(means, layout.network.tables)) + layout.vector_elements
    else:
        size = MOMENT_BYTES[layout.precision.optimizer]
        numbers = layout.stored_parameter_elements - layout.stored_layer_elements
    return [_line("optimizer_state", "other moments", "size x numbers", size=size, numbers=numbers)]


def _block_activation_bytes(layout: Training, treatment: Treatment, block: Block) -> Number:
    """Activations of a block that a policy treats so, with their statistics, of one microbatch."""
    total: Number = 0
    for tensor in block.tensors:
        size = layout.compute_bytes * layout.stored_tensor_elements(tensor)
        if tensor.statistics:
            statistics = Tensor(tensor.name, tensor.positions, tensor.statistics)
            size = size + _FP32_BYTES * layout.tensor_elements(statistics)
        total = total + layout.remat.share(tensor.name, treatment) * size
    return total


def activation_bytes(layout: Training, treatment: Treatment) -> Number:
    return layout.over_layers(partial(_block_activation_bytes, layout, treatment))


def _arrival_lines(layout: Training) -> list[LedgerLine]:
    """The unembedding in both orders of its rows, where a device's do not fill sublanes."""
    rows = layout.model.d_model / layout.devices_along(mesh_axes.GROUPS["weights"])
    padded = whole(rows, layout.tile[0])
    if np.all(padded == rows):
        return []
    table = np.where(padded == rows, 0, layout.table_elements * padded / rows)
    return [
        _head_line(layout, "unembedding"),
        _line("gathered_weights", "padded unembedding", "size x table",
             size=layout.compute_bytes, table=table),
        _stream_line(layout, 1),
    ]  # fmt: skip


def _loss_lines(layout: Training) -> list[LedgerLine]:
    """The unembedding and its fp32 gradient, a chunk of logits, the stream and its gradient."""
    vocab, _ = layout.network.head.dimensions
    token_bytes = _FP32_BYTES * layout.size(vocab)
    chunk = loss_chunk_bytes(layout.loss_chunk_tokens, token_bytes)
    return [
        _head_line(layout, "unembedding", by_chunk=layout.sums_loss_by_chunk),
        _line("logits", "logits", "chunk", chunk=np.minimum(chunk, layout.tokens * token_bytes)),
        _stream_line(layout, 2 + 1 / _split_ways(layout)),
    ]
