"""The tree of parameters, built from the description of the network: shapes, shardings, start."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from orchestrator.network.decoder import decoder
from orchestrator.network.description import Dimension, Norm, Weight
from orchestrator.network.mesh_axes import PADDED, padded, ways
from orchestrator.planning.layout import activation_type
from orchestrator.values.plan import Plan
from orchestrator.values.program import AnyPlan
from orchestrator.values.spec import Precision
from trainers.llama.collectives import mesh_axes

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}
Parameters = dict[str, Any]  # as `leaves`, with arrays for leaves


def compute_type(precision: Precision) -> Any:
    """Return the type of activations, and of matrices until they multiply."""
    return DTYPES[activation_type(precision)]


@dataclass(frozen=True)
class Parameter:
    """A parameter. Matrices start normal, with `deviation`; vectors start at `start`. What `shape`
    has beyond `filled` starts at zero and stays there: rows that no token has, and places of a
    pipeline without a layer, which are the last of its first two dimensions.
    """

    shape: tuple[int, ...]
    filled: tuple[int, ...]
    sharding: P
    deviation: float | None
    start: float
    axes: tuple[str, ...]  # the logical axis of each dimension
    places: int | None = None  # filled, of the first two dimensions together

    @property
    def is_matrix(self) -> bool:
        return self.deviation is not None


def leaves(plan: AnyPlan) -> dict[str, Any]:
    """Return all parameters as stored on a plan's mesh; layers of a stack are stacked, for a scan.
    Those of a pipeline are [chunks, places of a chunk on all stages]: flat, they are in order.
    """

    def parameter(
        weight: Weight, stacked: Sequence[Dimension] = (), places: int | None = None
    ) -> Parameter:
        dimensions = (*stacked, *weight.dimensions)
        sizes = tuple(dimension.size for dimension in dimensions)
        axes = tuple(dimension.axis for dimension in dimensions)
        # A vocabulary that the mesh does not divide is padded.
        stored = tuple(
            int(padded(size, ways(plan.mesh, PADDED))) if axis == PADDED else size
            for size, axis in zip(sizes, axes, strict=True)
        )
        splits = [mesh_axes(axis) for axis in axes]
        sharding = P(*(split[0] if len(split) == 1 else split or None for split in splits))
        return Parameter(stored, sizes, sharding, weight.deviation, weight.start, axes, places)

    network = decoder(plan.model)
    tree: dict[str, Any] = {table.name: parameter(table) for table in network.tables}
    for segment in network.segments:
        stacked, places = [Dimension("layers", segment.repeats)], None
        if plan.pipeline is not None:
            chunk = plan.pipeline.layers_per_chunk // len(segment.stacks)  # on each stage
            stacked = [
                Dimension("chunks", plan.pipeline.chunks),
                Dimension("layers", plan.pipeline.stages * chunk),
            ]
            places = segment.repeats
        for stack in segment.stacks:
            tree[stack.name] = {w.name: parameter(w, stacked, places) for w in stack.block.weights}
    return tree | {weight.name: parameter(weight) for weight in network.norm.weights}


def shardings(plan: Plan) -> Parameters:
    return jax.tree.map(lambda leaf: leaf.sharding, leaves(plan))


def matrices(plan: Plan) -> Parameters:
    return jax.tree.map(lambda leaf: leaf.is_matrix, leaves(plan))


def start(plan: AnyPlan, dtype: jnp.dtype, seed: jax.Array) -> Parameters:
    """Return the parameters before the first step: the same values on every mesh."""
    tree = leaves(plan)
    keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(tree))))

    def values(leaf: Parameter, key: jax.Array) -> jax.Array:
        if leaf.deviation is None:
            drawn = jnp.full(leaf.shape, leaf.start, dtype)
        else:
            # A number depends on its place in the array, counted flat: also in one of chunks.
            drawn = (leaf.deviation * jax.random.normal(key, leaf.filled)).astype(dtype)
            sizes = zip(leaf.shape, leaf.filled, strict=True)
            drawn = jnp.pad(drawn, [(0, size - filled) for size, filled in sizes])
        if leaf.places is None or leaf.places == leaf.shape[0] * leaf.shape[1]:
            return drawn
        place = jnp.arange(leaf.shape[0] * leaf.shape[1]).reshape(leaf.shape[:2])
        is_filled = jnp.expand_dims(place < leaf.places, range(2, drawn.ndim))
        return jnp.where(is_filled, drawn, 0)

    return jax.tree.map(lambda leaf: values(leaf, next(keys)), tree)


# RMSNorm and LayerNorm, in fp32


def norm(
    kind: Norm | None, weights: Parameters, x: jax.Array, heads: tuple[str, ...] = ()
) -> jax.Array:
    """x normalized over its last dimension; unchanged without a norm."""
    # With `heads`, the mesh axes that split these, x [b, S/s, heads/Y, H] over all heads together.
    if kind is None:
        return x
    wide = x.astype(jnp.float32)
    if kind.bias is not None:
        wide -= jnp.mean(wide, axis=-1, keepdims=True)
    mean_square = jnp.mean(wide**2, axis=(-2, -1) if heads else -1, keepdims=True)
    if heads:
        mean_square = jax.lax.pmean(mean_square, heads)
    normed = wide * jax.lax.rsqrt(mean_square + kind.epsilon)
    if kind.scale is not None:
        scale = weights[kind.scale.name]
        normed = normed * (scale + kind.offset if kind.offset else scale)
    if kind.bias is not None:
        normed = normed + weights[kind.bias.name]
    return normed.astype(x.dtype)
