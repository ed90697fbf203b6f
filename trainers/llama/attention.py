"""Trainer llama: causal attention of a chip's own queries to all keys, never [S, S] in memory.

One interface, three kernels; the platform of the mesh decides. Queries are this chip's shard in
zigzag order, keys and values the whole sequence in natural order:

    attend(q [b, S/s, N/Y, H], k [b, S, K/Y, H], v [b, S, K/Y, H]) -> [b, S/s, N/Y, H]

Each kernel names its result `attention`, and its log-sum-exp too, for rematerialization to keep.
"""

from collections.abc import Callable
from functools import partial

import jax
from jax.ad_checkpoint import checkpoint_name

from trainers.llama import zigzag
from trainers.llama.blockwise import blockwise
from trainers.llama.splash import splash

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def attention(platform: str, length: int, ways: int) -> Attend:
    """The kernel for a platform, for sequences of `length` in `ways` shards.

    cuDNN has no mask for a shard in zigzag order, so NVIDIA shares `blockwise` where ways > 1.
    """
    if platform == "tpu":
        return splash(length, ways)
    if platform in ("gpu", "cuda") and ways == 1:
        return cudnn
    return partial(_blockwise, length, ways)


def cudnn(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """cuDNN's flash attention. Its log-sum-exp has no name: `remat.policy` knows its primitive."""
    out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    return checkpoint_name(out, "attention")


def _blockwise(length: int, ways: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return blockwise(q, k, v, zigzag.here(length, ways))
