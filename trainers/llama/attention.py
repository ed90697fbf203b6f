"""Causal attention of a chip's own queries to all keys, never [S, S] in memory.

One interface, three kernels; the platform of the mesh selects one. Queries are this chip's shard in
zigzag order, keys and values the whole sequence in natural order:

    attend(q [b, S/s, N/Y, H], k [b, S, K/Y, H], v [b, S, K/Y, H]) -> [b, S/s, N/Y, H]

The result and its log-sum-exp are named `attention`, for rematerialization to keep.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from trainers.llama import zigzag
from trainers.llama.blockwise import blockwise
from trainers.llama.splash import splash

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def attention(
    platform: str, compute: jnp.dtype, length: int, ways: int, window: int | None = None
) -> Attend:
    """The kernel for a platform and compute type, for sequences of `length` in `ways` shards. With
    a `window`, a query sees that many positions: its own and those before it.

    cuDNN has no fp32 and no mask for a shard in zigzag order; NVIDIA then uses `blockwise`.
    """
    if platform == "tpu":
        return splash(length, ways, window)
    if platform == "gpu" and compute == jnp.bfloat16 and ways == 1:
        return partial(cudnn, window)
    return partial(_blockwise, length, ways, window)


def cudnn(window: int | None, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """cuDNN's flash attention. Its log-sum-exp has no name that a policy could keep."""
    before = None if window is None else (window - 1, 0)
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=True, local_window_size=before, implementation="cudnn"
    )


def _blockwise(
    length: int, ways: int, window: int | None, q: jax.Array, k: jax.Array, v: jax.Array
) -> jax.Array:
    return blockwise(q, k, v, zigzag.own_positions(length, ways), window)
