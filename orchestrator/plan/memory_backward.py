"""The ledger of bytes in the backward pass of a layer."""

import numpy as np

from orchestrator.network.description import MLP, Attention, Block, LatentAttention, Mixture, Tensor
from orchestrator.network.mesh_axes import SHARED_OVER_DCN
from orchestrator.plan.flops import partial_sums_of
from orchestrator.plan.layout import Layout, Number
from orchestrator.plan.memory_lines import FP32_BYTES, line, named, split_ways, stream_bytes
from orchestrator.types.plan import LedgerLine

# Rows of experts that are alive at once: those sent, those that come back, and the gradients of
# both. Dropless: those sent, and the gradients of those that come back.
ROUTED_STAGES, DROPLESS_STAGES = 4, 2
# First matrices of experts that are alive at once before the backward pass: joined and gathered,
# parted, and turned for the gradients of their rows.
TURNED_STAGES = 3


def backward_lines(layout: Layout, block: Block) -> tuple[tuple[str, list[LedgerLine]], ...]:
    """The phases of a block's backward pass, by name."""
    attention = (named(block, "attention"), attention_lines(layout, block))
    if isinstance(block.mlp, Mixture) and is_dropless(layout):
        experts = dropless_phases(layout, block, block.mlp)
        return (*((named(block, name), lines) for name, lines in experts), attention)
    ring = ring_phases(layout, block)
    return (
        (named(block, "mlp"), mlp_lines(layout, block, *activation_moment(layout, block))),
        *((named(block, name), lines) for name, lines in ring),
        (named(block, "attention again"), again_lines(layout, block)),
        attention,
    )


def is_early(layout: Layout, block: Block) -> Number:
    """One where the MLP's gradients are made before the attention's backward pass: those of a plain
    MLP, and those of experts whose sums run beside it.
    """
    is_mixture = isinstance(block.mlp, Mixture)
    return (layout.sums_beside_products if is_mixture else 1) * (split_ways(layout) == 1)


def is_narrow(layout: Layout) -> Number:
    """One where the log-sum-exp of attention that runs again is narrow at once, as sums run beside
    products.
    """
    return layout.sums_beside_products * (split_ways(layout) == 1)


def is_dropless(layout: Layout) -> bool:
    return layout.model.moe is not None and layout.model.moe.capacity_factor is None


def dropless_phases(
    layout: Layout, block: Block, mixture: Mixture
) -> tuple[tuple[str, list[LedgerLine]], ...]:
    """The backward pass of experts whose rows lie in groups of any size.

    A kernel reads matrices in one order alone, so those for the gradients of rows are copies, made
    before the first product. Then the products are made again, and their gradients, after that of
    the last matrix, which is not needed any more. At last each of the first matrices has a part of
    the rows' gradient, and they are added up beside the rows and the gradient of the results. Where
    experts lie apart, which no compiled program has shown yet, one more of each is counted.
    """
    apart = np.where(layout.ways("experts") > 1, 1, 0)
    products = mlp_products(layout, block)
    first = sum(layout.elements(one.weight) for one in mixture.inputs)
    inputs = len(mixture.inputs)
    return tuple(
        (
            name,
            [
                line("gathered_weights", "gathered weights", "size x stages x first",
                     size=layout.compute_bytes, stages=stages, first=first),
                line("working_activations", "stream", "stages x stream",
                     stages=4, stream=stream_bytes(layout)),
                line("working_activations", "mlp", "products x product",
                     products=alive + apart, product=product_bytes(layout, block)),
                routed_line(layout, rows + apart),
                line("working_activations", "attention", "size",
                     size=attention_bytes(layout, block)),
            ],
        )
        for name, stages, alive, rows in (
            ("turned experts", TURNED_STAGES, 1, DROPLESS_STAGES),
            ("mlp", 1, products, DROPLESS_STAGES),
            ("rows of experts", 1, inputs, DROPLESS_STAGES + inputs),
        )
    )  # fmt: skip


def mlp_lines(layout: Layout, block: Block, stages: Number, products: Number) -> list[LedgerLine]:
    """The MLP's backward pass, with all that the attention's will need, and so many stages of the
    stream and inner tensors. Where slices share weights, the MLP's last matrix is there twice: for
    the pass, and as it arrived.
    """
    twice = (layout.devices_along(SHARED_OVER_DCN) > 1) * layout.elements(block.mlp.output.weight)
    return [
        line("gathered_weights", "gathered weights", "size x block",
             size=layout.compute_bytes, block=layout.block_elements(block) + twice),
        line("working_activations", "stream", "stages x stream",
             stages=stages, stream=stream_bytes(layout)),
        line("working_activations", "mlp", "products x product",
             products=products, product=product_bytes(layout, block)),
        *([routed_line(layout, ROUTED_STAGES)] if isinstance(block.mlp, Mixture) else []),
        line("working_activations", "attention", "size",
             size=attention_before(layout, block) + in_order_of_arrival(layout, block)),
    ]  # fmt: skip


def attention_before(layout: Layout, block: Block) -> Number:
    """What of the attention is there in the MLP's backward pass.

    All of it where its kernel runs again for the MLP's input. Where the result is kept, the rest is
    made again later. Chips whose sums run beside products make it first, and turn the kept result.
    """
    whole, result = attention_bytes(layout, block), block.attention.result
    again = layout.remat.share(result.name, "recompute")
    kept = layout.compute_bytes * layout.stored_tensor_elements(result)
    early = kept + attention_inputs(layout, block) * (whole - kept)
    ahead = again * whole + (1 - again) * layout.sums_beside_products * early
    is_mixture = isinstance(block.mlp, Mixture)
    return np.where((split_ways(layout) > 1) | is_mixture, whole, ahead)


def activation_moment(layout: Layout, block: Block) -> tuple[Number, Number]:
    """Stages of the stream, and inner tensors, while the activation is differentiated.

    Around a ring of `tensor`, what the chips exchanged is there whole: the MLP's input, and the
    attention's where its products are made again. The inner tensor and its gradient are beside a
    gradient of the first products and, made again, the products, which are one array.
    """
    ways = split_ways(layout)
    if isinstance(block.mlp, Mixture):
        return 4 * (ways > 1) + 4 / ways, mlp_products(layout, block)
    alone = 4 if len(block.mlp.inputs) == 1 else 3
    return (
        np.where(ways > 1, 1 + attention_inputs(layout, block) + 3 / ways, alone),
        np.where(ways > 1, 3 + joined_products(layout, block), mlp_products(layout, block)),
    )


def ring_phases(layout: Layout, block: Block) -> tuple[tuple[str, list[LedgerLine]], ...]:
    """A ring's exchange of the gradient of the MLP's result, beside what the activation needs.

    About half of it is there twice: as it arrives, and where it is whole.
    """
    ways = split_ways(layout)
    if isinstance(block.mlp, Mixture) or not np.any(ways > 1):
        return ()
    exchange = 3.5 + attention_inputs(layout, block), 1 + joined_products(layout, block)
    before = activation_moment(layout, block)
    moment = (np.where(ways > 1, *both) for both in zip(exchange, before, strict=True))
    return (("mlp ring", mlp_lines(layout, block, *moment)),)


def attention_inputs(layout: Layout, block: Block) -> Number:
    """One where the attention's input is gathered again, to make its products; else zero."""
    return np.maximum.reduce([layout.recomputed(one) for one in block.attention.inputs])


def joined_products(layout: Layout, block: Block) -> Number:
    """The inner tensors that a ring makes again, as one array."""
    return np.where(inputs_away(layout, block.mlp) > 0, len(block.mlp.inputs), 0)


def mlp_products(layout: Layout, block: Block) -> Number:
    """Inner tensors of the MLP that are alive at once in its backward pass, where no ring exchanges
    them, and while attention runs again after it.

    Products that are made again are beside their gradients. The input of the last matmul is there
    too where products are kept, and on chips whose sums run beside products but whose gathers do
    not. Experts are made again after attention that runs again.
    """
    inputs, away = len(block.mlp.inputs), inputs_away(layout, block.mlp)
    again = layout.remat.share(block.attention.result.name, "recompute")
    own = np.minimum(away, 1) * layout.sums_beside_products * (1 - layout.gathers_beside_products)
    if inputs == 1:
        without_ring = inputs + away
    elif isinstance(block.mlp, Mixture):
        without_ring = inputs + 1 + away * (1 - again)
    else:
        without_ring = inputs + np.maximum(away, 1) + own
    return np.where(split_ways(layout) > 1, inputs + 1, without_ring)


def inputs_away(layout: Layout, mlp: MLP) -> Number:
    """How many of an MLP's inner tensors have to come back for the backward pass."""
    return sum(
        layout.remat.share(one.output.name, treatment)
        for one in mlp.inputs
        for treatment in ("recompute", "offload")
    )


def again_lines(layout: Layout, block: Block) -> list[LedgerLine]:
    """The attention kernel where the backward pass runs it again: its log-sum-exp is copied, the
    gradient of its result is there, and inner tensors of the MLP wait for their products, but where
    these come early.
    """
    attention, attended = block.attention, block.attention.result
    again, late = layout.remat.share(attended.name, "recompute"), 1 - is_early(layout, block)
    gradient = layout.compute_bytes * layout.stored_tensor_elements(attended)
    wide = 1 - is_narrow(layout)
    more = again * (gradient + wide * statistics_bytes(layout, block))
    return [
        line("gathered_weights", "gathered weights", "size x output",
             size=layout.compute_bytes, output=layout.elements(attention.output.weight)),
        line("working_activations", "stream", "stages x stream",
             stages=4 / split_ways(layout), stream=stream_bytes(layout)),
        line("working_activations", "mlp", "products x product",
             products=late * mlp_products(layout, block), product=product_bytes(layout, block)),
        line("working_activations", "attention", "size",
             size=attention_bytes(layout, block) + more),
    ]  # fmt: skip


def routed_line(layout: Layout, stages: Number) -> LedgerLine:
    """Rows of a mixture's experts, sent or come back, and their gradients."""
    return line(
        "routed_rows",
        "rows of experts",
        "stages x rows x stream",
        stages=stages,
        rows=layout.buffer_of_token,
        stream=stream_bytes(layout),
    )


def product_bytes(layout: Layout, block: Block) -> Number:
    """The result of one of the MLP's first matmuls."""
    first = block.mlp.inputs[0].output
    return layout.compute_bytes * layout.tensor_elements(first)


def attention_bytes(layout: Layout, block: Block) -> Number:
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
    return tensors + again * (1 - is_narrow(layout)) * statistics_bytes(layout, block)


def in_order_of_arrival(layout: Layout, block: Block) -> Number:
    """The attention's result as a ring of `tensor` multiplies it, beside what the kernel wrote."""
    ring = split_ways(layout) > 1
    return ring * layout.compute_bytes * layout.tensor_elements(block.attention.result)


def statistics_bytes(layout: Layout, block: Block) -> Number:
    """The attention's log-sum-exp as its kernel writes it."""
    attended = block.attention.result
    rows = Tensor("", attended.positions, attended.statistics)
    return FP32_BYTES * layout.tile[1] * layout.tensor_elements(rows)


def attention_lines(layout: Layout, block: Block) -> list[LedgerLine]:
    """The attention's backward pass: q, the result and their gradients, that of q also in fp32.

    Keys and values of latent attention are as many, and have gradients too.

    One kernel writes the gradient of q for each block of keys. The gradients of the MLP's inputs
    wait for their product, but where these come early.
    """
    return [
        line("gathered_weights", "gathered weights", "size x attention",
             size=layout.compute_bytes, attention=layout.total_elements(block.attention.matmuls)),
        line("working_activations", "stream", "stages x stream",
             stages=3, stream=stream_bytes(layout)),
        line("working_activations", "mlp", "products x product",
             products=len(block.mlp.inputs) * (1 - is_early(layout, block)),
             product=product_bytes(layout, block)),
        line("working_activations", "attention", "size x heads",
             size=FP32_BYTES + 4 * layout.compute_bytes,
             heads=backward_heads(layout, block.attention)),
        line("working_activations", "gradients of queries", "size x sums x queries",
             size=layout.compute_bytes, sums=partial_sums_of(layout, block.attention),
             queries=layout.stored_tensor_elements(block.attention.queries)),
    ]  # fmt: skip


def backward_heads(layout: Layout, attention: Attention) -> Number:
    """Numbers of heads that are alive in four copies and once in fp32, as if all were queries."""
    queries, result = map(layout.stored_tensor_elements, (attention.queries, attention.result))
    compute = layout.compute_bytes
    alive = (FP32_BYTES + 2 * compute) * queries + 2 * compute * result
    if isinstance(attention, LatentAttention):
        alive += 2 * compute * sum(map(layout.stored_tensor_elements, attention.whole))
    return alive / (FP32_BYTES + 4 * compute)
