"""Flash attention in plain JAX, forward and backward, for any platform.

b sequences, T queries of this chip, S keys, K kv heads, G query heads a kv head, H head_dim
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from orchestrator.network.description import Scores

MOST_KEYS = 512  # in a block
LEAST = -1e30  # a finite start of the maximum: a query may see no key of the first blocks

Three = tuple[jax.Array, jax.Array, jax.Array]
Blocks = tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]
Documents = tuple[jax.Array, jax.Array]  # numbers of the documents of queries and of keys
Saved = tuple[Any, ...]  # arrays; no sinks are None


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def blockwise(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    sinks: jax.Array | None,
    documents: Documents | None,
    kind: Scores,
) -> jax.Array:
    """Causal attention of q [b, T, N, H], at `positions` [T], to k and v [b, S, K, H].

    `sinks` [N] are scores of a place without a value. `documents` are the numbers of the documents
    of queries [b, T] and keys [b, S], which then see only their own.
    """
    return _forward(q, k, v, positions, sinks, documents, kind)[0]


def _forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    sinks: jax.Array | None,
    documents: Documents | None,
    kind: Scores,
) -> tuple[jax.Array, Saved]:
    """One pass over blocks of keys with a running softmax: maximum, sum, weighted values."""
    grouped = _grouped(q, k.shape[2])
    b, t, kv, g, _ = grouped.shape
    own = documents[0] if documents else None

    def step(carry: Three, block: Blocks) -> tuple[Three, None]:
        top, total, out = carry
        keys, values, places, theirs = block
        scores, _ = _scores(grouped, keys, positions, places, own, theirs, kind)  # [b, K, G, T, B]
        new_top = jnp.maximum(top, scores.max(-1))
        shrink, weights = jnp.exp(top - new_top), jnp.exp(scores - new_top[..., None])
        added = _dot("bkgts,bskh->bkgth", weights.astype(v.dtype), values)
        total = total * shrink + weights.sum(-1)
        return (new_top, total, out * shrink[..., None] + added), None

    top = jnp.full((b, kv, g, t), LEAST)
    total = jnp.zeros((b, kv, g, t), jnp.float32)
    if sinks is not None:
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
    kind: Scores, saved: Saved, d_out: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None, jax.Array | None, None]:
    """One pass over the same blocks; the weights are made again from the log-sum-exp."""
    q, k, v, positions, sinks, documents, out, log_sum = saved
    own = documents[0] if documents else None
    grouped, d_grouped = _grouped(q, k.shape[2]), _grouped(d_out, k.shape[2])
    dot_out = _dot("btkgh,btkgh->bkgt", d_grouped, _grouped(out, k.shape[2]))

    def step(dq: jax.Array, block: Blocks) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        keys, values, places, theirs = block
        scores, slope = _scores(grouped, keys, positions, places, own, theirs, kind)
        weights = jnp.exp(scores - log_sum[..., None])
        d_values = _dot("bkgts,btkgh->bskh", weights.astype(v.dtype), d_grouped)
        d_weights = _dot("btkgh,bskh->bkgts", d_grouped, values)
        d_scores = (weights * (d_weights - dot_out[..., None]) * slope).astype(q.dtype)
        dq = dq + _dot("bkgts,bskh->btkgh", d_scores, keys)
        d_keys = _dot("bkgts,btkgh->bskh", d_scores, grouped)
        return dq, (d_keys.astype(k.dtype), d_values.astype(v.dtype))

    start = jnp.zeros(grouped.shape, jnp.float32)
    dq, (dk, dv) = jax.lax.scan(step, start, _blocks(k, v, documents))
    d_sinks = None
    if sinks is not None:
        weights = jnp.exp(_by_group(sinks, k.shape[2]) - log_sum)
        d_sinks = -(weights * dot_out).sum((0, 3)).reshape(sinks.shape).astype(sinks.dtype)
    return dq.reshape(q.shape).astype(q.dtype), _joined(dk, k), _joined(dv, v), None, d_sinks, None


blockwise.defvjp(_forward, _backward)


def _by_group(sinks: jax.Array, kv_heads: int) -> jax.Array:
    """[N] -> [K, G, 1] in fp32"""
    return sinks.astype(jnp.float32).reshape(kv_heads, -1, 1)


def _dot(formula: str, x: jax.Array, y: jax.Array) -> jax.Array:
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
    """Scores [b, K, G, T, B], minus infinity where the query does not see the key; and how much
    they change with the product of query and key.
    """
    scores = _dot("btkgh,bskh->bkgts", grouped, keys) * kind.scale
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


def _blocks(k: jax.Array, v: jax.Array, documents: Documents | None) -> Blocks:
    """Keys, values [S/B, b, B, K, H], places [S/B, B] and documents [S/B, b, B], block after
    block.
    """
    b, length, *_ = k.shape
    size = max(n for n in range(1, min(length, MOST_KEYS) + 1) if length % n == 0)

    def cut(x: jax.Array) -> jax.Array:
        return x.reshape(b, length // size, size, *x.shape[2:]).swapaxes(0, 1)

    theirs = cut(documents[1]) if documents else None
    return cut(k), cut(v), jnp.arange(length).reshape(-1, size), theirs


def _joined(blocks: jax.Array, like: jax.Array) -> jax.Array:
    """[S/B, b, B, K, H] -> [b, S, K, H]"""
    return blocks.swapaxes(0, 1).reshape(like.shape)
