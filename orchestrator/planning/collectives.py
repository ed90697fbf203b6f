"""Every collective of a step.

The ledger of seconds has a line for each exchange.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from orchestrator.network.description import Block, LatentAttention, Stack, Weight
from orchestrator.network.mesh_axes import (
    COPIED,
    GATHERED,
    GROUPS,
    LOGICAL_AXES,
    REPLICA_AXES,
    SHARED_OVER_DCN,
    SLICE_REPLICAS,
    in_use,
    link_of,
)
from orchestrator.network.mlp import EXPERTS
from orchestrator.planning.kernels import TILE
from orchestrator.planning.layout import (
    DTYPE_BYTES,
    Layout,
    Number,
    Training,
    copied_matmuls,
    gathered_axis,
    is_of_experts,
)
from orchestrator.values.fields import DType
from orchestrator.values.plan import Collective, CollectiveKind, LineKind

# A collective of a step: what one device exchanges, with which others, how often.


_GATHER: CollectiveKind = "all-gather"
_SCATTER: CollectiveKind = "reduce-scatter"
REDUCE: CollectiveKind = "all-reduce"
ALL_TO_ALL: CollectiveKind = "all-to-all"

_OVER_DCN = " over dcn"
_ORTHOGONAL_BYTES = 2  # matrices that Muon makes orthogonal are in bf16


@dataclass(frozen=True)
class _Part:
    """`calls` collectives a step; each gathers, scatters or reduces `bytes` in all.

    `serial` of the calls come before the first layer or after the last backward pass, where no
    matmul is left to hide them.
    """

    bytes: Number
    calls: Number
    serial: Number = 0


@dataclass(frozen=True)
class Exchange:
    """What a step exchanges over some mesh axes for one purpose; `formula` names the payload.

    `calls` is how often the links' latency is paid: parts that are sent in parallel pay it once.
    """

    line: LineKind
    name: str
    kind: CollectiveKind
    axes: tuple[str, ...]
    formula: str
    ways: Number
    calls: Number
    parts: tuple[_Part, ...]
    dtype: DType

    @property
    def group(self) -> str:
        """The name of the devices that it joins."""
        return next((name for name, axes in GROUPS.items() if axes == self.axes), self.axes[0])

    @property
    def moved_bytes(self) -> Number:
        """Logical payload of a device in a step: V (n - 1) / n a call, an all-reduce twice that."""
        return self.moved(sum(part.calls * part.bytes for part in self.parts))

    @property
    def serial_bytes(self) -> Number:
        """The part of it that no matmul hides."""
        return self.moved(sum(p.serial * p.bytes for p in self.parts if np.any(p.serial)))

    def moved(self, volume: Number) -> Number:
        twice = 2 if self.kind == REDUCE else 1
        return twice * volume * (self.ways - 1) / self.ways

    def collective(self, mesh: Mapping[str, Number]) -> Collective:
        """The exchange as a value of the Plan."""
        return Collective(
            kind=self.kind,
            axes=in_use(self.axes, mesh),
            link=link_of(self.axes),
            dtype=self.dtype,
            bytes_per_step=float(self.moved_bytes),
            calls_per_step=float(self.calls),
        )


# The collectives of gradients: over all devices that hold a parameter.


def _gradient_exchanges(layout: Training) -> list[Exchange]:
    """Gradients over all devices that hold the parameter: first inside a slice where it is
    repeated, and over the slices that share weights, then over its replicas. These scatter over
    `data`, reduce over `pods`, gather back.
    """
    wire, data = layout.gradient_bytes, layout.devices_along(GROUPS["data"])
    buckets = _gradient_buckets(layout)
    whole = tuple(replace(one, bytes=one.bytes * wire) for one in buckets)
    shares = tuple(replace(one, bytes=one.bytes / data) for one in whole)
    payload = "owned gradient"

    def exchange(
        name: str, kind: CollectiveKind, axes: tuple[str, ...], formula: str,
        parts: tuple[_Part, ...], ways: Number | None = None,
    ) -> Exchange:  # fmt: skip
        ways = layout.devices_along(axes) if ways is None else ways
        return Exchange("gradient_reduction", name, kind, axes, formula, ways, 1, parts,
                        layout.precision.gradients)  # fmt: skip

    # Gradients of projections whose kv heads are copied to several devices.
    size = layout.gradient_bytes / layout.ways(GATHERED)
    return [
        exchange("kv weight copies", REDUCE, GROUPS["tensor"], "wk, wv",
                 tuple(
        _Part(layers * size * layout.elements(matmul.weight), times, serial=1)
        for stack in layout.network.stacks
        for layers, times in [_reduced_at_a_time(layout, stack)]
        for matmul in copied_matmuls(stack.block)
    ), layout.copies),
        *(exchange("router gradients", REDUCE, GROUPS["tensor"], "routers, latents", whole)
          for whole in [_unsplit_gradients(layout)] if whole),
        exchange("norm gradients", REDUCE, GROUPS["replicas"], "norms",
                 _vector_gradients(layout, _is_repeated)),
        exchange(f"norm gradients{_OVER_DCN}", REDUCE, SHARED_OVER_DCN, "norms",
                 _vector_gradients(layout, _is_repeated)),
        *_split_vector_exchanges(layout, exchange),
        exchange("data scatter", _SCATTER, GROUPS["data"], payload, whole),
        exchange("data gather", _GATHER, GROUPS["data"], payload, whole),
        exchange("pods", REDUCE, (SLICE_REPLICAS,), f"{payload} / data", shares),
    ]  # fmt: skip


def _reduced_at_a_time(layout: Training, stack: Stack) -> tuple[Number, Number]:
    """Layers of a stack whose gradients are reduced at once, and how often that is done in a step.

    Each layer on its own where nothing accumulates; all layers at the end otherwise.
    """
    layers = len(stack.layers)
    stacked = np.where(per_layer(layout), 1, layers)
    return stacked, layers // stacked


def per_layer(layout: Training) -> Number:
    """Whether each layer's gradients are reduced as soon as the backward pass has them."""
    return (layout.microbatches == 1) & (layout.devices_along(REPLICA_AXES) > 1)


def _is_repeated(weight: Weight) -> bool:
    """Whether every device of a slice has all of it."""
    return not any(LOGICAL_AXES[dimension.axis] for dimension in weight.dimensions)


def _is_split(weight: Weight) -> bool:
    return not (_is_repeated(weight) or _is_copied(weight) or _is_bias_of_experts(weight))


def _is_bias_of_experts(weight: Weight) -> bool:
    return weight.dimensions[0].axis == EXPERTS


def _is_inner_bias(weight: Weight) -> bool:
    """A bias of experts that `tensor` splits."""
    return _is_bias_of_experts(weight) and _is_split_over_tensor(weight)


def _is_outer_bias(weight: Weight) -> bool:
    """A bias of experts that every device of a `tensor` group holds."""
    return _is_bias_of_experts(weight) and not _is_split_over_tensor(weight)


def _is_copied(weight: Weight) -> bool:
    """Whether it belongs to kv heads."""
    return any(dimension.axis == COPIED for dimension in weight.dimensions)


def _unsplit_gradients(layout: Training) -> tuple[_Part, ...]:
    """Gradients of matrices that every device of a `tensor` group holds: of routers, and those that
    make latents.
    """
    size = layout.gradient_bytes / layout.ways(GATHERED)
    return tuple(
        _Part(layers * size * layout.elements(matmul.weight), times, serial=1)
        for stack in layout.network.stacks
        for layers, times in [_reduced_at_a_time(layout, stack)]
        for matmul in stack.block.matmuls
        if not _is_split_over_tensor(matmul.weight)
    )


def _is_split_over_tensor(weight: Weight) -> bool:
    return any(set(GROUPS["tensor"]) & {*LOGICAL_AXES[one.axis]} for one in weight.dimensions)


def _vector_gradients(layout: Training, chosen: Callable[[Weight], bool]) -> tuple[_Part, ...]:
    """Gradients of those norms and biases that are chosen."""
    wire, network = layout.gradient_bytes, layout.network
    of_blocks = tuple(
        _Part(layers * layout.elements(vector) * wire, times, serial=1)
        for stack in network.stacks
        for layers, times in [_reduced_at_a_time(layout, stack)]
        for vector in filter(chosen, stack.block.vectors)
    )
    ends = tuple(
        _Part(layout.elements(vector) * wire, 1, serial=1 - per_layer(layout))
        for vector in filter(chosen, network.norm.weights)
    )
    return (*of_blocks, *ends)


def _split_vector_exchanges(layout: Training, exchange: Callable[..., Exchange]) -> list[Exchange]:
    """Gradients of norms and biases of heads and of d_ff, which `tensor` splits; where kv heads are
    copied, over the copies too. Those of experts lie where their experts do.
    """
    inside, apart, outer = (GROUPS[name] for name in ("weights", "experts", "expert_replicas"))
    ways, copies = layout.devices_along(inside), layout.copies
    return [
        exchange(f"{name}{suffix}", REDUCE, axes, "biases", parts, devices)
        for name, chosen, group, of_slice in (
            ("bias gradients", _is_split, inside, ways),
            ("kv bias gradients", _is_copied, inside, ways * copies),
            ("expert bias gradients", _is_inner_bias, apart, layout.devices_along(apart)),
            ("expert output bias gradients", _is_outer_bias, outer, layout.devices_along(outer)),
        )
        for suffix, axes, devices in (
            ("", group, of_slice),
            (_OVER_DCN, SHARED_OVER_DCN, layout.devices_along(SHARED_OVER_DCN)),
        )
        if (parts := _vector_gradients(layout, chosen))
    ]


def _gradient_buckets(layout: Training) -> list[_Part]:
    """Elements whose gradients are reduced over replicas as one, filled up to whole tiles.

    The weights of a layer are one bucket over `data` where each layer is reduced on its own;
    elsewhere each is one, and none waits for another. The first layer and the embedding come after
    the last backward pass, and where gradients accumulate all come there.
    """
    network, ways = layout.network, layout.ways(GATHERED)
    data = layout.devices_along(GROUPS["data"])
    embedding, *ends = [layout.elements(table) / ways for table in network.tables]
    ends += [layout.elements(vector) for vector in network.norm.weights]
    early = per_layer(layout)
    return [
        *(part for stack in network.stacks for part in _stack_buckets(layout, stack, data)),
        _Part(_whole_tiles(embedding, data), 1, serial=1),
        *(_Part(_whole_tiles(one, data), 1, serial=1 - early) for one in ends),
    ]


def _stack_buckets(layout: Training, stack: Stack, data: Number) -> list[_Part]:
    """Those of a stack: what is joined where `data` reduces layer by layer, and each weight."""
    layers, times = _reduced_at_a_time(layout, stack)
    joined = per_layer(layout) & (data > 1)
    matrices, alone = [one.weight for one in stack.block.matmuls], 1 - joined
    weights = [layout.elements(one) / layout.ways(gathered_axis(one)) for one in matrices]
    weights += [layout.elements(vector) for vector in stack.block.vectors]
    return [
        _Part(_whole_tiles(sum(weights), data), times * joined, serial=1 * joined),
        *(_Part(_whole_tiles(layers * one, data), times * alone, serial=alone) for one in weights),
    ]


def _whole_tiles(elements: Number, ways: Number) -> Number:
    """Elements filled up to whole tiles for every device that reduces them."""
    quantum = ways * TILE[0] * TILE[1]
    return np.where(ways > 1, np.ceil(elements / quantum) * quantum, elements)


# Attention and MLP each gather their input over `tensor` and scatter their output; backward they
# gather the output's gradient and scatter the input's. The gathered input is not kept: gradients
# of the weights need it gathered again.
_INPUT_GATHERS, _OUTPUT_GATHERS = 2, 1
_INPUT_SCATTERS, _OUTPUT_SCATTERS = 1, 1
_STREAM_GATHERS = _INPUT_GATHERS + _OUTPUT_GATHERS
_STREAM_SCATTERS = _INPUT_SCATTERS + _OUTPUT_SCATTERS
# Rows go to experts and come back; backward they go again, and the gradients of both ways.
_ROW_EXCHANGES = 5
ENDS = 2  # the embedding and the unembedding
_WEIGHT_GATHERS = 2  # forward and backward; recompute shares the backward's
_KV_GATHERS = 2  # forward, and again for the backward pass


def exchanges(layout: Training) -> list[Exchange]:
    """Everything that counts in a step's time; over a single device nothing moves."""
    return [
        *_stream_exchanges(layout),
        *_weight_exchanges(layout),
        *_expert_exchanges(layout),
        *_key_value_exchanges(layout),
        *_gradient_exchanges(layout),
        *_moment_exchanges(layout),
    ]


def _stream_exchanges(layout: Training) -> list[Exchange]:
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
            (_Part(stream, streams),), layout.activation_type,
        )  # fmt: skip

    scatters = _OUTPUT_SCATTERS * sublayers + repeated
    return [
        exchange("activation_gather", "residual gather", _GATHER, _INPUT_GATHERS,
                 _OUTPUT_GATHERS * sublayers, layout.over_layers(kept)),
        exchange("activation_scatter", "residual scatter", _SCATTER, _INPUT_SCATTERS, scatters),
    ]  # fmt: skip


def _weight_exchanges(layout: Training) -> list[Exchange]:
    """Matrices gathered in each microbatch, and their gradients scattered.

    The weights of parallel matmuls are gathered as one. A tied table is gathered for each of its
    uses, in another order of its dimensions, and each of them has a gradient. A device first gets
    its own part from the other slices that share it, then the other parts over fsdp x sequence
    inside its slice. Where each chunk of the loss sums the gradient of its table, that is scattered
    as often. Nothing hides the first gathers, of the embedding and of the first matmuls,
    nor the scatters of their gradients, which come last.
    """
    types, passes = layout.precision, layout.microbatches
    blocks, experts = (_block_weights(layout, of_experts=one) for one in (False, True))
    table = _Weights(((layout.table_elements, passes),), passes)
    gather = partial(_weight_exchange, layout, "weight_gather", _GATHER, layout.activation_type)
    scatter = partial(_weight_exchange, layout, "gradient_scatter", _SCATTER, types.gradients)
    of_block, of_table = "layer / tensor", "d_model x vocab / tensor"
    of_experts = "experts / expert / tensor"
    inside, apart, sums = GROUPS["weights"], GROUPS["experts"], 1 + layout.table_sums
    every = [
        exchange
        for axes, suffix in ((inside, ""), (SHARED_OVER_DCN, _OVER_DCN))
        for exchange in (
            gather(axes, f"weight gather{suffix}", of_block, blocks, _WEIGHT_GATHERS, inside),
            gather(axes, f"table gather{suffix}", of_table, table, ENDS, inside),
            scatter(axes, f"gradient scatter{suffix}", of_block, blocks, 1, inside),
            scatter(axes, f"table gradient scatter{suffix}", of_table, table, sums, inside),
        )
    ]
    for axes, suffix in ((apart, ""), (SHARED_OVER_DCN, _OVER_DCN)) if experts.parts else ():
        every += [
            gather(axes, f"expert gather{suffix}", of_experts, experts, _WEIGHT_GATHERS,
                   apart),
            scatter(axes, f"expert scatter{suffix}", of_experts, experts, 1, apart),
        ]  # fmt: skip
    return every


def _expert_exchanges(layout: Training) -> list[Exchange]:
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
                        (_Part(volume, calls * passes),), layout.activation_type)  # fmt: skip

    if moe.capacity_factor is not None:
        volume = tokens * layout.rows_of_token
        return [exchange("expert_exchange", "tokens to experts", ALL_TO_ALL,
                         "tokens x rows x d_model", volume, _ROW_EXCHANGES)]  # fmt: skip
    formula, volume = "tokens x expert x d_model", tokens * ways
    return [
        exchange("expert_gather", "token gather", _GATHER, formula, volume, _STREAM_GATHERS),
        exchange("expert_scatter", "token scatter", _SCATTER, formula, volume, _STREAM_SCATTERS),
    ]


def _block_weights(layout: Training, *, of_experts: bool) -> "_Weights":
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
    return _Weights(tuple(one[:2] for one in parts), layers * passes)


@dataclass(frozen=True)
class _Weights:
    """What travels as one: its elements, and how often a step passes it. `passes` are those of
    whole blocks, whose parts travel in parallel.
    """

    parts: tuple[tuple[Number, Number], ...]
    passes: Number


def _weight_exchange(
    layout: Layout,
    line: LineKind,
    kind: CollectiveKind,
    dtype: DType,
    axes: tuple[str, ...],
    name: str,
    formula: str,
    weights: _Weights,
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
        _Part(elements * size, times * often, serial=int(i == 0))
        for i, (elements, often) in enumerate(weights.parts)
    )
    calls = times * weights.passes
    return Exchange(line, name, kind, axes, formula, ways, calls, parts, dtype)


def _key_value_exchanges(layout: Training) -> list[Exchange]:
    """Keys and values of whole sequences, gathered forward and backward; their gradients back."""
    ways, compute = layout.ways("length"), layout.activation_type
    parts = [
        _Part(
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
        exchange("kv_gather", "kv gather", _GATHER, _KV_GATHERS),
        exchange("kv_scatter", "kv scatter", _SCATTER, 1),
    ]


def _moment_exchanges(layout: Training) -> list[Exchange]:
    """Moments of Muon: matrices go to devices that have them whole, and come back orthogonal."""
    if layout.optimizer.name != "muon":
        return []
    volume = _ORTHOGONAL_BYTES * layout.stored_layer_elements
    part = (_Part(volume, 2, serial=2),)
    return [
        Exchange("moment_exchange", f"moments{suffix}", ALL_TO_ALL, axes, "owned matrices",
                 layout.devices_along(axes), 2, part, "bf16")
        for suffix, axes in (("", GROUPS["replicas"]), (_OVER_DCN, SHARED_OVER_DCN))
    ]  # fmt: skip
