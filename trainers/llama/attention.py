"""Causal attention of a chip's own queries to all keys, never [S, S] in memory.

One interface, three kernels; the platform of the mesh selects one. Queries are this chip's shard in
zigzag order, keys and values the whole sequence in natural order:

    attend(q [b, S/s, N/Y, H], k [b, S, K/Y, H], v [b, S, K/Y, H], sinks, documents)
        -> [b, S/s, N/Y, H]

`sinks` [N/Y] are scores of a place without a value, or None. `documents` are the numbers of the
documents of queries [b, S/s] and keys [b, S], which then see only their own; or None.

The result and its log-sum-exp are named `attention`, for rematerialization to keep.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from orchestrator.network.description import Scores
from trainers.llama import zigzag
from trainers.llama.blockwise import Documents, blockwise
from trainers.llama.splash import splash

Attend = Callable[[jax.Array, jax.Array, jax.Array, jax.Array | None, Documents | None], jax.Array]


def attention(platform: str, compute: jnp.dtype, length: int, ways: int, kind: Scores) -> Attend:
    """The kernel for a platform and compute type, for sequences of `length` in `ways` shards.

    cuDNN has no fp32, no mask for a shard in zigzag order, no cap, no sinks, no documents, and only
    heads of one width; NVIDIA then uses `blockwise`.
    """
    if platform == "tpu":
        return splash(length, ways, kind)
    plain = partial(_blockwise, length, ways, kind)
    if platform == "gpu" and compute == jnp.bfloat16 and ways == 1 and kind.cap is None:
        return partial(cudnn, kind, plain)
    return plain


def cudnn(
    kind: Scores,
    otherwise: Attend,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sinks: jax.Array | None,
    documents: Documents | None,
) -> jax.Array:
    """cuDNN's flash attention. Its log-sum-exp has no name that a policy could keep."""
    if sinks is not None or documents is not None or q.shape[-1] != v.shape[-1]:
        return otherwise(q, k, v, sinks, documents)
    window = None if kind.window is None else (kind.window - 1, 0)
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        is_causal=True,
        scale=kind.scale,
        local_window_size=window,
        implementation="cudnn",
    )


def _blockwise(
    length: int,
    ways: int,
    kind: Scores,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sinks: jax.Array | None,
    documents: Documents | None,
) -> jax.Array:
    return blockwise(q, k, v, zigzag.own_positions(length, ways), sinks, documents, kind)
