"""FLOPs of the model, which MFU counts, and those that a device executes, with recomputation."""

from math import prod
from typing import NamedTuple

import numpy as np

from orchestrator.network.attention import RESULT
from orchestrator.network.decoder import decoder
from orchestrator.network.description import Attention, Block, Mixture
from orchestrator.network.mesh_axes import GATHERED_AXES, PARAMETER_AXES
from orchestrator.network.mlp import EXPERTS
from orchestrator.planning import kernels
from orchestrator.planning.layout import Layout, Number, Training, is_of_experts
from orchestrator.values.model import Model
from orchestrator.values.plan import PlannedBatch

MFU_DEFINITION = (
    "forward + backward matmul FLOPs with the unembedding + causal attention, no recompute,"
    " over peak FLOP/s in the compute type"
)
BACKWARD_OVER_FORWARD = 2  # a matmul's backward is two matmuls: of the input, of the weight


class _Products(NamedTuple):
    """Matmuls of an attention kernel: along the width of queries, and along that of values."""

    queries: Number
    values: Number


# The splash kernel's forward makes scores and values. Its backward makes the scores (queries) and
# their gradients (values) again; then come the gradients of queries and keys, and those of values.
# Where one kernel makes those of queries and another the others, both make the scores.
_FORWARD, AT_ONCE = _Products(1, 1), _Products(3, 2)
OF_QUERIES, OF_KEYS_AND_VALUES = _Products(2, 1), _Products(2, 2)
# Muon makes a matrix orthogonal by five steps of Newton and Schulz (kellerjordan.github.io/posts/
# muon), each of three products: X X', its square, and that times X.
_MUON_STEPS, _LARGE_PRODUCTS, _SQUARE_PRODUCTS = 5, 2, 1


# --- of the model


def parameters(model: Model) -> int:
    return decoder(model).parameters


def active_parameters(model: Model) -> int:
    return decoder(model).active_parameters


def attention_flops_per_token(model: Model, length: int) -> float:
    """Causal scores and values of the forward pass, mean over the sequence: 2 S N H per layer, half
    of the full 4 S N H; less with a window. Backward takes twice as much.
    """
    return sum(
        layers
        * 2.0
        * _seen_positions(length, block.attention.scores.window)
        * (block.attention.queries.width + block.attention.result.width)
        for block, layers in decoder(model).kinds
    )


def _seen_positions(length: int, window: int | None) -> float:
    """Positions that a query sees, mean over the sequence: half of them, or those in the window."""
    if window is None or window >= length:
        return length / 2
    return window - window * window / (2 * length)


def model_flops_per_token(model: Model, length: int) -> float:
    """FLOPs of a token that MFU counts: 6 x matmul parameters + 3 x causal attention."""
    matmuls = decoder(model).matmul_parameters
    return 6.0 * matmuls + 3.0 * attention_flops_per_token(model, length)


def model_flops_per_step(model: Model, batch: PlannedBatch) -> float:
    return batch.tokens * model_flops_per_token(model, batch.length)


def simple_flops_per_token(model: Model) -> float:
    """The rule of thumb 6 P: every parameter that a token uses counts, attention does not."""
    return 6.0 * active_parameters(model)


def mfu(flops_per_step: float, step_s: float, devices: int, peak_flops_per_s: float) -> float:
    """Model FLOPs utilization: FLOPs of a step over what the devices could do in its time."""
    return flops_per_step / (step_s * devices * peak_flops_per_s)


# --- executed by one device in a step


def matmul_flops(layout: Layout, elements: Number) -> Number:
    return 2 * layout.step_tokens * elements


def blocks_forward_flops(layout: Layout) -> Number:
    """Matmuls of all blocks, attention scores apart."""
    return matmul_flops(layout, layout.multiplied_layer_elements)


def expert_padding_flops(layout: Training) -> Number:
    """FLOPs of rows that experts multiply and that no choice fills, forward and backward. With a
    capacity these are its empty rows. Otherwise a tile that two experts share is computed for both;
    it has the matrix unit's rows, or our kernel's in gradients of weights.
    """
    moe = layout.model.moe
    if moe is None:
        return 0.0
    if moe.capacity_factor is not None:
        return (1 + BACKWARD_OVER_FORWARD) * surplus_rows(layout) * experts_forward_flops(layout)
    routed = layout.over_layers(layout.routed_elements)
    experts = moe.experts / layout.ways("experts")
    unit = layout.chip.matrix_unit
    ragged = unit.value if unit else 1
    rows = 2 * ragged + kernels.grouped_tile(layout.tokens * layout.buffer_of_token, experts)
    return 2 * layout.microbatches * rows * (experts - 1) / experts * routed


def expert_imbalance_flops(layout: Layout) -> Number:
    """What the busiest devices of `expert`, for which all wait, multiply beyond the mean."""
    moe = layout.model.moe
    if moe is None or moe.capacity_factor is not None:
        return 0.0
    return (1 + BACKWARD_OVER_FORWARD) * surplus_rows(layout) * experts_forward_flops(layout)


def surplus_rows(layout: Layout) -> Number:
    """Rows that a device waits for or multiplies in vain, over the choices of its tokens."""
    moe = layout.model.moe
    if moe is None:
        return 0.0
    if moe.capacity_factor is not None:
        return max(layout.rows_of_choice - 1, 0.0)
    return (moe.imbalance - 1) * (layout.ways("experts") > 1)


def experts_forward_flops(layout: Layout) -> Number:

    def routed(block: Block) -> Number:
        of_experts = (matmul for matmul in block.matmuls if is_of_experts(matmul))
        return sum(layout.multiplied_elements(matmul) for matmul in of_experts)

    return matmul_flops(layout, layout.over_layers(routed))


def blocks_recompute_flops(layout: Training) -> Number:
    """Matmuls that the backward pass repeats; those of experts with empty and awaited rows."""
    surplus = surplus_rows(layout)

    def elements(block: Block) -> Number:
        total: Number = 0
        for part in block.sublayers:
            for parallel in part.parallel:
                if parallel == (part.output,) and part.after:
                    repeated = layout.repeats_output(part) * layout.multiplied_elements(part.output)
                else:
                    in_ring = not isinstance(part, Mixture)
                    repeated = layout.repeated_elements(parallel, in_ring=in_ring)
                total = total + (1 + surplus * is_of_experts(parallel[0])) * repeated
        return total

    return matmul_flops(layout, layout.over_layers(elements))


def attention_forward_flops(layout: Layout) -> Number:
    """Scores and values of all layers, by whole blocks."""

    def of_block(block: Block) -> Number:
        positions = forward_positions(layout, block.attention)
        return _attention_flops(layout, block.attention, positions, _FORWARD)

    return layout.over_layers(of_block)


def attention_backward_flops(layout: Layout) -> Number:
    """Their gradients: 5/2 or 7/2 forward where all heads have one width."""

    def of_block(block: Block) -> Number:
        attention, size = block.attention, _block_of(layout, block.attention)
        if layout.chip.switched:
            return _attention_flops(
                layout, attention, forward_positions(layout, attention), AT_ONCE
            )
        sums = partial_sums_of(layout, attention)

        def kernel(keys: Number, products: _Products) -> Number:
            positions = _computed_positions(layout, attention, size, keys)
            return _attention_flops(layout, attention, positions, products)

        apart = kernel(kernels.query_keys(size), OF_QUERIES) + kernel(size, OF_KEYS_AND_VALUES)
        at_once = kernel(layout.length / np.maximum(sums, 1), AT_ONCE)
        return np.where(sums > 0, at_once, apart)

    return layout.over_layers(of_block)


def _attention_flops(
    layout: Layout, attention: Attention, positions: Number, products: _Products
) -> Number:
    """A kernel's products of one layer: each 2 x tokens x positions per number of a head. The
    zigzag over `sequence` gives every device the mean.
    """
    queries, values = map(layout.elements, (attention.queries, attention.result))
    width = products.queries * queries + products.values * values
    return 2 * layout.step_tokens * positions * width


def forward_positions(layout: Layout, attention: Attention) -> Number:
    """Positions that the forward kernel computes for a query, mean over the sequence."""
    if layout.chip.switched:
        # Those that cuDNN's mask lets a query see; all, where the trainer has to do without cuDNN.
        seen = _seen_positions(layout.length, attention.scores.window)
        return np.where(lacks_gpu_kernel(layout, attention), layout.length, seen)
    size = _block_of(layout, attention)
    return _computed_positions(layout, attention, size, size)


def lacks_gpu_kernel(layout: Layout, attention: Attention) -> Number:
    """Whether cuDNN has no kernel for it; the trainer then makes scores by blocks, on GPUs."""
    widths = {tensor.dimensions[-1].size for tensor in (attention.queries, attention.result)}
    is_plain = layout.activation_type == "bf16" and len(widths) == 1
    is_plain &= attention.scores.cap is None and attention.sinks is None
    return (layout.ways("length") > 1) | (not is_plain)


def _computed_positions(
    layout: Layout, attention: Attention, queries: Number, keys: Number
) -> Number:
    """Positions that a kernel computes, by blocks of queries and keys of which one divides the
    other: whole blocks of keys, also where none sees them, 1 + b/S of the causal half.
    """
    length, window = layout.length, attention.scores.window
    if window is None:
        return (length + np.maximum(queries, keys)) / 2
    blocks = length / queries
    before = np.minimum(np.ceil((window - 1) / keys) * keys, length)  # the first of the block
    growing = np.minimum(before // queries + 1, blocks)  # blocks of queries that see all before
    all_before = queries * growing * (growing - 1) / 2 + (blocks - growing) * before
    return queries + all_before / blocks


def _block_of(layout: Layout, attention: Attention) -> Number:
    """Positions that the kernels take at a time, or would where they cannot take the sequence."""
    window, head = attention.scores.window, head_of(attention, layout.compute_bytes)
    size = kernels.attention_block(layout.length, layout.ways("length"), window, head)
    return np.where(size > 0, size, min(kernels.LANES, layout.length))


def partial_sums_of(layout: Layout, attention: Attention) -> Number:
    """Gradients of each query that one backward kernel writes, or 0 where there are two kernels.
    cuDNN's writes one.
    """
    if layout.chip.switched:
        return 0
    window, head = attention.scores.window, head_of(attention, layout.compute_bytes)
    return kernels.partial_sums(layout.length, _block_of(layout, attention), window, head)


def head_of(attention: Attention, compute_bytes: int) -> int:
    heads = attention.queries, attention.result
    return kernels.head_bytes((weight.dimensions[-1].size for weight in heads), compute_bytes)


def attention_recompute_flops(layout: Training) -> Number:
    return attention_forward_flops(layout) * layout.remat.share(RESULT, "recompute")


def forward_flops(layout: Training) -> Number:
    passes = 1 + BACKWARD_OVER_FORWARD
    of_experts = expert_padding_flops(layout) + expert_imbalance_flops(layout)
    return (
        blocks_forward_flops(layout)
        + attention_forward_flops(layout)
        + unembedding_forward_flops(layout)
        + padding_forward_flops(layout)
        + of_experts / passes
    )


def unembedding_forward_flops(layout: Layout) -> Number:
    return matmul_flops(layout, layout.table_elements - layout.table_padding_elements)


def padding_forward_flops(layout: Layout) -> Number:
    return matmul_flops(layout, layout.table_padding_elements)


def orthogonalization_flops(layout: Training) -> Number:
    """FLOPs of one device by which Muon makes matrices orthogonal: each is whole on one of the
    devices that share a copy, and multiplied along its shorter side.
    """
    if layout.optimizer.name != "muon":
        return 0.0
    devices, total = layout.devices_along(PARAMETER_AXES), 0
    for block, layers in layout.network.kinds:
        for weight in (matmul.weight for matmul in block.matmuls):
            experts = prod(d.size for d in weight.dimensions if d.axis == EXPERTS)
            rows = prod(d.size for d in weight.dimensions if d.axis in GATHERED_AXES)
            short, long = sorted((rows, weight.elements // rows // experts))
            products = _LARGE_PRODUCTS * short**2 * long + _SQUARE_PRODUCTS * short**3
            total = total + np.ceil(layers * experts / devices) * (2.0 * _MUON_STEPS * products)
    return total
