"""Grouped matmuls: rows, expert after expert, each times the weight of its expert.

rows [M, D], weights [E, D, F], sizes [E] of the groups; rows beyond them are undefined
"""

from collections.abc import Callable
from math import gcd

import jax
from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

from orchestrator.plan.kernel_constants import MOST_TILE, grouped_tile

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
