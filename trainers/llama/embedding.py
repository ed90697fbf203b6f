"""Word vectors from a vocabulary split over `tensor`."""

import jax
import jax.numpy as jnp

from trainers.llama.axes import TENSOR


@jax.custom_vjp
def lookup(table: jax.Array, words: jax.Array) -> jax.Array:
    """Vectors [b, T, D] of words [b, T] from this chip's table [V/Y, D]; zero for others' words.

    Its gradient is summed in fp32, because a frequent word gets many small parts.
    """
    own, is_own = _own(table, words)
    return jnp.where(is_own[..., None], table[own], 0)


def _forward(table: jax.Array, words: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return lookup(table, words), (table, words)


def _backward(saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, None]:
    table, words = saved
    own, is_own = _own(table, words)
    parts = jnp.where(is_own[..., None], gradient, 0).astype(jnp.float32)
    return jnp.zeros(table.shape, jnp.float32).at[own].add(parts).astype(table.dtype), None


lookup.defvjp(_forward, _backward)


def _own(table: jax.Array, words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows of this chip's table, row 0 for others' words; and which words are its own."""
    rows = words - jax.lax.axis_index(TENSOR) * table.shape[0]
    is_own = (rows >= 0) & (rows < table.shape[0])
    return jnp.where(is_own, rows, 0), is_own
