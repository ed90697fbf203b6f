"""One way to lay a step out on the devices, or many: formulas take numbers or numpy arrays."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import permutations
from math import prod
from typing import Any

import numpy as np

from orchestrator.catalog.chips import Chip
from orchestrator.network import description
from orchestrator.network.decoder import decoder
from orchestrator.network.mesh_axes import (
    COPIED,
    GATHERED,
    GATHERED_AXES,
    GATHERED_OF_EXPERTS,
    GROUPS,
    HEADS,
    LOGICAL_AXES,
    PADDED,
    SHARED_OVER_DCN,
    padded,
    ways,
)
from orchestrator.network.mlp import CHOICES, EXPERTS, rows_of_token
from orchestrator.network.rematerialization import Treatments
from orchestrator.planning.kernels import loss_chunk_tokens, loss_chunks
from orchestrator.planning.torus import Links
from orchestrator.values.codec import DType, Value
from orchestrator.values.model import Model
from orchestrator.values.spec import Optimizer, Precision

Number = Any  # a plain number, or a numpy array of them

# What arrays take in memory. A TPU stores an array in tiles of its two minor dimensions.
_TPU_TILE = (8, 128)  # sublanes and lanes; openxla.org/xla/tiled_layout
_NO_TILE = (1, 1)


def whole(size: Number, part: int) -> Number:
    return -(-size // part) * part if part > 1 else size


def _tiled(second: Number, minor: Number, tile: tuple[int, int]) -> Number:
    """Elements that an array with these minor dimensions takes; tiles may have 1, 2 or 4 rows."""
    if tile == _NO_TILE:
        return second * minor
    fewer = 2 ** np.ceil(np.log2(second))
    return np.where(second < tile[0], fewer, whole(second, tile[0])) * whole(minor, tile[1])


def _fewest_elements(sizes: Sequence[Number], tile: tuple[int, int]) -> Number:
    """The elements that an array takes in the order of its dimensions that pads least."""
    if len(sizes) < 2 or tile == _NO_TILE:
        return prod(sizes)
    orders = []
    for second, minor in permutations(range(len(sizes)), 2):
        rest = prod(size for place, size in enumerate(sizes) if place not in (second, minor))
        orders.append(rest * _tiled(sizes[second], sizes[minor], tile))
    return np.minimum.reduce(np.broadcast_arrays(*orders))


DTYPE_BYTES = {"fp32": 4, "bf16": 2}
# Whether each parameter has a first and a second moment; those of some parameters are
# the memory ledger's `optimizer_state`.
_MOMENTS = {"adamw": (1, 1), "adafactor": (0, 0), "muon": (1, 0)}
MOMENT_BYTES = DTYPE_BYTES | {"int8": 1 + 4 / 256}  # an fp32 scale for 256 of them


def activation_type(precision: Precision) -> DType:
    """The type of activations. Only matrices are narrower, and only while they multiply."""
    return "fp32" if precision.compute == "fp32" else "bf16"


def moment_bytes(optimizer: Optimizer, precision: Precision) -> float:
    first, second = _MOMENTS[optimizer.name]
    of_first = precision.first_moment or precision.optimizer
    return first * MOMENT_BYTES[of_first] + second * MOMENT_BYTES[precision.optimizer]


class Layout(Value):
    """A network on a mesh of chips, and the sequences of one pass; `Training` adds its choices."""

    chip: Chip
    model: Model
    precision: Precision
    length: int
    sequences: Number
    mesh: Mapping[str, Number]
    links: Links
    chunks: Number = 1  # of the layers of a stage, in a pipeline

    # --- what the request says

    @cached_property
    def network(self) -> description.Network:
        return decoder(self.model)

    @property
    def compute_bytes(self) -> int:
        return DTYPE_BYTES[self.activation_type]

    @property
    def activation_type(self) -> DType:
        return activation_type(self.precision)

    @property
    def parameter_bytes(self) -> int:
        return DTYPE_BYTES[self.precision.parameters]

    def over_layers(self, of_block: Callable[[description.Block], Number]) -> Number:
        """The sum over the layers of a device's stage: all of them without a pipeline."""
        every = sum(layers * of_block(block) for block, layers in self.network.kinds)
        return self.stage_share * every

    # --- stages of a pipeline

    @cached_property
    def stages(self) -> Number:
        return self.ways("layers")

    @cached_property
    def chunk_layers(self) -> Number:
        """Places for layers in a chunk, whole repeats of a pattern; some may be empty."""
        segments = self.network.segments
        unit = len(segments[0].stacks) if len(segments) == 1 else 1
        return unit * -(-self.network.layers // (unit * self.stages * self.chunks))

    @cached_property
    def stage_share(self) -> Number:
        """Places for layers on a stage over all layers: an empty one takes as much as another."""
        if not np.any(self.stages > 1):
            return 1
        places = self.chunks * self.chunk_layers / self.network.layers
        return np.where(self.stages > 1, places, 1)

    # --- how many devices split what

    def devices_along(self, axes: Iterable[str]) -> Number:
        return prod(self.mesh.get(axis, 1) for axis in axes)

    @cached_property
    def _ways(self) -> dict[str, Number]:
        return {axis: ways(self.mesh, axis) for axis in LOGICAL_AXES}

    def ways(self, logical_axis: str) -> Number:
        return self._ways[logical_axis]

    @property
    def devices(self) -> Number:
        return self.devices_along(self.mesh)

    @cached_property
    def step_tokens(self) -> Number:
        """Tokens of a pass that one device works on, together with its `tensor` group."""
        return self.sequences / self.ways("batch") * self.length / self.ways("length")

    @property
    def tokens(self) -> Number:
        return self.step_tokens

    # --- what one device holds

    @cached_property
    def _sizes(self) -> dict[description.Dimension, Number]:
        return {}

    def size(self, dimension: description.Dimension) -> Number:
        """How much of a dimension a device works on. Matrices are gathered for use."""
        if dimension in self._sizes:
            return self._sizes[dimension]
        axis, ways = dimension.axis, self.ways(dimension.axis)
        if axis == CHOICES:
            size = dimension.size * self.buffer_of_choice
        elif axis in GATHERED_AXES or not LOGICAL_AXES[axis]:
            size = dimension.size
        elif axis == PADDED:
            size = padded(dimension.size, ways) / ways
        else:
            share = dimension.size / ways
            size = np.maximum(share, 1) if axis == COPIED else share
        return self._sizes.setdefault(dimension, size)

    def elements(self, array: description.Weight | description.Tensor) -> Number:
        """Elements of a weight, or of a tensor at one position."""
        return prod(self.size(dimension) for dimension in array.dimensions)

    def total_elements(self, matmuls: Iterable[description.Matmul]) -> Number:
        return sum(self.elements(matmul.weight) for matmul in matmuls)

    def multiplied_elements(self, matmul: description.Matmul) -> Number:
        """Elements of a weight that a device multiplies one of its tokens by."""
        if not is_of_experts(matmul):
            return self.elements(matmul.weight)
        # Of `expert` devices, each has a part of the experts, and the tokens of all for these.
        share = min(self.rows_of_choice, 1.0) * matmul.share * self.ways("experts")
        return share * self.elements(matmul.weight)

    @cached_property
    def rows_of_token(self) -> float:
        return rows_of_token(self.model.moe, self.length) if self.model.moe else 0.0

    @cached_property
    def rows_of_choice(self) -> float:
        """The same over the choices of a token: one where none is dropped."""
        return self.rows_of_token / self.model.moe.top_k if self.model.moe else 1.0

    @cached_property
    def buffer_of_choice(self) -> Number:
        """Rows for which there is room, over the choices of a device's own tokens. Where experts
        lie apart and none is dropped, all tokens may come to those of one device.
        """
        moe, ways = self.model.moe, self.ways("experts")
        if moe is None or moe.capacity_factor is not None:
            return self.rows_of_choice
        most = np.minimum(moe.top_k, moe.experts / ways)
        return ways * most / moe.top_k

    @property
    def buffer_of_token(self) -> Number:
        return self.buffer_of_choice * self.model.moe.top_k if self.model.moe else 0.0

    def tensor_elements(self, tensor: description.Tensor) -> Number:
        """Elements of an activation on a device, of one layer and microbatch."""
        positions = self.tokens / (self.ways(tensor.positions) / self.ways("length"))
        return prod((positions, *(self.size(dimension) for dimension in tensor.dimensions)))

    @cached_property
    def layer_elements(self) -> Number:
        return self.over_layers(lambda block: self.total_elements(block.matmuls))

    @cached_property
    def multiplied_layer_elements(self) -> Number:
        return self.over_layers(lambda block: sum(map(self.multiplied_elements, block.matmuls)))

    @cached_property
    def table_elements(self) -> Number:
        return self.elements(self.network.embedding)

    @cached_property
    def total_tables(self) -> Number:
        return sum(map(self.elements, self.network.tables))

    @property
    def position_elements(self) -> Number:
        return self.elements(self.network.positions) if self.network.positions else 0

    @cached_property
    def table_padding_elements(self) -> Number:
        """Elements of a table that no token has: zero where the mesh divides the vocabulary."""
        ways = self.ways(PADDED)
        return (padded(self.model.vocab, ways) - self.model.vocab) / ways * self.model.d_model

    @cached_property
    def vector_elements(self) -> Number:
        """Those of norms and biases: a device has all of them but what `tensor` splits."""
        blocks = self.over_layers(lambda block: sum(map(self.elements, block.vectors)))
        return blocks + sum(map(self.elements, self.network.norm.weights))

    @cached_property
    def owned_elements(self) -> Number:
        routed = self.over_layers(self.routed_elements)
        others = (self.layer_elements - routed + self.total_tables) / self.ways(GATHERED)
        return others + routed / self.ways(GATHERED_OF_EXPERTS) + self.vector_elements

    def routed_elements(self, block: description.Block) -> Number:
        return self.total_elements(m for m in block.matmuls if is_of_experts(m))

    # --- what that takes in memory, where arrays are stored in tiles

    @property
    def tile(self) -> tuple[int, int]:
        """The tile of the chip. One without a matrix unit is a GPU and does not pad."""
        return _TPU_TILE if self.chip.matrix_unit else _NO_TILE

    def stored_size(self, dimension: description.Dimension) -> Number:
        if dimension.axis in GATHERED_AXES:
            return dimension.size / self.ways(dimension.axis)
        return self.size(dimension)

    def stored_elements(self, weight: description.Weight, *, in_order: bool = False) -> Number:
        """Elements that a device's part of a weight takes: with its last dimension as the minor one
        or, as parameters lie, in the order that pads least.
        """
        sizes = [self.stored_size(dimension) for dimension in weight.dimensions]
        if in_order and len(sizes) > 1:
            return prod(sizes[:-2]) * _tiled(sizes[-2], sizes[-1], self.tile)
        return _fewest_elements(sizes, self.tile)

    @cached_property
    def stored_layer_elements(self) -> Number:
        return self.over_layers(
            lambda block: sum(self.stored_elements(m.weight) for m in block.matmuls)
        )

    @cached_property
    def stored_parameter_elements(self) -> Number:
        tables = sum(self.stored_elements(table) for table in self.network.tables)
        return self.stored_layer_elements + tables + self.vector_elements

    def stored_tensor_elements(self, tensor: description.Tensor) -> Number:
        """Elements that an activation of one layer and microbatch takes. The attention kernel fixes
        the order of its data: a head of 64 takes as much as one of 128.
        """
        minor = tensor.dimensions[-1]
        if minor.axis not in HEADS:
            return self.tensor_elements(tensor)
        return self.tensor_elements(tensor) * whole(minor.size, self.tile[1]) / minor.size

    # --- copies: where a mesh axis has more devices than there are kv heads

    @property
    def copies(self) -> Number:
        return np.maximum(self.ways(COPIED) / self.model.kv_heads, 1)

    @cached_property
    def copied_heads(self) -> Number:
        """Heads on a device beyond its even share: zero unless heads are copied."""
        share = self.model.kv_heads / self.ways(COPIED)
        return np.maximum(share, 1) - share

    @cached_property
    def layer_elements_of_a_head(self) -> Number:
        """Elements of all layers that belong to one replicated KV head."""

        def elements(block: description.Block) -> Number:
            weights = [matmul.weight.dimensions for matmul in block.matmuls]
            copied = [each for each in weights if any(size.axis == COPIED for size in each)]
            return sum(prod(self.size(d) for d in each if d.axis != COPIED) for each in copied)

        return self.over_layers(elements)


class Training(Layout):
    """A training step: forward and backward passes in microbatches, and an update."""

    optimizer: Optimizer
    remat: Treatments
    microbatches: Number
    # One where a pipeline gathers matrices before its first microbatch and reduces their gradients
    # after the last, so that they are whole in between; else zero.
    gathers_once: Number = 0

    @property
    def bubble(self) -> Number:
        """The share by which the passes of a pipeline take longer: ticks in which a stage waits for
        its first microbatch or has done its last, over those in which it works.
        """
        return (self.stages - 1) / (self.microbatches * self.chunks)

    @property
    def ticks(self) -> Number:
        """Ticks of a pass, in each of which every stage runs a chunk; one without a pipeline."""
        return self.microbatches * self.chunks + self.stages - 1

    @property
    def chunks_in_flight(self) -> Number:
        """Passes of a chunk whose activations a stage holds, over the chunks of a stage."""
        if not np.any(self.stages > 1):
            return 1
        passes = passes_in_flight(self.stages, self.chunks, self.microbatches)
        return np.where(self.stages > 1, passes / self.chunks, 1)

    @property
    def weight_passes(self) -> Number:
        """How often a step gathers a matrix for a pass over all its tokens."""
        if not np.any(self.gathers_once):
            return self.microbatches
        return np.where(self.gathers_once, 1, self.microbatches)

    @cached_property
    def tokens(self) -> Number:
        """Tokens of a microbatch that one device works on, together with its `tensor` group."""
        return self.step_tokens / self.microbatches

    @property
    def moment_bytes(self) -> float:
        return moment_bytes(self.optimizer, self.precision)

    @property
    def loss_chunk_tokens(self) -> int:
        rate = self.chip.peak_flops_per_s[self.activation_type].value
        return loss_chunk_tokens(rate, self.chip.hbm_bytes_per_s.value)

    @property
    def gradient_bytes(self) -> int:
        return DTYPE_BYTES[self.precision.gradients]

    def recomputed(self, matmul: description.Matmul) -> Number:
        """One if the backward pass recomputes a matmul's result, by policy or for a norm; or 0."""
        name = matmul.output.name
        return self.remat.share(name, "recompute") | (name in self._normalized)

    @cached_property
    def _normalized(self) -> set[str]:
        """The results of matmuls that are normalized before they have their name."""
        blocks = self.network.blocks
        return {matmul.output.name for block in blocks for matmul in block.attention.normalized}

    def repeats_output(self, part: description.Sublayer) -> Number:
        """One if the backward pass makes a sublayer's result again, which a norm after it needs."""
        return 1 if part.after else self.recomputed(part.output)

    def repeated_elements(
        self, parallel: Sequence[description.Matmul], *, in_ring: bool = True
    ) -> Number:
        """Weights of parallel matmuls that the backward pass multiplies by again: those whose
        results are missing; all of them where they travel round a ring of `tensor` as one.
        """
        apart = sum(self.recomputed(each) * self.multiplied_elements(each) for each in parallel)
        if not in_ring:
            return apart
        missing = np.maximum.reduce([self.recomputed(matmul) for matmul in parallel])
        return np.where(self.ways("ff") > 1, missing * self.total_elements(parallel), apart)

    @property
    def sums_loss_by_chunk(self) -> Number:
        """Whether each chunk of the loss sums its part of the table's gradient over devices. That
        spares the whole gradient in fp32. It costs no time where sums over all devices of a pod
        overlap products. The links of a smaller slice do not close, have half the rate, and would
        let the products wait. A device's rows fill whole tiles of bf16, or they take more.
        """
        pod = self.chip.pod_chips.value * self.chip.devices
        whole_pod = self.devices_along(GROUPS["weights"]) == pod
        whole_tiles = self.model.d_model % (pod * 2 * self.tile[0]) == 0
        return whole_pod & whole_tiles & self.sums_beside_products

    @property
    def table_sums(self) -> Number:
        """How often a microbatch sums the gradient of the unembedding's table over devices."""
        if not np.any(self.sums_loss_by_chunk):
            return 1
        logits = DTYPE_BYTES["fp32"] * self.size(self.network.head.dimensions[0])
        chunks = loss_chunks(self.tokens, logits, self.loss_chunk_tokens)
        return np.where(self.sums_loss_by_chunk, chunks, 1)

    @property
    def sums_beside_products(self) -> Number:
        """Whether sums of gradients overlap the products that follow them."""
        return self.has_option("xla_enable_async_all_reduce")

    def has_option(self, name: str) -> Number:
        option = self.chip.compiler_options.get(name)
        apart = self.devices_along(SHARED_OVER_DCN) == 1
        return bool(option) & (apart | bool(option and option.between_slices))


def passes_in_flight(stages: Number, chunks: int, microbatches: Number) -> Number:
    """Passes of a chunk whose activations a stage of a pipeline holds. All stages run in step, so
    that each forward pass waits for v p + p - 2 ticks at most.
    """
    return np.minimum(chunks * stages + stages - 1, microbatches * chunks + 1)


def is_of_experts(matmul: description.Matmul) -> bool:
    return matmul.weight.dimensions[0].axis == EXPERTS
