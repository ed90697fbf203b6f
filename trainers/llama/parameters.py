"""The tree of parameters, built from the description of the network: shapes, shardings, start."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from orchestrator.network.decoder import decoder
from orchestrator.network.description import Dimension, Weight
from orchestrator.types.spec import Model
from trainers.llama.axes import mesh_axes

Parameters = dict[str, Any]  # as `leaves`, with arrays for leaves


@dataclass(frozen=True)
class Parameter:
    """A parameter. `deviation` is of its normal start; a norm scale has none and starts at one."""

    shape: tuple[int, ...]
    sharding: P
    deviation: float | None

    @property
    def is_matrix(self) -> bool:
        return self.deviation is not None


def leaves(model: Model) -> dict[str, Any]:
    """All parameters. Those of the blocks are stacked over layers, to be scanned over."""
    network = decoder(model)
    layers = Dimension("layers", network.layers)
    return {
        **{table.name: parameter(table) for table in network.tables},
        "layers": {weight.name: parameter(weight, layers) for weight in network.block.weights},
        network.norm.name: parameter(network.norm),
    }


def parameter(weight: Weight, *stacked: Dimension) -> Parameter:
    dimensions = (*stacked, *weight.dimensions)
    return Parameter(
        tuple(dimension.size for dimension in dimensions),
        P(*(entry(dimension) for dimension in dimensions)),
        weight.deviation,
    )


def entry(dimension: Dimension) -> str | tuple[str, ...] | None:
    """A dimension's entry in a PartitionSpec."""
    axes = mesh_axes(dimension.axis)
    return axes[0] if len(axes) == 1 else axes or None


def shardings(model: Model) -> Parameters:
    return jax.tree.map(lambda leaf: leaf.sharding, leaves(model))


def matrices(model: Model) -> Parameters:
    """Which parameters are matrices: these decay, norm scales do not."""
    return jax.tree.map(lambda leaf: leaf.is_matrix, leaves(model))


def start(model: Model, dtype: jnp.dtype, seed: jax.Array) -> Parameters:
    """Parameters before the first step: the same values on every mesh."""
    tree = leaves(model)
    keys = _keys(jax.random.key(seed), len(jax.tree.leaves(tree)))
    return jax.tree.map(lambda leaf: _start(leaf, dtype, next(keys)), tree)


def _keys(key: jax.Array, count: int) -> Iterator[jax.Array]:
    return iter(jax.random.split(key, count))


def _start(leaf: Parameter, dtype: jnp.dtype, key: jax.Array) -> jax.Array:
    if leaf.deviation is None:
        return jnp.ones(leaf.shape, dtype)
    return (leaf.deviation * jax.random.normal(key, leaf.shape)).astype(dtype)
