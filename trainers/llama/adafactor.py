"""Adafactor on each chip's own shards (arXiv 1804.04235): second moments of rows and columns.

A matrix of a layer or expert has rows, the positions of its gathered dimension, and columns, all
others. Its second moment is the product of the means over each; those of other chips' shards are
added up, so that the mesh changes nothing. Vectors have a whole second moment. There is no first.

No chip's part of the means is much: they are fp32, whatever the type of other moments.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from orchestrator.network.mesh_axes import GATHERED_AXES
from orchestrator.types.plan import Plan
from trainers.llama.collectives import all_reduce
from trainers.llama.parameters import Parameter, Parameters, leaves

DECAY_EXPONENT = 0.8  # the decay rate of step t is 1 - t^-0.8
LEAST_SQUARE = 1e-30  # in place of a second moment that is zero
LEAST_SCALE = 1e-3  # of an update, where a matrix is smaller
LARGEST_UPDATE = 1.0  # root mean square, before the scale
ALONE = ("layers", "experts")  # dimensions of matrices beside one another
Tree = Any


class Moments(NamedTuple):
    """Means of squares over columns and over rows; those of vectors lie in `rows`, whole."""

    steps: Any  # an array, or its sharding
    rows: Parameters
    columns: Parameters


class Shape(NamedTuple):
    """A leaf's dimensions: the gathered one, the others of its matrix, and where each is split."""

    row: tuple[int, ...]
    columns: tuple[int, ...]
    leaf: Parameter

    def without(self, dimensions: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(size for i, size in enumerate(self.leaf.shape) if i not in dimensions)

    def sharding_without(self, dimensions: tuple[int, ...]) -> P:
        entries = [*self.leaf.sharding]
        return P(*(entry for i, entry in enumerate(entries) if i not in dimensions))

    def total(self, x: jax.Array, dimensions: tuple[int, ...]) -> jax.Array:
        """The sum over dimensions of all chips' shards, which stay as dimensions of one."""
        entries = [self.leaf.sharding[i] for i in dimensions]
        named = [(entry,) if isinstance(entry, str) else entry or () for entry in entries]
        axes = tuple(axis for axes in named for axis in axes)
        part = jnp.sum(x, axis=dimensions, keepdims=True)
        return all_reduce(part, axes) if axes else part

    def mean(self, x: jax.Array, dimensions: tuple[int, ...]) -> jax.Array:
        return self.total(x, dimensions) / prod(self.leaf.filled[i] for i in dimensions)


def shape_of(leaf: Parameter) -> Shape:
    row = tuple(i for i, axis in enumerate(leaf.axes) if axis in GATHERED_AXES)
    others = (i for i, axis in enumerate(leaf.axes) if axis not in ALONE and i not in row)
    return Shape(row, tuple(others), leaf)


def start(plan: Plan) -> Moments:
    """Zero moments."""

    def zeros(shape: Callable[[Shape], tuple[int, ...]]) -> Parameters:
        return over(plan, lambda one: jnp.zeros(shape(one), jnp.float32))

    return Moments(
        jnp.int32(0),
        zeros(lambda one: one.without(one.columns if one.leaf.is_matrix else ())),
        zeros(lambda one: one.without(one.row) if one.leaf.is_matrix else ()),
    )


def shardings(plan: Plan) -> Moments:
    """Means lie as what is left of their parameters' dimensions."""
    return Moments(
        P(),
        over(plan, lambda one: one.sharding_without(one.columns if one.leaf.is_matrix else ())),
        over(plan, lambda one: one.sharding_without(one.row) if one.leaf.is_matrix else P()),
    )


def over(plan: Plan, made: Callable[[Shape], Any]) -> Parameters:
    """Something of every parameter."""
    return jax.tree.map(lambda leaf: made(shape_of(leaf)), leaves(plan.model, plan.mesh))


def update(
    plan: Plan, gradients: Parameters, state: Moments, parameters: Parameters
) -> tuple[Parameters, Moments]:
    """What a step of size one adds to the parameters, and the moments after it."""
    decay = 1 - (state.steps + 1).astype(jnp.float32) ** -DECAY_EXPONENT

    def of_leaf(leaf: Parameter, *arrays: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return change(shape_of(leaf), decay, *arrays)

    every = jax.tree.map(
        of_leaf, leaves(plan.model, plan.mesh), gradients, state.rows, state.columns, parameters
    )
    changes, rows, columns = jax.tree.transpose(
        jax.tree.structure(gradients), jax.tree.structure((0, 0, 0)), every
    )
    return changes, Moments(state.steps + 1, rows, columns)


def change(
    shape: Shape,
    decay: jax.Array,
    gradient: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    parameter: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A leaf's change, and its moments: the gradient over their root, of a bounded size, times the
    size of the parameter.
    """
    square, matrix = gradient**2, (*shape.row, *shape.columns)
    if not shape.leaf.is_matrix:
        rows = decay * rows + (1 - decay) * square
        inverse = jax.lax.rsqrt(jnp.maximum(rows, LEAST_SQUARE))
        matrix = shape.columns
    else:
        by_row, by_column = shape.mean(square, shape.columns), shape.mean(square, shape.row)
        rows = decay * rows + (1 - decay) * by_row.reshape(rows.shape)
        columns = decay * columns + (1 - decay) * by_column.reshape(columns.shape)
        whole = jnp.maximum(rows.reshape(by_row.shape), LEAST_SQUARE)
        inverse = jax.lax.rsqrt(whole / shape.mean(whole, shape.row))
        inverse *= jax.lax.rsqrt(jnp.maximum(columns.reshape(by_column.shape), LEAST_SQUARE))
    wanted = gradient * inverse
    size = jnp.sqrt(shape.mean(wanted**2, matrix))
    scale = jnp.maximum(jnp.sqrt(shape.mean(parameter**2, matrix)), LEAST_SCALE)
    return wanted * scale / jnp.maximum(1.0, size / LARGEST_UPDATE), rows, columns
