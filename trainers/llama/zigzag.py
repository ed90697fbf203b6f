"""The order of positions over `sequence`, so that causal work is even.

A sequence is cut into 2 s chunks; of s shards, shard i has chunks i and 2 s - 1 - i. Every shard
then attends to the same number of keys. With one shard the order is the natural one.
"""

import jax
import jax.numpy as jnp
import numpy as np

from trainers.llama.axes import SEQUENCE
from trainers.llama.collectives import all_gather


def order(length: int, ways: int) -> np.ndarray:
    """The position at each place: shard after shard, two chunks each."""
    if ways == 1:
        return np.arange(length, dtype=np.int32)
    chunks = np.arange(length, dtype=np.int32).reshape(2 * ways, -1)
    pairs = np.stack([chunks[:ways], chunks[: ways - 1 : -1]], axis=1)
    return pairs.reshape(length)


def own_positions(length: int, ways: int) -> jax.Array:
    """Positions of this chip's shard, int32 [S/s]."""
    shards = jnp.asarray(order(length, ways).reshape(ways, -1))
    return shards[jax.lax.axis_index(SEQUENCE)] if ways > 1 else shards[0]


def gather(x: jax.Array, ways: int) -> jax.Array:
    """Shards [b, S/s, ...] of all chips along `sequence` -> [b, S, ...] in natural order."""
    if ways == 1:
        return x
    batch, shard, *rest = x.shape
    pairs = all_gather(x, SEQUENCE, 1).reshape(batch, ways, 2, shard // 2, *rest)
    chunks = jnp.concatenate([pairs[:, :, 0], pairs[:, ::-1, 1]], axis=1)
    return chunks.reshape(batch, ways * shard, *rest)
