"""The work of a step by kind, at the rates that links and chips reach: the ledger of `time` plus
the operations between matmuls, with collectives sorted by what can hide them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from orchestrator.catalog.chips import Chip
from orchestrator.catalog.published import shared_efficiency
from orchestrator.network import description
from orchestrator.network.mesh_axes import (
    DCN_AXES,
    DCN_GROUPS,
    EXPERT_EXCHANGES,
    GROUPS,
    SHARED_OVER_DCN,
)
from orchestrator.planning import flops
from orchestrator.planning.layout import Layout, Number, Training, whole
from orchestrator.planning.memory import activation_bytes
from orchestrator.planning.time import activation_peak, device_peak, host_lines
from orchestrator.values.codec import Value
from orchestrator.values.plan import ATTENTION_LINES, LedgerLine, LineKind


def host_bytes(layout: Training) -> Number:
    """Memory of the host for one chip: the offloaded activations of a microbatch."""
    return layout.chip.devices * activation_bytes(layout, "offload")


def host_limit_bytes(chip: Chip) -> float:
    return np.inf if chip.host_bytes is None else chip.host_bytes.value


@dataclass(frozen=True)
class Transfers:
    """Seconds of a step's transfers one way, and of each pass's matmuls and attention at peak."""

    one_way_s: Number
    forward_s: tuple[Number, Number]
    backward_s: tuple[Number, Number]

    def hidden_s(
        self, matmul: float = 1.0, attention: float = 1.0, between_s: Number = 0.0
    ) -> Number:
        """Transfer seconds, both ways, that computation at these shares of its peak hides."""
        forward, backward = (
            np.minimum(self.one_way_s, matmul_s / matmul + attention_s / attention + between_s)
            for matmul_s, attention_s in (self.forward_s, self.backward_s)
        )
        return forward + backward

    def exposed_s(
        self, matmul: float = 1.0, attention: float = 1.0, between_s: Number = 0.0
    ) -> Number:
        return 2 * self.one_way_s - self.hidden_s(matmul, attention, between_s)


def transfers(layout: Training) -> Transfers:
    both_ways_s = sum(line.value for line in host_lines(layout))
    blocks, peak = flops.blocks_forward_flops(layout), device_peak(layout)
    backward = flops.BACKWARD_OVER_FORWARD * blocks + flops.blocks_recompute_flops(layout)
    attention = flops.attention_backward_flops(layout) + flops.attention_recompute_flops(layout)
    of_attention = activation_peak(layout)
    return Transfers(
        one_way_s=both_ways_s / 2,
        forward_s=(blocks / peak, flops.attention_forward_flops(layout) / of_attention),
        backward_s=(backward / peak, attention / of_attention),
    )


_ALONE = frozenset({"mxu", "hbm", "host"})  # what a device keeps busy without its links
# Matmuls wait for these: the compiler can only send piece by piece what is multiplied piece by
# piece. Keys and values of other devices are needed whole, and so are tokens of experts and what
# comes from the stage before.
_TENSOR: tuple[LineKind, ...] = ("activation_gather", "activation_scatter")
_WHOLE: tuple[LineKind, ...] = ("kv_gather", "kv_scatter", "stage_exchange", *EXPERT_EXCHANGES)
# Measured all-gathers reach 95 % of 45 GB/s a link and direction, which datasheets call 50.
ICI_RATE, _ICI_RATE_SOURCE = 0.95 * 45 / 50, "scaling-book-sharding"
_LANES = 128  # attention kernels pad a head to whole lanes: 64 costs as much as 128
FORWARD_AND_BACKWARD = 3  # passes over activations; one more where the policy repeats
# Elements read and written in one pass: by a norm, by an addition to the stream, and by turning
# queries and keys. The MLP's activation reads its inputs and writes one result.
_NORM_TOUCHES, _ADDITION_TOUCHES, _ROTATION_TOUCHES = 2, 3, 2
# A row of an expert is read and written on its way there and on its way back, and read for the sum.
_ROUTED_TOUCHES = 5
# A step moves each row of an expert to its expert and back, forward and backward; and once more to
# its expert where the policy repeats the MLP's first products.
_ROW_MOVES = 4
# A quantized operand of a product: read for its largest number, read again, written in one byte.
_QUANTIZED_BYTES = 2 + 2 + 1
# fp32 logits: written; read for the largest and for the sum; read and written as their gradient;
# read for both matmuls of the backward pass.
_LOGITS_TOUCHES, _LOGITS_BYTES = 7, 4


class StepWork(Value):
    """Seconds of a step by kind, and how often gradients are reduced between how many slices.
    Attention and HBM are at peak rates, matmuls too but for what small products lose, links at the
    rate that they reach. `gathers_s` and `dcn_s` can run behind neighbouring layers; matmuls wait
    for `tensor_s`, except pieces of a ring; nothing overlaps `serial_s`. `reductions_by_layer`
    assumes no accumulation. `row_moves` counts rows of experts that a device moves one by one.
    `bubble` is the share by which stages of a pipeline wait.
    """

    matmul_s: Number
    attention_s: Number
    hbm_s: Number
    passes_s: Number
    row_moves: Number
    host: Transfers
    gathers_s: Number
    dcn_s: Number
    tensor_s: Number
    serial_s: Number
    reductions: Number
    reductions_by_layer: Number
    slices: Number
    bubble: Number = 0

    @property
    def hops(self) -> Number:
        return self.reductions * (self.slices - 1)


def step_work(layout: Training, lines: list[LedgerLine]) -> StepWork:
    """The lines of a ledger by kind, with the passes that it leaves out."""
    # How often slices wait for each other: once a layer, or once a step where gradients accumulate.
    # Slices that share weights wait in each layer of each microbatch.
    layers = layout.network.layers * layout.stage_share
    by_layer = (layout.devices_along(SHARED_OVER_DCN) > 1) | (layout.microbatches == 1)
    each = np.where(by_layer, layers * layout.weight_passes, 1)
    lines = [line for line in lines if line.kind != "pipeline_bubble"]
    attention_s = _total(line.value for line in lines if line.kind in ATTENTION_LINES)
    links = [line for line in lines if line.resource not in _ALONE]
    hidden = [line for line in links if line.kind not in (*_TENSOR, *_WHOLE)]
    # The share of the attention kernel's products that is not padding of heads to whole lanes.
    widths = [
        weight.dimensions[-1].size
        for block in layout.network.blocks[:1]
        for weight in (block.attention.queries, block.attention.result)
    ]
    return StepWork(
        matmul_s=(_total(line.value for line in lines if line.resource == "mxu") - attention_s)
        / _small_product_share(layout),
        attention_s=attention_s / float(sum(widths) / sum(whole(w, _LANES) for w in widths)),
        hbm_s=_total(line.value for line in lines if line.resource == "hbm"),
        passes_s=pass_bytes(layout) / hbm_rate(layout),
        row_moves=row_moves(layout),
        host=transfers(layout),
        gathers_s=_total(_hidden_s(line) for line in hidden if not _between_slices(line)),
        dcn_s=_total(_hidden_s(line) for line in hidden if _between_slices(line)),
        tensor_s=_total(_reached_s(line, line.value) for line in links if line.kind in _TENSOR),
        serial_s=_total(
            _reached_s(line, line.value if line.kind in _WHOLE else line.serial_s) for line in links
        ),
        reductions=each * crosses(layout),
        reductions_by_layer=layers * crosses(layout),
        slices=layout.devices_along(DCN_AXES),
        bubble=layout.bubble,
    )


def _small_product_share(layout: Training) -> Number:
    """The share of a large product's rate that this layout's matmuls reach, as their rows are few:
    over a ring a hop multiplies what came from both sides. The gradient of a weight, one product in
    three, is of whole arrays.
    """
    known, ring = layout.chip.products, layout.devices_along(GROUPS["tensor"])
    if known is None:
        return 1.0
    rows = layout.step_tokens / layout.microbatches / ring * np.where(ring > 2, 2, 1)
    share = np.interp(np.log2(rows), np.log2(known.rows), known.shares)
    return 3 / (2 / share + 1)


def never_hidden_s(layout: Training, lines: list[LedgerLine]) -> Number:
    """Seconds that the mean of the lower and the unoverlapped time leaves out: the passes between
    matmuls, the moves of rows, and the other half of exchanges that nothing hides.
    """
    whole_s = _total(line.value - line.serial_s for line in lines if line.kind in _WHOLE)
    return between_s(layout) * (1 + layout.bubble) + whole_s / 2


def between_s(layout: Training) -> Number:
    moves_s = row_moves(layout) * shared_efficiency("row_move_s").value
    return pass_bytes(layout) / hbm_rate(layout) + moves_s


def _total(seconds: Iterable[Number]) -> Number:
    return sum(seconds, start=0.0)


def _between_slices(line: LedgerLine) -> bool:
    return line.resource in DCN_GROUPS


def _reached_s(line: LedgerLine, seconds: Number) -> Number:
    """Seconds at the rate that a link reaches; nobody has published one for the slower network."""
    at_rate = _between_slices(line) or line.kind == "latency"
    return seconds if at_rate else seconds / ICI_RATE


def _hidden_s(line: LedgerLine) -> Number:
    return _reached_s(line, line.value - line.serial_s)


def hbm_rate(layout: Layout) -> float:
    return layout.chip.hbm_bytes_per_s.value / layout.chip.devices


def pass_bytes(layout: Training) -> Number:
    """HBM traffic of operations between the matmuls, as if none were fused with another."""
    touched = layout.over_layers(partial(_touched_elements, layout))
    activations = layout.step_tokens * layout.compute_bytes * touched
    return activations + logits_bytes(layout) + quantization_bytes(layout)


def logits_bytes(layout: Training) -> Number:
    vocabulary = layout.size(layout.network.head.dimensions[0])
    return layout.step_tokens * _LOGITS_TOUCHES * _LOGITS_BYTES * vocabulary


def quantization_bytes(layout: Training) -> Number:
    """HBM traffic of quantizing operands of blocks' products: inputs forward and when recomputed,
    gradients once, gathered weights in both passes of each microbatch.
    """
    if layout.precision.compute == layout.activation_type:
        return 0.0

    def elements(block: description.Block) -> Number:
        """Elements of a token: inputs, gradients of results, and the inputs that are made again."""
        total: Number = 0.0
        for part in block.sublayers:
            between = (
                part.result if isinstance(part, description.Attention) else part.inputs[-1].output
            )
            rows = layout.buffer_of_token if isinstance(part, description.Mixture) else 1
            streams, made = rows * layout.model.d_model, layout.elements(between)
            results = sum(layout.elements(matmul.output) for matmul in part.inputs)
            again = layout.remat.share(part.inputs[-1].output.name, "recompute")
            total = total + (1 + again) * streams + made + results + streams
        return total

    weights = 2 * layout.weight_passes * layout.layer_elements
    return _QUANTIZED_BYTES * (layout.step_tokens * layout.over_layers(elements) + weights)


def row_moves(layout: Training) -> Number:
    """Rows of experts that a device moves in a step: a transfer each, however short the row is."""
    moe = layout.model.moe
    if moe is None:
        return 0.0

    def moves(block: description.Block) -> Number:
        if not isinstance(block.mlp, description.Mixture):
            return 0.0
        repeated = layout.remat.share(block.mlp.inputs[-1].output.name, "recompute")
        return _ROW_MOVES + repeated

    return layout.step_tokens * moe.top_k * layout.over_layers(moves)


def _touched_elements(layout: Training, block: description.Block) -> Number:
    """Elements of a token that a block's operations between its matmuls read and write."""
    attention, mlp = block.attention, block.mlp
    query, key = (matmul.output for matmul in attention.inputs[:2])
    around = sum(1 for part in block.sublayers for norm in (part.before, part.after) if norm)
    touches = _NORM_TOUCHES * around + _ADDITION_TOUCHES * len(block.sublayers)
    stream = touches * layout.model.d_model / layout.devices_along(GROUPS["tensor"])
    up = mlp.inputs[-1].output
    hidden = _hidden_elements(layout, mlp)
    if isinstance(mlp, description.Mixture):
        hidden += _ROUTED_TOUCHES * layout.buffer_of_token * layout.model.d_model
        hidden += _hidden_elements(layout, mlp.shared) if mlp.shared else 0
    if isinstance(attention, description.LatentAttention):
        stream += _NORM_TOUCHES * attention.latent_width / layout.devices_along(GROUPS["tensor"])
    heads = layout.size(query.dimensions[0]) + layout.size(key.dimensions[0])
    turned = _ROTATION_TOUCHES * (attention.rotary is not None)
    inside = _NORM_TOUCHES * (attention.query_norm is not None)
    rotated = (turned + inside) * query.dimensions[-1].size * heads
    if attention.value_norm is not None:
        rotated += _NORM_TOUCHES * layout.elements(attention.whole[-1])
    return sum(
        (FORWARD_AND_BACKWARD + layout.remat.share(repeated.name, "recompute")) * elements
        for elements, repeated in (
            (stream, attention.output.output),
            (hidden, up),
            (rotated, query),
        )
    )


def _hidden_elements(layout: Layout, mlp: description.MLP) -> Number:
    """What the activation function of an MLP reads and writes."""
    return (len(mlp.inputs) + 1) * layout.elements(mlp.inputs[-1].output)


def crosses(layout: Training) -> Number:
    return layout.devices_along(DCN_AXES) > 1
