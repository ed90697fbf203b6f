"""The experts of a mixture: tokens sorted by expert, multiplied, and brought back.

    T tokens of this chip, k choices of a token, E experts, D d_model, F d_ff of an expert
    C rows of an expert for each sequence, where a capacity factor limits them

A row is a token's numbers on their way through one expert. Dropless, rows lie in groups of any
size, one expert after another, and empty ones come last. With a capacity, every expert has C rows a
sequence: the last choices find none, and other rows are empty.
"""

from collections.abc import Callable
from functools import partial
from math import gcd
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

from orchestrator.planning.kernels import MOST_TILE, grouped_tile
from trainers.llama.collectives import EXPERT

# Grouped matmuls: rows, expert after expert, each times the weight of its expert.


Grouped = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def grouped_matmul(platform: str) -> Grouped:
    """The product for a platform.

    On TPU the compiler has a kernel for it and for the gradient of the rows. For the gradient of
    the weights it multiplies all rows by all experts, so that takes a kernel of Pallas.
    """
    return _of_tpu if platform == "tpu" else jax.lax.ragged_dot


@jax.custom_vjp
def _of_tpu(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(rows, weights, sizes)


Saved = tuple[jax.Array, jax.Array, jax.Array]


def _forward(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> tuple[jax.Array, Saved]:
    return _of_tpu(rows, weights, sizes), (rows, weights, sizes)


def _backward(saved: Saved, gradient: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    rows, weights, sizes = saved
    of_rows = jax.lax.ragged_dot(gradient, weights.swapaxes(1, 2), sizes)
    count, *edges = weights.shape
    tile = gcd(rows.shape[0], int(grouped_tile(rows.shape[0], count)))
    tiling = (tile, *(min(edge, MOST_TILE) for edge in edges))
    of_weights = tgmm(rows.swapaxes(0, 1), gradient, sizes, weights.dtype, tiling)
    return of_rows, of_weights, None


_of_tpu.defvjp(_forward, _backward)


Multiply = Callable[[jax.Array, jax.Array], jax.Array]  # rows, one weight for each expert


class Rows(NamedTuple):
    """Where each row comes from, and where it is needed. An index beyond the last is nothing."""

    choice: jax.Array  # [rows] of T k
    row: jax.Array  # [T, k] of rows
    sizes: jax.Array | None  # [E] of groups, one expert after another; None where all are equal
    complete: bool  # every choice has a row, and every row a choice

    @property
    def dropped(self) -> jax.Array:
        """How many choices have no row."""
        return jnp.sum(self.row == self.choice.shape[0])


def dropless_rows(experts: jax.Array, count: int) -> Rows:
    """A row for each choice of this chip's experts, with room for as many as may be.

    experts [T, k]
    """
    ways = jax.lax.axis_size(EXPERT)
    own = count // ways
    flat = experts.reshape(-1) - jax.lax.axis_index(EXPERT) * own
    is_own = (flat >= 0) & (flat < own)
    expert = jnp.where(is_own, flat, own)
    order = jnp.argsort(expert, stable=True)
    room = experts.shape[0] * min(experts.shape[1], own)
    sizes = jnp.bincount(expert, length=own + 1)[:own].astype(jnp.int32)
    choice = jnp.where(jnp.arange(room) < sizes.sum(), order[:room], flat.size)
    row = jnp.where(is_own, jnp.argsort(order), room)
    return Rows(choice, row.reshape(experts.shape), sizes, complete=ways == 1)


def limited_rows(experts: jax.Array, count: int, rows: int) -> Rows:
    """So many rows for each expert and sequence, in the order of expert, sequence, row.

    Choices come in the order of positions; those that an expert has no row for are dropped.
    """
    sequences, length, top_k = experts.shape
    choices = length * top_k
    flat = experts.reshape(sequences, choices)
    order = jnp.argsort(flat, axis=1, stable=True)
    load = jax.nn.one_hot(flat, count, dtype=jnp.int32).sum(1)  # [b, E]
    first = jnp.cumsum(load, axis=1) - load
    place = jnp.argsort(order, axis=1) - jnp.take_along_axis(first, flat, axis=1)
    row = (flat * sequences + jnp.arange(sequences)[:, None]) * rows + place
    row = jnp.where(place < rows, row, count * sequences * rows)
    source = jnp.minimum(first[..., None] + jnp.arange(rows), choices - 1)  # [b, E, C]
    choice = jnp.take_along_axis(order, source.reshape(sequences, -1), axis=1).reshape(source.shape)
    choice += jnp.arange(sequences)[:, None, None] * choices
    filled = jnp.arange(rows) < load[..., None]
    choice = jnp.where(filled, choice, sequences * choices).swapaxes(0, 1).reshape(-1)
    return Rows(choice, row.reshape(-1, top_k), None, complete=False)


def through_experts(
    x: jax.Array,
    weights: jax.Array,
    rows: Rows,
    transform: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """Each token's weighted sum over its experts. x [T, D], weights [T, k] -> [T, D]

    `transform` is what experts do with rows [rows, D] and their weights [rows, 1]. They multiply
    by the weights before their last matmul, so that the backward pass does not need its result.
    """
    top_k = weights.shape[1]
    token = rows.choice // top_k
    sent = spread(rows.complete, x, token, rows.row)
    of_rows = spread(rows.complete, weights.reshape(-1, 1), rows.choice, rows.row.reshape(-1, 1))
    return collect(rows.complete, transform(sent, of_rows), token, rows.row)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def spread(complete: bool, x: jax.Array, source: jax.Array, uses: jax.Array) -> jax.Array:
    """A row of x [n, D] for each of `source` [m], zero beyond the last -> [m, D].

    `uses` [n, r] are the results that each row of x goes to: its gradient is the sum of theirs, so
    nothing is scattered.
    """
    return fetched(complete, x, source)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def collect(complete: bool, rows: jax.Array, source: jax.Array, uses: jax.Array) -> jax.Array:
    """The way back of `spread`: the sum of the rows [m, D] at the `uses` of each token -> [n, D].

    Its gradient is `spread`, so that no gradient is repeated for each choice of a token.
    """
    return fetched(complete, rows, uses).sum(1, dtype=jnp.float32).astype(rows.dtype)


def fetched(complete: bool, x: jax.Array, places: jax.Array) -> jax.Array:
    """Rows of x at `places`, zero beyond the last. Where all are `complete`, none lies there: to
    make sure, the compiler would read and write everything once more.
    """
    if complete:
        return x.at[places].get(mode="promise_in_bounds")
    return x.at[places].get(mode="fill", fill_value=0)


Places = tuple[jax.Array, jax.Array]


def _spread_forward(
    complete: bool, x: jax.Array, source: jax.Array, uses: jax.Array
) -> tuple[jax.Array, Places]:
    return spread(complete, x, source, uses), (source, uses)


def _spread_backward(
    complete: bool, places: Places, gradient: jax.Array
) -> tuple[jax.Array, None, None]:
    return collect(complete, gradient, *places), None, None


def _collect_forward(
    complete: bool, rows: jax.Array, source: jax.Array, uses: jax.Array
) -> tuple[jax.Array, Places]:
    return collect(complete, rows, source, uses), (source, uses)


def _collect_backward(
    complete: bool, places: Places, gradient: jax.Array
) -> tuple[jax.Array, None, None]:
    return spread(complete, gradient, *places), None, None


spread.defvjp(_spread_forward, _spread_backward)
collect.defvjp(_collect_forward, _collect_backward)


def multiply(grouped: Grouped, sizes: jax.Array | None, count: int) -> Multiply:
    """How rows, expert after expert, are multiplied by weights [E, D, F]."""
    if sizes is not None:
        return lambda rows, weight: grouped(rows, weight, sizes)
    return partial(_equal, count)


def _equal(count: int, rows: jax.Array, weight: jax.Array) -> jax.Array:
    product = jnp.einsum("erd,edf->erf", rows.reshape(count, -1, rows.shape[-1]), weight)
    return product.reshape(-1, weight.shape[-1])
