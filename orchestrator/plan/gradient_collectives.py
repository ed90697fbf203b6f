"""The collectives of gradients: over all devices that hold a parameter."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from orchestrator.network.description import Stack, Weight
from orchestrator.network.mesh_axes import (
    COPIED,
    GATHERED,
    GROUPS,
    LOGICAL_AXES,
    REPLICA_AXES,
    SHARED_OVER_DCN,
    SLICE_REPLICAS,
)
from orchestrator.network.mixture import EXPERTS
from orchestrator.plan.exchange import GATHER, OVER_DCN, REDUCE, SCATTER, Exchange, Part
from orchestrator.plan.kernel_constants import TILE
from orchestrator.plan.layout import Layout, Number, copied_matmuls, gathered_axis
from orchestrator.types.plan import CollectiveKind


def gradient_exchanges(layout: Layout) -> list[Exchange]:
    """Gradients over all devices that hold the parameter: first inside a slice where it is
    repeated, and over the slices that share weights, then over its replicas. These scatter over
    `data`, reduce over `pods`, gather back.
    """
    wire, data = layout.gradient_bytes, layout.devices_along(GROUPS["data"])
    buckets = gradient_buckets(layout)
    whole = tuple(replace(one, bytes=one.bytes * wire) for one in buckets)
    shares = tuple(replace(one, bytes=one.bytes / data) for one in whole)
    payload = "owned gradient"

    def exchange(
        name: str, kind: CollectiveKind, axes: tuple[str, ...], formula: str,
        parts: tuple[Part, ...], ways: Number | None = None,
    ) -> Exchange:  # fmt: skip
        ways = layout.devices_along(axes) if ways is None else ways
        return Exchange("gradient_reduction", name, kind, axes, formula, ways, 1, parts,
                        layout.precision.gradients)  # fmt: skip

    return [
        exchange("kv weight copies", REDUCE, GROUPS["tensor"], "wk, wv",
                 copied_gradients(layout), layout.copies),
        *(exchange("router gradients", REDUCE, GROUPS["tensor"], "routers, latents", whole)
          for whole in [unsplit_gradients(layout)] if whole),
        exchange("norm gradients", REDUCE, GROUPS["replicas"], "norms",
                 vector_gradients(layout, is_repeated)),
        exchange(f"norm gradients{OVER_DCN}", REDUCE, SHARED_OVER_DCN, "norms",
                 vector_gradients(layout, is_repeated)),
        *split_vector_exchanges(layout, exchange),
        exchange("data scatter", SCATTER, GROUPS["data"], payload, whole),
        exchange("data gather", GATHER, GROUPS["data"], payload, whole),
        exchange("pods", REDUCE, (SLICE_REPLICAS,), f"{payload} / data", shares),
    ]  # fmt: skip


def reduced_at_a_time(layout: Layout, stack: Stack) -> tuple[Number, Number]:
    """Layers of a stack whose gradients are reduced at once, and how often that is done in a step.

    Each layer on its own where nothing accumulates; all layers at the end otherwise.
    """
    layers = len(stack.layers)
    stacked = np.where(per_layer(layout), 1, layers)
    return stacked, layers // stacked


def per_layer(layout: Layout) -> Number:
    """Whether each layer's gradients are reduced as soon as the backward pass has them."""
    return (layout.microbatches == 1) & (layout.devices_along(REPLICA_AXES) > 1)


def copied_gradients(layout: Layout) -> tuple[Part, ...]:
    """Gradients of projections whose kv heads are copied to several devices."""
    size = layout.gradient_bytes / layout.ways(GATHERED)
    return tuple(
        Part(layers * size * layout.elements(matmul.weight), times, serial=1)
        for stack in layout.network.stacks
        for layers, times in [reduced_at_a_time(layout, stack)]
        for matmul in copied_matmuls(stack.block)
    )


def is_repeated(weight: Weight) -> bool:
    """Whether every device of a slice has all of it."""
    return not any(LOGICAL_AXES[dimension.axis] for dimension in weight.dimensions)


def is_split(weight: Weight) -> bool:
    return not (is_repeated(weight) or is_copied(weight) or is_bias_of_experts(weight))


def is_bias_of_experts(weight: Weight) -> bool:
    return weight.dimensions[0].axis == EXPERTS


def is_inner_bias(weight: Weight) -> bool:
    """Of experts, and split over `tensor`."""
    return is_bias_of_experts(weight) and is_split_over_tensor(weight)


def is_outer_bias(weight: Weight) -> bool:
    """Of experts, and on every device of a `tensor` group."""
    return is_bias_of_experts(weight) and not is_split_over_tensor(weight)


def is_copied(weight: Weight) -> bool:
    """Whether it belongs to kv heads."""
    return any(dimension.axis == COPIED for dimension in weight.dimensions)


def unsplit_gradients(layout: Layout) -> tuple[Part, ...]:
    """Gradients of matrices that every device of a `tensor` group holds: of routers, and those that
    make latents.
    """
    size = layout.gradient_bytes / layout.ways(GATHERED)
    return tuple(
        Part(layers * size * layout.elements(matmul.weight), times, serial=1)
        for stack in layout.network.stacks
        for layers, times in [reduced_at_a_time(layout, stack)]
        for matmul in stack.block.matmuls
        if not is_split_over_tensor(matmul.weight)
    )


def is_split_over_tensor(weight: Weight) -> bool:
    return any(set(GROUPS["tensor"]) & {*LOGICAL_AXES[one.axis]} for one in weight.dimensions)


def vector_gradients(layout: Layout, chosen: Callable[[Weight], bool]) -> tuple[Part, ...]:
    """Gradients of those norms and biases that are chosen."""
    wire, network = layout.gradient_bytes, layout.network
    of_blocks = tuple(
        Part(layers * layout.elements(vector) * wire, times, serial=1)
        for stack in network.stacks
        for layers, times in [reduced_at_a_time(layout, stack)]
        for vector in filter(chosen, stack.block.vectors)
    )
    ends = tuple(
        Part(layout.elements(vector) * wire, 1, serial=1 - per_layer(layout))
        for vector in filter(chosen, network.norm.weights)
    )
    return (*of_blocks, *ends)


def split_vector_exchanges(layout: Layout, exchange: Callable[..., Exchange]) -> list[Exchange]:
    """Gradients of norms and biases of heads and of d_ff, which `tensor` splits; where kv heads are
    copied, over the copies too. Those of experts lie where their experts do.
    """
    inside, apart, outer = (GROUPS[name] for name in ("weights", "experts", "expert_replicas"))
    ways, copies = layout.devices_along(inside), layout.copies
    return [
        exchange(f"{name}{suffix}", REDUCE, axes, "biases", parts, devices)
        for name, chosen, group, of_slice in (
            ("bias gradients", is_split, inside, ways),
            ("kv bias gradients", is_copied, inside, ways * copies),
            ("expert bias gradients", is_inner_bias, apart, layout.devices_along(apart)),
            ("expert output bias gradients", is_outer_bias, outer, layout.devices_along(outer)),
        )
        for suffix, axes, devices in (
            ("", group, of_slice),
            (OVER_DCN, SHARED_OVER_DCN, layout.devices_along(SHARED_OVER_DCN)),
        )
        if (parts := vector_gradients(layout, chosen))
    ]


def gradient_buckets(layout: Layout) -> list[Part]:
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
        *(part for stack in network.stacks for part in stack_buckets(layout, stack, data)),
        Part(whole_tiles(embedding, data), 1, serial=1),
        *(Part(whole_tiles(one, data), 1, serial=1 - early) for one in ends),
    ]


def stack_buckets(layout: Layout, stack: Stack, data: Number) -> list[Part]:
    """Those of a stack: what is joined where `data` reduces layer by layer, and each weight."""
    layers, times = reduced_at_a_time(layout, stack)
    joined = per_layer(layout) & (data > 1)
    matrices, alone = [one.weight for one in stack.block.matmuls], 1 - joined
    weights = [layout.elements(one) / layout.ways(gathered_axis(one)) for one in matrices]
    weights += [layout.elements(vector) for vector in stack.block.vectors]
    return [
        Part(whole_tiles(sum(weights), data), times * joined, serial=1 * joined),
        *(Part(whole_tiles(layers * one, data), times * alone, serial=alone) for one in weights),
    ]


def whole_tiles(elements: Number, ways: Number) -> Number:
    """Elements filled up to whole tiles for every device that reduces them."""
    quantum = ways * TILE[0] * TILE[1]
    return np.where(ways > 1, np.ceil(elements / quantum) * quantum, elements)
