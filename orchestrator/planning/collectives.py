"""Every collective of a step; the ledger of seconds has a line for each exchange."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.network.description import Block, LatentAttention, Mixture, Stack, Weight
from orchestrator.network.mesh_axes import (
    COPIED,
    DCN_GROUPS,
    GATHERED,
    GATHERED_AXES,
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
from orchestrator.planning.layout import DTYPE_BYTES, Number, Training, is_of_experts
from orchestrator.planning.memory import stream_bytes
from orchestrator.values.codec import DType
from orchestrator.values.plan import Collective, CollectiveKind, LineKind, sent_bytes

_GATHER: CollectiveKind = "all-gather"
_SCATTER: CollectiveKind = "reduce-scatter"
_REDUCE: CollectiveKind = "all-reduce"
_PERMUTE: CollectiveKind = "collective-permute"
ALL_TO_ALL: CollectiveKind = "all-to-all"
_OVER_DCN = " over dcn"
_Passed = list[tuple[Number, Number]]  # elements that travel as one, and how often a step does it
_ORTHOGONAL_BYTES = 2  # matrices that Muon makes orthogonal are in bf16


@dataclass(frozen=True)
class _Part:
    """`calls` collectives per step, of `bytes` in all. `serial` of the calls come before the first
    layer or after the last backward pass, where no matmul hides them.
    """

    bytes: Number
    calls: Number
    serial: Number = 0


@dataclass(frozen=True)
class Exchange:
    """What a step exchanges over some mesh axes; `formula` names the payload. Parts that are sent
    in parallel count as one of the `calls`, which pay the links' latency.
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
        groups = (GROUPS | DCN_GROUPS).items()
        return next(name for name, axes in groups if axes == self.axes)

    @property
    def moved_bytes(self) -> Number:
        """Logical payload of a device in a step."""
        return self._moved(sum(part.calls * part.bytes for part in self.parts))

    @property
    def serial_bytes(self) -> Number:
        return self._moved(sum(p.serial * p.bytes for p in self.parts if np.any(p.serial)))

    def _moved(self, volume: Number) -> Number:
        return sent_bytes(self.kind, volume, self.ways) * (self.ways > 1)

    def collective(self, mesh: Mapping[str, Number]) -> Collective:
        return Collective(
            kind=self.kind,
            axes=in_use(self.axes, mesh),
            link=link_of(self.axes),
            dtype=self.dtype,
            bytes_per_step=float(self.moved_bytes),
            calls_per_step=float(self.calls),
        )


# --- gradients, over all devices that hold a parameter


def _gradient_exchanges(layout: Training) -> list[Exchange]:
    """Gradients over all devices that hold the parameter: inside a slice, over the slices that
    share weights, then over replicas (scatter over `data`, reduce over `pods`, gather).
    """
    # Projections whose kv heads are copied to several devices. Then what every device of a `tensor`
    # group holds: matrices of routers, and those that make latents.
    copied, unsplit = [], []
    size = layout.gradient_bytes / layout.ways(GATHERED)
    for stack in layout.network.stacks:
        layers, times = _reduced_at_a_time(layout, stack)
        for weight in (matmul.weight for matmul in stack.block.matmuls):
            part = _Part(layers * size * layout.elements(weight), times, serial=1)
            if _has_axis(weight, COPIED):
                copied.append(part)
            elif not _is_split_over_tensor(weight):
                unsplit.append(part)
    tensor, data, payload = GROUPS["tensor"], GROUPS["data"], "owned gradient"
    buckets, ways = _gradient_buckets(layout), layout.devices_along(data)
    shares = [replace(part, bytes=part.bytes / ways) for part in buckets]
    routers = _reduction(layout, "router gradients", tensor, "routers, latents", unsplit)
    return [
        _reduction(layout, "kv weight copies", tensor, "wk, wv", copied, ways=layout.copies),
        *([routers] if unsplit else []),
        *_vector_reductions(layout),
        _reduction(layout, "data scatter", data, payload, buckets, kind=_SCATTER),
        _reduction(layout, "data gather", data, payload, buckets, kind=_GATHER),
        _reduction(layout, "pods", (SLICE_REPLICAS,), f"{payload} / data", shares),
    ]


def _reduction(
    layout: Training, name: str, axes: tuple[str, ...], formula: str, parts: Iterable[_Part], *,
    kind: CollectiveKind = _REDUCE, ways: Number | None = None,
) -> Exchange:  # fmt: skip
    ways, dtype = layout.devices_along(axes) if ways is None else ways, layout.precision.gradients
    return Exchange("gradient_reduction", name, kind, axes, formula, ways, 1, tuple(parts), dtype)


def _vector_reductions(layout: Training) -> Iterator[Exchange]:
    """Gradients of norms and biases, which every device has whole but for what `tensor` splits."""
    parts: dict[str, list[_Part]] = {}
    for stack in layout.network.stacks:
        layers, times = _reduced_at_a_time(layout, stack)
        for vector in stack.block.vectors:
            size = layers * layout.elements(vector) * layout.gradient_bytes
            parts.setdefault(_vector_kind(vector), []).append(_Part(size, times, serial=1))
    for vector in layout.network.norm.weights:
        size = layout.elements(vector) * layout.gradient_bytes
        part = _Part(size, 1, serial=1 - per_layer(layout))
        parts.setdefault(_vector_kind(vector), []).append(part)
    # Where kv heads are copied, their biases are reduced over the copies too. Biases of experts lie
    # where their experts do, in each device of a `tensor` group or only in one.
    inside = GROUPS["weights"]
    for kind, axes, ways in (
        ("norm", GROUPS["replicas"], None),
        ("bias", inside, None),
        ("kv bias", inside, layout.devices_along(inside) * layout.copies),
        ("expert bias", GROUPS["experts"], None),
        ("expert output bias", GROUPS["expert_replicas"], None),
    ):
        if kind in parts:
            name, formula = f"{kind} gradients", "norms" if kind == "norm" else "biases"
            yield _reduction(layout, name, axes, formula, parts[kind], ways=ways)
            over_dcn = f"{name}{_OVER_DCN}"
            between = DCN_GROUPS["experts_dcn"] if "expert" in kind else SHARED_OVER_DCN
            yield _reduction(layout, over_dcn, between, formula, parts[kind])


def _vector_kind(vector: Weight) -> str:
    if not any(LOGICAL_AXES[dimension.axis] for dimension in vector.dimensions):
        return "norm"
    if _has_axis(vector, EXPERTS):
        return "expert bias" if _is_split_over_tensor(vector) else "expert output bias"
    return "kv bias" if _has_axis(vector, COPIED) else "bias"


def _has_axis(weight: Weight, axis: str) -> bool:
    return any(dimension.axis == axis for dimension in weight.dimensions)


def _is_split_over_tensor(weight: Weight) -> bool:
    tensor = GROUPS["tensor"]
    return any(set(tensor) & {*LOGICAL_AXES[dimension.axis]} for dimension in weight.dimensions)


def _reduced_at_a_time(layout: Training, stack: Stack) -> tuple[Number, Number]:
    """Layers reduced at once, and how often per step: one by one, or all where steps accumulate."""
    layers = len(stack.layers) * layout.stage_share
    stacked = np.where(per_layer(layout), 1, layers)
    return stacked, layers // stacked


def per_layer(layout: Training) -> Number:
    several = layout.devices_along(REPLICA_AXES) > 1
    return (layout.microbatches == 1) & several & (layout.stages == 1)


def _gradient_buckets(layout: Training) -> list[_Part]:
    """Gradients that are reduced over replicas as one, filled up to whole tiles. The weights of a
    layer are one bucket over `data` where each layer is reduced on its own; elsewhere each is one,
    and none waits for another. The first layer and the embedding come after the last backward pass,
    and where gradients accumulate all come there.
    """
    network, data = layout.network, layout.devices_along(GROUPS["data"])
    early = per_layer(layout)
    joined = early & (data > 1)
    single, quantum = 1 - joined, data * TILE[0] * TILE[1]

    def part(elements: Number, calls: Number, serial: Number) -> _Part:
        """Elements filled up to whole tiles for every device that reduces them."""
        filled = np.where(data > 1, np.ceil(elements / quantum) * quantum, elements)
        return _Part(filled * layout.gradient_bytes, calls, serial)

    buckets = []
    for stack in network.stacks:
        layers, times = _reduced_at_a_time(layout, stack)
        sizes: list[Number] = []
        for weight in (matmul.weight for matmul in stack.block.matmuls):
            [axis] = {dimension.axis for dimension in weight.dimensions} & {*GATHERED_AXES}
            sizes.append(layout.elements(weight) / layout.ways(axis))
        sizes += [layout.elements(vector) for vector in stack.block.vectors]
        buckets.append(part(sum(sizes), times * joined, 1 * joined))
        buckets += [part(layers * size, times * single, single) for size in sizes]
    embedding, *ends = [layout.elements(table) / layout.ways(GATHERED) for table in network.tables]
    ends += [layout.elements(vector) for vector in network.norm.weights]
    return [*buckets, part(embedding, 1, 1), *(part(size, 1, 1 - early) for size in ends)]


# --- activations, weights and moments


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


def _joins(layout: Training, axes: tuple[str, ...]) -> bool:
    return bool(np.any(layout.devices_along(axes) > 1))


def exchanges(layout: Training) -> list[Exchange]:
    """Everything that counts in a step's time; over a single device nothing moves."""
    # Keys and values of whole sequences, gathered forward and backward; their gradients back.
    # Between slices only a device's own part travels.
    whole, passes = layout.ways("length"), layout.microbatches * layout.stage_share
    parts = [
        (layout.tensor_elements(tensor) * whole * layout.compute_bytes, layers * passes)
        for block, layers in layout.network.kinds
        for tensor in block.attention.whole
    ]

    def exchange(line: LineKind, name: str, kind: CollectiveKind, times: int) -> Iterator[Exchange]:
        formula, dtype = "tokens x sequence x kv_heads x head_dim", layout.activation_type
        for suffix, axes, share in (
            ("", GROUPS["sequence"], 1),
            (_OVER_DCN, DCN_GROUPS["sequence_dcn"], layout.devices_along(GROUPS["sequence"])),
        ):
            if suffix and not _joins(layout, axes):
                continue
            sent = tuple(_Part(size / share, times * calls) for size, calls in parts)
            ways, calls = layout.devices_along(axes), sum(part.calls for part in sent)
            yield Exchange(line, f"{name}{suffix}", kind, axes, formula, ways, calls, sent, dtype)

    # Moments of Muon: matrices go to devices that have them whole, and come back orthogonal.
    part = (_Part(_ORTHOGONAL_BYTES * layout.stored_layer_elements, 2, serial=2),)
    moments = [
        Exchange("moment_exchange", f"moments{suffix}", ALL_TO_ALL, axes, "owned matrices",
                 layout.devices_along(axes), 2, part, "bf16")
        for suffix, axes in (("", GROUPS["replicas"]), (_OVER_DCN, SHARED_OVER_DCN))
    ]  # fmt: skip
    return [
        *_stream_exchanges(layout),
        *_weight_exchanges(layout),
        *_expert_exchanges(layout),
        *exchange("kv_gather", "kv gather", _GATHER, _KV_GATHERS),
        *exchange("kv_scatter", "kv scatter", _SCATTER, 1),
        *_stage_exchanges(layout),
        *_gradient_exchanges(layout),
        *(moments if layout.optimizer.name == "muon" else []),
    ]


def _stage_exchanges(layout: Training) -> Iterator[Exchange]:
    """The residual stream between stages. In each tick a device sends its part to the next stage,
    and all stages wait for the slowest: for one in another slice, if there is any. The vocabulary
    is split over all stages, whose parts are summed in each slice, then between slices.
    """
    if not np.any(layout.stages > 1):
        return
    own = stream_bytes(layout) / layout.devices_along(GROUPS["tensor"])
    inside, apart = GROUPS["pipeline"], DCN_GROUPS["pipeline_dcn"]
    between = layout.devices_along(apart)
    formula, dtype = "tokens x d_model / tensor", layout.activation_type
    for suffix, axes, ways in (
        ("", inside, np.where(between > 1, 1, layout.devices_along(inside))),
        (_OVER_DCN, apart, between),
    ):
        # A chunk's output goes to the next stage, and the gradient of its input comes back.
        part = _Part(own, 2 * layout.ticks)
        yield Exchange(
            "stage_exchange", f"to next stage{suffix}", _PERMUTE, axes, formula, ways,
            part.calls, (part,), dtype,
        )  # fmt: skip
    for suffix, axes in (("", inside), (_OVER_DCN, apart)):
        # Words come to the first stage from all, and so do the gradients of what the last stage
        # made; what it made goes to all, and so does the gradient of the words. Ticks without such
        # words exchange them too: p of their gradients, and p of them if ticks are all alike.
        alike = 1 + (layout.chunks == 1)
        part = _Part(own, 4 * layout.microbatches + alike * layout.stages)
        yield Exchange(
            "stage_exchange", f"words and losses{suffix}", _REDUCE, axes, formula,
            layout.devices_along(axes), part.calls, (part,), dtype,
        )  # fmt: skip
        # All stages have the last norm.
        last = [
            _Part(layout.elements(vector) * layout.gradient_bytes, 1, serial=1)
            for vector in layout.network.norm.weights
        ]
        yield _reduction(layout, f"last norm gradients{suffix}", axes, "norm", last)


def _stream_exchanges(layout: Training) -> list[Exchange]:
    """The residual stream, or latents in its place, by position over `tensor`, around sublayers."""
    axes, d_model = GROUPS["tensor"], layout.model.d_model

    def not_again(block: Block) -> Number:
        """Inputs that the backward pass does not gather again, over the width of the stream."""
        attention = block.attention
        if not isinstance(attention, LatentAttention):
            return 0
        # Nothing is multiplied by the part of the key that all heads share.
        shared_width = attention.latents[-1].output.width
        return (1 - layout.recomputed(attention.keys)) * shared_width / d_model

    sublayers = layout.over_layers(lambda block: len(block.sublayers))
    repeated = layout.over_layers(lambda block: sum(map(layout.repeats_output, block.sublayers)))
    inputs = layout.over_layers(
        lambda block: sum(part.entering_width for part in block.sublayers) / d_model
    )
    stream = stream_bytes(layout)

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

    # A mixture and the MLP next to it are summed each by itself, before their norms.
    apart = layout.over_layers(
        lambda block: int(isinstance(block.mlp, Mixture) and bool(block.mlp.own_norms))
    )
    results = sublayers + apart
    scatters = _OUTPUT_SCATTERS * results + repeated
    return [
        exchange("activation_gather", "residual gather", _GATHER, _INPUT_GATHERS,
                 _OUTPUT_GATHERS * results, layout.over_layers(not_again)),
        exchange("activation_scatter", "residual scatter", _SCATTER, _INPUT_SCATTERS, scatters),
    ]  # fmt: skip


def _weight_exchanges(layout: Training) -> list[Exchange]:
    """Matrices gathered in each microbatch, and their gradients scattered. The weights of parallel
    matmuls are gathered as one. A tied table is gathered for each use, in another order of its
    dimensions, and has a gradient for each. Slices that share weights exchange first, then fsdp x
    sequence. Where each chunk of the loss sums its table's gradient, that is scattered as often.
    Nothing hides the first gathers and the last scatters.
    """
    network, passes = layout.network, layout.weight_passes
    once, found = layout.gathers_once, list[Exchange]()

    def exchange(
        name: str, formula: str, parts: _Passed, step_passes: Number, times: Number,
        inside: tuple[str, ...], axes: tuple[str, ...],
    ) -> None:  # fmt: skip
        """Parts that travel in parallel, `times` each time that a step passes them. `inside` are
        the axes of a slice that split them.
        """
        gathers = name.endswith("gather")
        dtype = layout.activation_type if gathers else layout.precision.gradients
        parts_elsewhere: Number = 1
        if link_of(axes) == "dcn":
            name, formula = f"{name}{_OVER_DCN}", f"{formula} / fsdp / sequence"
            parts_elsewhere = layout.devices_along(inside)
        size = DTYPE_BYTES[dtype] / parts_elsewhere
        line: LineKind = "weight_gather" if gathers else "gradient_scatter"
        sent = tuple(
            _Part(elements * size, times * often, serial=serial_calls(i, times * often))
            for i, (elements, often) in enumerate(parts)
        )
        ways, kind = layout.devices_along(axes), _GATHER if gathers else _SCATTER
        calls = times * step_passes
        found.append(Exchange(line, name, kind, axes, formula, ways, calls, sent, dtype))

    def serial_calls(place: int, calls: Number) -> Number:
        # Gathered for all passes, the first chunk's come before them; the others may come behind.
        return (
            np.where(once, calls / layout.chunks, int(place == 0))
            if np.any(once)
            else int(place == 0)
        )

    def of_blocks(*, experts: bool) -> _Passed:
        return [
            (layout.total_elements(matmuls), layers * layout.stage_share * passes)
            for block, layers in network.kinds
            for part in block.sublayers
            for matmuls in part.parallel
            if is_of_experts(matmuls[0]) == experts
        ]

    blocks, experts = of_blocks(experts=False), of_blocks(experts=True)
    block_passes = network.layers * layout.stage_share * passes
    expert_passes = network.mixture_layers * layout.stage_share * passes
    gathers: Number = _WEIGHT_GATHERS
    tables: Number = ENDS
    sums: Number = 1 + layout.table_sums
    if np.any(once):
        gathers = np.where(once, 1, gathers)
        tables = np.where(once, 1 + (network.head is not network.embedding), tables)
        sums = np.where(once, tables, sums)
    table = [(layout.table_elements, passes)]
    of_block, of_table = "layer / tensor", "d_model x vocab / tensor"
    inside, apart = GROUPS["weights"], GROUPS["experts"]
    for axes in (inside, SHARED_OVER_DCN):
        exchange("weight gather", of_block, blocks, block_passes, gathers, inside, axes)
        exchange("table gather", of_table, table, passes, tables, inside, axes)
        exchange("gradient scatter", of_block, blocks, block_passes, 1, inside, axes)
        exchange("table gradient scatter", of_table, table, passes, sums, inside, axes)
        if network.positions:
            learned, shown = [(layout.position_elements, passes)], "d_model x positions / tensor"
            exchange("position gather", shown, learned, passes, 1, inside, axes)
            exchange("position gradient scatter", shown, learned, passes, 1, inside, axes)
    for axes in (apart, DCN_GROUPS["experts_dcn"]) if experts else ():
        formula = "experts / expert / tensor"
        exchange("expert gather", formula, experts, expert_passes, gathers, apart, axes)
        exchange("expert scatter", formula, experts, expert_passes, 1, apart, axes)
    return found


def _expert_exchanges(layout: Training) -> list[Exchange]:
    """Tokens over `expert`. With a capacity each row goes to its expert and comes back. Without
    one, every device of the group gets all tokens, and adds up what its own experts make of them.
    """
    moe = layout.model.moe
    if moe is None:
        return []
    passes = layout.network.mixture_layers * layout.stage_share * layout.microbatches
    tokens, between = stream_bytes(layout), layout.devices_along(DCN_GROUPS["expert_dcn"])

    dropless = moe.capacity_factor is None
    formula = "tokens x expert x d_model" if dropless else "tokens x rows x d_model"

    def exchange(line: LineKind, name: str, kind: CollectiveKind, times: int) -> Iterator[Exchange]:
        # Tokens are gathered between slices, then in each. Of the rows that a device sends, those
        # for its own slice stay there.
        calls, dtype = times * passes, layout.activation_type
        for suffix, axes in (("", GROUPS["expert"]), (_OVER_DCN, DCN_GROUPS["expert_dcn"])):
            ways = layout.devices_along(axes)
            if suffix and not _joins(layout, axes):
                continue
            if dropless:
                volume = tokens * (between if suffix else ways * between)
            else:
                volume = tokens * layout.rows_of_token / (1 if suffix else between)
            parts = (_Part(volume, calls),)
            yield Exchange(line, f"{name}{suffix}", kind, axes, formula, ways, calls, parts, dtype)

    if not dropless:
        return [*exchange("expert_exchange", "tokens to experts", ALL_TO_ALL, _ROW_EXCHANGES)]
    return [
        *exchange("expert_gather", "token gather", _GATHER, _STREAM_GATHERS),
        *exchange("expert_scatter", "token scatter", _SCATTER, _STREAM_SCATTERS),
    ]
