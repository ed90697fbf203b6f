"""Causal attention of a chip's own queries to all keys, never [S, S] in memory.

One interface, three kernels, by platform. Queries are this chip's shard in zigzag order, keys and
values the whole sequence in natural order:

attend(q [b, S/s, N/Y, H], k [b, S, K/Y, H], v, sinks, documents) -> [b, S/s, N/Y, H]

`sinks` [N/Y] are scores of a place without a value. `documents` are those of queries [b, S/s] and
keys [b, S], which then see only their own. The result and its log-sum-exp are named `attention`,
for rematerialization.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu import splash_attention as kernels

from orchestrator.errors import SpecError
from orchestrator.network.description import Scores
from orchestrator.planning.kernels import LANES, MOST_KEYS, attention_block, block_sizes, head_bytes
from trainers.llama.collectives import SEQUENCE, all_gather

# Flash attention in plain JAX, forward and backward, for any platform

_LEAST = -1e30  # a finite start of the maximum: a query may see no key of the first blocks

_Blocks = tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]
Documents = tuple[jax.Array, jax.Array]  # numbers of the documents of queries and of keys
_Saved = tuple[Any, ...]  # arrays; no sinks are None


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def blockwise(*operands: Any) -> jax.Array:
    """Causal attention of q [b, T, N, H], at `positions` [T], to k and v [b, S, K, H]."""
    return _forward(*operands)[0]


def _forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    sinks: jax.Array | None,
    documents: Documents | None,
    kind: Scores,
) -> tuple[jax.Array, _Saved]:
    """One pass over blocks of keys with a running softmax: maximum, sum, weighted values."""
    grouped = _grouped(q, k.shape[2])
    b, t, kv, g, _ = grouped.shape
    own = documents[0] if documents else None

    def step(carry: _Saved, block: _Blocks) -> tuple[_Saved, None]:
        top, total, out = carry
        keys, values, places, theirs = block
        scores, _ = _scores(grouped, keys, positions, places, own, theirs, kind)  # [b, K, G, T, B]
        # m' = max(m, max s), l' = l e^(m - m') + sum e^(s - m'), o' = o e^(m - m') + e^(s - m') v
        new_top = jnp.maximum(top, scores.max(-1))
        shrink, weights = jnp.exp(top - new_top), jnp.exp(scores - new_top[..., None])
        added = dot("bkgts,bskh->bkgth", weights.astype(v.dtype), values)
        total = total * shrink + weights.sum(-1)
        return (new_top, total, out * shrink[..., None] + added), None

    top = jnp.full((b, kv, g, t), _LEAST)
    total = jnp.zeros((b, kv, g, t), jnp.float32)
    if sinks is not None:  # a score without a value
        top = jnp.broadcast_to(_by_group(sinks, kv), top.shape)
        total = jnp.ones_like(total)
    start = (top, total, jnp.zeros((b, kv, g, t, v.shape[-1]), jnp.float32))
    (top, total, out), _ = jax.lax.scan(step, start, _blocks(k, v, documents))
    out = (out / total[..., None]).transpose(0, 3, 1, 2, 4)
    out = out.reshape(*q.shape[:-1], v.shape[-1]).astype(q.dtype)
    out = checkpoint_name(out, "attention")
    log_sum = checkpoint_name(top + jnp.log(total), "attention")
    return out, (q, k, v, positions, sinks, documents, out, log_sum)


def _backward(
    kind: Scores, saved: _Saved, d_out: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None, jax.Array | None, None]:
    """One pass over the same blocks; the weights are computed again from the log-sum-exp."""
    q, k, v, positions, sinks, documents, out, log_sum = saved
    own = documents[0] if documents else None
    grouped, d_grouped = _grouped(q, k.shape[2]), _grouped(d_out, k.shape[2])
    dot_out = dot("btkgh,btkgh->bkgt", d_grouped, _grouped(out, k.shape[2]))

    def step(dq: jax.Array, block: _Blocks) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        keys, values, places, theirs = block
        scores, slope = _scores(grouped, keys, positions, places, own, theirs, kind)
        # p = e^(s - log sum), dv = p^T do, ds = p (do v^T - do . o), dq = ds k, dk = ds^T q
        weights = jnp.exp(scores - log_sum[..., None])
        d_values = dot("bkgts,btkgh->bskh", weights.astype(v.dtype), d_grouped)
        d_weights = dot("btkgh,bskh->bkgts", d_grouped, values)
        d_scores = (weights * (d_weights - dot_out[..., None]) * slope).astype(q.dtype)
        dq = dq + dot("bkgts,bskh->btkgh", d_scores, keys)
        d_keys = dot("bkgts,btkgh->bskh", d_scores, grouped)
        return dq, (d_keys.astype(k.dtype), d_values.astype(v.dtype))

    start = jnp.zeros(grouped.shape, jnp.float32)
    dq, (dk, dv) = jax.lax.scan(step, start, _blocks(k, v, documents))
    d_sinks = None
    if sinks is not None:
        weights = jnp.exp(_by_group(sinks, k.shape[2]) - log_sum)
        d_sinks = -(weights * dot_out).sum((0, 3)).reshape(sinks.shape).astype(sinks.dtype)
    dq = dq.reshape(q.shape).astype(q.dtype)
    # [S/B, b, B, K, H] -> [b, S, K, H]
    dk, dv = (d.swapaxes(0, 1).reshape(x.shape) for d, x in ((dk, k), (dv, v)))
    return dq, dk, dv, None, d_sinks, None


blockwise.defvjp(_forward, _backward)


def _by_group(sinks: jax.Array, kv_heads: int) -> jax.Array:
    """[N] -> [K, G, 1] in fp32"""
    return sinks.astype(jnp.float32).reshape(kv_heads, -1, 1)


def dot(formula: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(formula, x, y, preferred_element_type=jnp.float32)


def _scores(
    grouped: jax.Array,
    keys: jax.Array,
    positions: jax.Array,
    places: jax.Array,
    own: jax.Array | None,
    theirs: jax.Array | None,
    kind: Scores,
) -> tuple[jax.Array, jax.Array | float]:
    """Scores [b, K, G, T, B], -inf for unseen keys, and their slope in the product of q and k."""
    scores = dot("btkgh,bskh->bkgts", grouped, keys) * kind.scale
    slope: jax.Array | float = kind.scale
    if kind.cap is not None:
        capped = jnp.tanh(scores / kind.cap)
        scores, slope = kind.cap * capped, kind.scale * (1 - capped**2)
    before = positions[:, None] - places
    seen = before >= 0
    if kind.window is not None:
        seen &= before < kind.window
    if own is not None and theirs is not None:
        seen = (seen & (own[:, :, None] == theirs[:, None]))[:, None, None]  # [b, 1, 1, T, B]
    return jnp.where(seen, scores, -jnp.inf), slope


def _grouped(x: jax.Array, kv_heads: int) -> jax.Array:
    """[b, T, N, H] -> [b, T, K, G, H]"""
    b, t, n, h = x.shape
    return x.reshape(b, t, kv_heads, n // kv_heads, h)


def _blocks(k: jax.Array, v: jax.Array, documents: Documents | None) -> _Blocks:
    """Keys, values [S/B, b, B, K, H], places [S/B, B] and documents [S/B, b, B] by blocks."""
    b, length, *_ = k.shape
    size = max(n for n in range(1, min(length, MOST_KEYS) + 1) if length % n == 0)

    def cut(x: jax.Array) -> jax.Array:
        return x.reshape(b, length // size, size, *x.shape[2:]).swapaxes(0, 1)

    theirs = cut(documents[1]) if documents else None
    return cut(k), cut(v), jnp.arange(length).reshape(-1, size), theirs


# The order of positions over `sequence`, so that causal work is even


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


# Splash attention, the TPU's kernel, for a shard in zigzag order


@dataclass(frozen=True)
class _ZigzagMask(kernels.Mask):
    """Causal, with a window or without; row j is the query at the j-th place of the order."""

    # The kernel computes such a mask from `q_sequence`, the position of each row, by
    # `mask_function`: nothing is loaded, and only blocks that some query sees are visited.

    length: int
    ways: int
    window: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.length

    @cached_property
    def q_sequence(self) -> np.ndarray:
        return order(self.length, self.ways)

    def mask_function(self, query: Any, key: Any) -> Any:
        if self.window is None:
            return query >= key
        return (query >= key) & (query - key < self.window)

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
        keys = np.arange(*index[1].indices(self.length))
        return np.asarray(self.mask_function(self.q_sequence[index[0], None], keys))


def _splash(
    length: int, ways: int, kind: Scores, *, interpret: bool = False
) -> Callable[..., jax.Array]:
    if not attention_block(length, ways, kind.window, 0):
        raise SpecError(
            f"splash attention takes {LANES} positions at a time:"
            f" {length // ways} a chip do not divide"
        )

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, *optional: Any) -> jax.Array:
        sinks, documents = optional
        head = head_bytes((q.shape[-1], v.shape[-1]), q.dtype.itemsize)
        mask = kernels.MultiHeadMask([_ZigzagMask(length, ways, kind.window)] * q.shape[2])
        kernel = kernels.make_splash_mha(
            mask,
            head_shards=1,
            q_seq_shards=ways,
            block_sizes=kernels.BlockSizes(**block_sizes(length, ways, kind.window, head)),
            residual_checkpoint_name="attention",
            attn_logits_soft_cap=kind.cap,
            interpret=interpret,
        )
        if ways > 1:
            kernel = jax.tree.map(own_part, kernel)

        def attend_sequence(
            q: jax.Array, k: jax.Array, v: jax.Array, documents: Documents | None
        ) -> jax.Array:
            ids = kernels.SegmentIds(*documents) if documents else None
            return jnp.asarray(kernel(q, k, v, segment_ids=ids, sinks=sinks))

        q, k, v = (x.swapaxes(1, 2) for x in (q * kind.scale, k, v))
        return jax.vmap(attend_sequence)(q, k, v, documents).swapaxes(1, 2)

    def own_part(array: jax.Array) -> jax.Array:
        """This chip's queries of an array that describes the mask."""
        axis = 0 if array.ndim == 1 else 1  # positions [S], blocks [1, query blocks, key blocks]
        size = array.shape[axis] // ways
        start = jax.lax.axis_index(SEQUENCE) * size
        return jax.lax.dynamic_slice_in_dim(array, start, size, axis)

    return attend


Attend = Callable[[jax.Array, jax.Array, jax.Array, jax.Array | None, Documents | None], jax.Array]


def attention(platform: str, compute: jnp.dtype, length: int, ways: int, kind: Scores) -> Attend:
    """Return a platform's kernel for sequences of `length` in `ways` shards. cuDNN has no fp32,
    zigzag shards, caps, sinks, documents or unequal heads: NVIDIA then uses `blockwise`.
    """
    if platform == "tpu":
        return _splash(length, ways, kind)

    def plain(q: jax.Array, k: jax.Array, v: jax.Array, *optional: Any) -> jax.Array:
        # A mask that depends on no data would be made for all blocks at once, and kept.
        positions, q = jax.lax.optimization_barrier((own_positions(length, ways), q))
        return blockwise(q, k, v, positions, *optional, kind)

    if platform == "gpu" and compute == jnp.bfloat16 and ways == 1 and kind.cap is None:
        return partial(_cudnn, kind, plain)
    return plain


def _cudnn(
    kind: Scores, otherwise: Attend, q: jax.Array, k: jax.Array, v: jax.Array, *optional: Any
) -> jax.Array:
    """cuDNN's flash attention. Its log-sum-exp has no name that a policy could keep."""
    if any(part is not None for part in optional) or q.shape[-1] != v.shape[-1]:
        return otherwise(q, k, v, *optional)
    window = None if kind.window is None else (kind.window - 1, 0)
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=True, scale=kind.scale, local_window_size=window, implementation="cudnn"
    )
