"""Every collective of a step.

The ledger of seconds has a line for each exchange.
"""

from dataclasses import dataclass, replace
from functools import partial

from orchestrator.network.description import Block, LatentAttention
from orchestrator.network.mesh_axes import GROUPS, SHARED_OVER_DCN, link_of
from orchestrator.plan.exchange import ALL_TO_ALL, GATHER, OVER_DCN, SCATTER, Exchange, Part
from orchestrator.plan.gradient_collectives import gradient_exchanges
from orchestrator.plan.layout import DTYPE_BYTES, Layout, Number, is_of_experts
from orchestrator.plan.optimizers import ORTHOGONAL_BYTES
from orchestrator.types.plan import CollectiveKind, LineKind
from orchestrator.types.spec_fields import DType

# Attention and MLP each gather their input over `tensor` and scatter their output; backward they
# gather the output's gradient and scatter the input's. The gathered input is not kept: gradients
# of the weights need it gathered again.
INPUT_GATHERS, OUTPUT_GATHERS = 2, 1
INPUT_SCATTERS, OUTPUT_SCATTERS = 1, 1
STREAM_GATHERS = INPUT_GATHERS + OUTPUT_GATHERS
STREAM_SCATTERS = INPUT_SCATTERS + OUTPUT_SCATTERS
# Rows go to experts and come back; backward they go again, and the gradients of both ways.
ROW_EXCHANGES = 5
ENDS = 2  # the embedding and the unembedding
WEIGHT_GATHERS = 2  # forward and backward; recompute shares the backward's
KV_GATHERS = 2  # forward, and again for the backward pass


def exchanges(layout: Layout) -> list[Exchange]:
    """Everything that counts in a step's time; over a single device nothing moves."""
    return [
        *stream_exchanges(layout),
        *weight_exchanges(layout),
        *expert_exchanges(layout),
        *key_value_exchanges(layout),
        *gradient_exchanges(layout),
        *moment_exchanges(layout),
    ]


def stream_exchanges(layout: Layout) -> list[Exchange]:
    """The residual stream, split by position over `tensor`: around sublayers and at both ends.

    Latents go in place of the stream to what is made from them.
    """
    axes, d_model = GROUPS["tensor"], layout.model.d_model

    def kept(block: Block) -> Number:
        """Inputs that the backward pass does not gather again, over the width of the stream."""
        attention = block.attention
        if not isinstance(attention, LatentAttention):
            return 0
        return (1 - layout.recomputed(attention.keys)) * attention.turned_width / d_model

    def again(block: Block) -> Number:
        return sum(layout.repeats_output(part) for part in block.sublayers)

    def entering(block: Block) -> float:
        """Inputs of the block, over the width of the stream."""
        return sum(part.entering_width for part in block.sublayers) / d_model

    sublayers = layout.over_layers(lambda block: len(block.sublayers))
    repeated, inputs = layout.over_layers(again), layout.over_layers(entering)
    stream = layout.tokens * d_model * layout.compute_bytes

    def exchange(
        line: LineKind, name: str, kind: CollectiveKind, of_inputs: int, of_outputs: Number,
        spared: Number = 0,
    ) -> Exchange:  # fmt: skip
        calls = (of_inputs * sublayers + of_outputs + ENDS) * layout.microbatches
        streams = (of_inputs * inputs + of_outputs - spared + ENDS) * layout.microbatches
        return Exchange(
            line, name, kind, axes, "tokens x d_model", layout.devices_along(axes), calls,
            (Part(stream, streams),), layout.activation_type,
        )  # fmt: skip

    scatters = OUTPUT_SCATTERS * sublayers + repeated
    return [
        exchange("activation_gather", "residual gather", GATHER, INPUT_GATHERS,
                 OUTPUT_GATHERS * sublayers, layout.over_layers(kept)),
        exchange("activation_scatter", "residual scatter", SCATTER, INPUT_SCATTERS, scatters),
    ]  # fmt: skip


def weight_exchanges(layout: Layout) -> list[Exchange]:
    """Matrices gathered in each microbatch, and their gradients scattered.

    The weights of parallel matmuls are gathered as one. A tied table is gathered for each of its
    uses, in another order of its dimensions, and each of them has a gradient. A device first gets
    its own part from the other slices that share it, then the other parts over fsdp x sequence
    inside its slice. Where each chunk of the loss sums the gradient of its table, that is scattered
    as often. Nothing hides the first gathers, of the embedding and of the first matmuls,
    nor the scatters of their gradients, which come last.
    """
    types, passes = layout.precision, layout.microbatches
    blocks, experts = (block_weights(layout, of_experts=one) for one in (False, True))
    table = Weights(((layout.table_elements, passes),), passes)
    gather = partial(weight_exchange, layout, "weight_gather", GATHER, layout.activation_type)
    scatter = partial(weight_exchange, layout, "gradient_scatter", SCATTER, types.gradients)
    of_block, of_table = "layer / tensor", "d_model x vocab / tensor"
    of_experts = "experts / expert / tensor"
    inside, apart, sums = GROUPS["weights"], GROUPS["experts"], 1 + layout.table_sums
    every = [
        exchange
        for axes, suffix in ((inside, ""), (SHARED_OVER_DCN, OVER_DCN))
        for exchange in (
            gather(axes, f"weight gather{suffix}", of_block, blocks, WEIGHT_GATHERS, inside),
            gather(axes, f"table gather{suffix}", of_table, table, ENDS, inside),
            scatter(axes, f"gradient scatter{suffix}", of_block, blocks, 1, inside),
            scatter(axes, f"table gradient scatter{suffix}", of_table, table, sums, inside),
        )
    ]
    for axes, suffix in ((apart, ""), (SHARED_OVER_DCN, OVER_DCN)) if experts.parts else ():
        every += [
            gather(axes, f"expert gather{suffix}", of_experts, experts, WEIGHT_GATHERS,
                   apart),
            scatter(axes, f"expert scatter{suffix}", of_experts, experts, 1, apart),
        ]  # fmt: skip
    return every


def expert_exchanges(layout: Layout) -> list[Exchange]:
    """Tokens over `expert`. With a capacity each row goes to its expert and comes back. Without
    one, every device of the group gets all tokens, and adds up what its own experts make of them.
    """
    moe, axes = layout.model.moe, GROUPS["expert"]
    if moe is None:
        return []
    passes = layout.network.mixture_layers * layout.microbatches
    ways = layout.devices_along(axes)
    tokens = layout.tokens * layout.model.d_model * layout.compute_bytes

    def exchange(
        line: LineKind, name: str, kind: CollectiveKind, formula: str, volume: Number, calls: int
    ) -> Exchange:
        return Exchange(line, name, kind, axes, formula, ways, calls * passes,
                        (Part(volume, calls * passes),), layout.activation_type)  # fmt: skip

    if moe.capacity_factor is not None:
        volume = tokens * layout.rows_of_token
        return [exchange("expert_exchange", "tokens to experts", ALL_TO_ALL,
                         "tokens x rows x d_model", volume, ROW_EXCHANGES)]  # fmt: skip
    formula, volume = "tokens x expert x d_model", tokens * ways
    return [
        exchange("expert_gather", "token gather", GATHER, formula, volume, STREAM_GATHERS),
        exchange("expert_scatter", "token scatter", SCATTER, formula, volume, STREAM_SCATTERS),
    ]


def block_weights(layout: Layout, *, of_experts: bool) -> "Weights":
    """The weights of all layers: those of experts, or all others."""
    passes = layout.microbatches
    parts = [
        (layout.total_elements(matmuls), layers * passes, layers)
        for block, layers in layout.network.kinds
        for part in block.sublayers
        for matmuls in part.parallel
        if is_of_experts(matmuls[0]) == of_experts
    ]
    layers = layout.network.mixture_layers if of_experts else layout.network.layers
    return Weights(tuple(one[:2] for one in parts), layers * passes)


@dataclass(frozen=True)
class Weights:
    """What travels as one: its elements, and how often a step passes it. `passes` are those of
    whole blocks, whose parts travel in parallel.
    """

    parts: tuple[tuple[Number, Number], ...]
    passes: Number


def weight_exchange(
    layout: Layout,
    line: LineKind,
    kind: CollectiveKind,
    dtype: DType,
    axes: tuple[str, ...],
    name: str,
    formula: str,
    weights: Weights,
    times: Number,
    inside: tuple[str, ...],
) -> Exchange:
    """One exchange of weights or their gradients over the axes of one link: so many `times` each
    time that a step passes the weights. `inside` are the axes of a slice that split them.
    """
    parts_elsewhere, ways = 1, layout.devices_along(axes)
    if link_of(axes) == "dcn":
        formula += " / fsdp / sequence"
        parts_elsewhere = layout.devices_along(inside)
    size = DTYPE_BYTES[dtype] / parts_elsewhere
    parts = tuple(
        Part(elements * size, times * often, serial=int(i == 0))
        for i, (elements, often) in enumerate(weights.parts)
    )
    calls = times * weights.passes
    return Exchange(line, name, kind, axes, formula, ways, calls, parts, dtype)


def key_value_exchanges(layout: Layout) -> list[Exchange]:
    """Keys and values of whole sequences, gathered forward and backward; their gradients back."""
    ways, compute = layout.ways("length"), layout.activation_type
    parts = [
        Part(
            layout.tensor_elements(one) * ways * layout.compute_bytes, layers * layout.microbatches
        )
        for block, layers in layout.network.kinds
        for one in block.attention.whole
    ]

    def exchange(line: LineKind, name: str, kind: CollectiveKind, times: int) -> Exchange:
        sent = tuple(replace(one, calls=times * one.calls) for one in parts)
        formula, calls = "tokens x sequence x kv_heads x head_dim", sum(one.calls for one in sent)
        return Exchange(line, name, kind, GROUPS["sequence"], formula, ways, calls, sent, compute)

    return [
        exchange("kv_gather", "kv gather", GATHER, KV_GATHERS),
        exchange("kv_scatter", "kv scatter", SCATTER, 1),
    ]


def moment_exchanges(layout: Layout) -> list[Exchange]:
    """Moments of Muon: matrices go to devices that have them whole, and come back orthogonal."""
    if layout.optimizer.name != "muon":
        return []
    volume = ORTHOGONAL_BYTES * layout.stored_layer_elements
    part = (Part(volume, 2, serial=2),)
    return [
        Exchange("moment_exchange", f"moments{suffix}", ALL_TO_ALL, axes, "owned matrices",
                 layout.devices_along(axes), 2, part, "bf16")
        for suffix, axes in (("", GROUPS["replicas"]), (OVER_DCN, SHARED_OVER_DCN))
    ]  # fmt: skip
