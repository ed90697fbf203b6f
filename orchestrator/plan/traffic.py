"""Plan room: what one device exchanges with others in a step, collective by collective."""

from dataclasses import dataclass

import numpy as np

from orchestrator.plan.kernel_constants import TILE
from orchestrator.plan.layout import Layout, Number
from orchestrator.plan.torus import GROUPS
from orchestrator.types.plan import Collective, CollectiveKind, LineKind

# A layer's two blocks gather their input over `tensor` and scatter their output, forward and
# backward. The gathered input is not kept: weight gradients need it gathered again.
TENSOR_GATHERS, TENSOR_GATHERS_AGAIN, TENSOR_SCATTERS = 4, 2, 4
GATHER: CollectiveKind = "all-gather"
SCATTER: CollectiveKind = "reduce-scatter"
REDUCE: CollectiveKind = "all-reduce"
ENDS = 2  # the embedding and the unembedding
WEIGHT_GATHERS = 2  # forward and backward; recompute shares the backward's


@dataclass(frozen=True)
class Exchange:
    """`calls` collectives a step of `volume` bytes each over `ways` devices of a group's links.

    `volume` is the whole of what is gathered, scattered or reduced; `formula` names it.
    """

    line: LineKind
    name: str
    kind: CollectiveKind
    group: str
    formula: str
    ways: Number
    volume: Number
    calls: Number
    dtype: str

    @property
    def moved_bytes(self) -> Number:
        """Logical payload a device and step: V (n - 1) / n a call, an all-reduce twice that."""
        twice = 2 if self.kind == "all-reduce" else 1
        return self.calls * twice * self.volume * (self.ways - 1) / self.ways

    def collective(self) -> Collective:
        """The same as the Plan states it."""
        return Collective(
            kind=self.kind,
            axes=GROUPS.get(self.group, (self.group,)),
            link="dcn" if self.group == "pods" else "ici",
            dtype=self.dtype,
            bytes_per_step=float(self.moved_bytes),
            calls_per_step=float(self.calls),
        )


def exchanges(layout: Layout) -> list[Exchange]:
    """Every collective of a step; one over a single device moves zero bytes."""
    return [
        *residual_exchanges(layout),
        *weight_exchanges(layout),
        *key_value_exchanges(layout),
        *gradient_exchanges(layout),
    ]


def residual_exchanges(layout: Layout) -> list[Exchange]:
    """The residual stream, split by position over `tensor`, around each block and at both ends."""
    blocks, ends = layout.model.layers * layout.microbatches, ENDS * layout.microbatches
    gathers = (TENSOR_GATHERS + TENSOR_GATHERS_AGAIN) * blocks + ends
    scatters = (TENSOR_SCATTERS + layout.remat.recomputes("mid")) * blocks + ends
    ways, dtype = layout.tensor, layout.precision.compute
    stream = layout.tokens * layout.model.d_model * layout.compute_bytes
    say = "tokens x d_model"
    return [
        Exchange(
            "activation_gather",
            "residual gather",
            GATHER,
            "tensor",
            say,
            ways,
            stream,
            gathers,
            dtype,
        ),
        Exchange(
            "activation_scatter",
            "residual scatter",
            SCATTER,
            "tensor",
            say,
            ways,
            stream,
            scatters,
            dtype,
        ),
    ]


def weight_exchanges(layout: Layout) -> list[Exchange]:
    """Matrices gathered over fsdp x sequence in each microbatch, and their gradients scattered."""
    layers, ends = layout.model.layers * layout.microbatches, ENDS * layout.microbatches
    layer, table = layout.layer_elements, layout.table_elements
    ways, use, wire = layout.weight_ways, layout.precision.compute, layout.precision.gradients
    in_use, on_wire = layout.compute_bytes, layout.gradient_bytes
    group, gathers = "weights", WEIGHT_GATHERS * layers
    of_layer, of_table = "layer / tensor", "d_model x vocab / tensor"
    return [
        Exchange(
            "weight_gather",
            "weight gather",
            GATHER,
            group,
            of_layer,
            ways,
            layer * in_use,
            gathers,
            use,
        ),
        Exchange(
            "weight_gather",
            "table gather",
            GATHER,
            group,
            of_table,
            ways,
            table * in_use,
            ends,
            use,
        ),
        Exchange(
            "gradient_scatter",
            "gradient scatter",
            SCATTER,
            group,
            of_layer,
            ways,
            layer * on_wire,
            layers,
            wire,
        ),
        Exchange(
            "gradient_scatter",
            "table gradient scatter",
            SCATTER,
            group,
            of_table,
            ways,
            table * on_wire,
            ends,
            wire,
        ),
    ]


def key_value_exchanges(layout: Layout) -> list[Exchange]:
    """Keys and values of whole sequences, gathered forward and backward; their gradients back."""
    ways, dtype = layout.sequence, layout.precision.compute
    width = layout.kv_heads * layout.model.head_dim * layout.compute_bytes
    volume = layout.tokens * ways * width
    calls = 2 * layout.model.layers * layout.microbatches  # keys and values
    say = "tokens x sequence x kv_heads x head_dim"
    return [
        Exchange("kv_gather", "kv gather", GATHER, "sequence", say, ways, volume, 2 * calls, dtype),
        Exchange("kv_scatter", "kv scatter", SCATTER, "sequence", say, ways, volume, calls, dtype),
    ]


def gradient_exchanges(layout: Layout) -> list[Exchange]:
    """Once a step, after accumulation: scatter over `data`, reduce over `pods`, gather back."""
    wire, dtype = layout.gradient_bytes, layout.precision.gradients
    owned, norms = padded_elements(layout) * wire, layout.norm_elements * wire
    key_values = 2 * layout.model.d_model * layout.model.head_dim * layout.kv_heads
    copied = layout.model.layers * key_values / layout.weight_ways * wire
    in_slice, data = layout.weight_ways * layout.tensor, layout.data
    say = "owned gradient"
    return [
        Exchange(
            "gradient_reduction",
            "kv weight copies",
            REDUCE,
            "tensor",
            "wk, wv",
            layout.kv_copies,
            copied,
            1,
            dtype,
        ),
        Exchange(
            "gradient_reduction",
            "norm gradients",
            REDUCE,
            "replicas",
            "norms",
            in_slice,
            norms,
            1,
            dtype,
        ),
        Exchange("gradient_reduction", "data scatter", SCATTER, "data", say, data, owned, 1, dtype),
        Exchange("gradient_reduction", "data gather", GATHER, "data", say, data, owned, 1, dtype),
        Exchange(
            "gradient_reduction",
            "pods",
            REDUCE,
            "pods",
            f"{say} / data",
            layout.pods,
            owned / data,
            1,
            dtype,
        ),
    ]


def padded_elements(layout: Layout) -> Number:
    """Gradient elements that a device reduces with its replicas.

    They are filled up to whole tiles for every device along `data`: all leaves of a layer as one
    where gradients are reduced layer by layer, each leaf of the stack where they accumulate.
    """
    layers, d_model = layout.model.layers, layout.model.d_model
    leaves = [size / layout.weight_ways for size in layout.layer_matrices.values()]
    leaves += [d_model, d_model]  # norms
    tables = [layout.table_elements / layout.weight_ways] * layout.tables
    per_layer = layers * padded(sum(leaves), layout.data)
    stacked = sum(padded(layers * leaf, layout.data) for leaf in leaves)
    ends = sum(padded(leaf, layout.data) for leaf in [*tables, d_model])
    return np.where(layout.microbatches == 1, per_layer, stacked) + ends


def padded(elements: Number, ways: Number) -> Number:
    quantum = ways * TILE[0] * TILE[1]
    return np.where(ways > 1, np.ceil(elements / quantum) * quantum, elements)
