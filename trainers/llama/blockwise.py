"""Flash attention in plain JAX, forward and backward, for any platform.

b sequences, T queries of this chip, S keys, K kv heads, G query heads a kv head, H head_dim
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

MOST_KEYS = 512  # in a block
LEAST = -1e30  # a finite start of the maximum: a query may see no key of the first blocks

Three = tuple[jax.Array, jax.Array, jax.Array]
Saved = tuple[jax.Array, ...]


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def blockwise(
    q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, window: int | None = None
) -> jax.Array:
    """Causal attention of q [b, T, N, H], at `positions` [T], to k and v [b, S, K, H].

    With a `window`, a query sees that many positions: its own and those before it.
    """
    return _forward(q, k, v, positions, window)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, window: int | None
) -> tuple[jax.Array, Saved]:
    """One pass over blocks of keys with a running softmax: maximum, sum, weighted values."""
    grouped = _grouped(q, k.shape[2])
    b, t, kv, g, h = grouped.shape

    def step(carry: Three, block: Three) -> tuple[Three, None]:
        top, total, out = carry
        keys, values, places = block
        scores = _scores(grouped, keys, positions, places, window)  # [b, K, G, T, B]
        new_top = jnp.maximum(top, scores.max(-1))
        shrink, weights = jnp.exp(top - new_top), jnp.exp(scores - new_top[..., None])
        added = _dot("bkgts,bskh->bkgth", weights.astype(v.dtype), values)
        total = total * shrink + weights.sum(-1)
        return (new_top, total, out * shrink[..., None] + added), None

    rows = (b, kv, g, t)
    zero = jnp.zeros(rows, jnp.float32)
    start = (jnp.full(rows, LEAST), zero, jnp.zeros((*rows, h), jnp.float32))
    (top, total, out), _ = jax.lax.scan(step, start, _blocks(k, v))
    out = (out / total[..., None]).transpose(0, 3, 1, 2, 4).reshape(q.shape).astype(q.dtype)
    out = checkpoint_name(out, "attention")
    log_sum = checkpoint_name(top + jnp.log(total), "attention")
    return out, (q, k, v, positions, out, log_sum)


def _backward(
    window: int | None, saved: Saved, d_out: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    """One pass over the same blocks; the weights are made again from the log-sum-exp."""
    q, k, v, positions, out, log_sum = saved
    grouped, d_grouped = _grouped(q, k.shape[2]), _grouped(d_out, k.shape[2])
    dot_out = _dot("btkgh,btkgh->bkgt", d_grouped, _grouped(out, k.shape[2]))
    scale = q.shape[-1] ** -0.5

    def step(dq: jax.Array, block: Three) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        keys, values, places = block
        weights = jnp.exp(_scores(grouped, keys, positions, places, window) - log_sum[..., None])
        d_values = _dot("bkgts,btkgh->bskh", weights.astype(v.dtype), d_grouped)
        d_weights = _dot("btkgh,bskh->bkgts", d_grouped, values)
        d_scores = (weights * (d_weights - dot_out[..., None]) * scale).astype(q.dtype)
        dq = dq + _dot("bkgts,bskh->btkgh", d_scores, keys)
        d_keys = _dot("bkgts,btkgh->bskh", d_scores, grouped)
        return dq, (d_keys.astype(k.dtype), d_values.astype(v.dtype))

    start = jnp.zeros(grouped.shape, jnp.float32)
    dq, (dk, dv) = jax.lax.scan(step, start, _blocks(k, v))
    return dq.reshape(q.shape).astype(q.dtype), _joined(dk, k), _joined(dv, v), None


blockwise.defvjp(_forward, _backward)


def _dot(formula: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(formula, x, y, preferred_element_type=jnp.float32)


def _scores(
    grouped: jax.Array,
    keys: jax.Array,
    positions: jax.Array,
    places: jax.Array,
    window: int | None,
) -> jax.Array:
    """Scaled scores [b, K, G, T, B]; minus infinity where the query does not see the key."""
    scores = _dot("btkgh,bskh->bkgts", grouped, keys) * keys.shape[-1] ** -0.5
    before = positions[:, None] - places
    seen = before >= 0 if window is None else (before >= 0) & (before < window)
    return jnp.where(seen, scores, -jnp.inf)


def _grouped(x: jax.Array, kv_heads: int) -> jax.Array:
    """[b, T, N, H] -> [b, T, K, G, H]"""
    b, t, n, h = x.shape
    return x.reshape(b, t, kv_heads, n // kv_heads, h)


def _blocks(k: jax.Array, v: jax.Array) -> Three:
    """Keys, values [S/B, b, B, K, H] and places [S/B, B], block after block."""
    b, length, kv, h = k.shape
    size = max(n for n in range(1, min(length, MOST_KEYS) + 1) if length % n == 0)

    def cut(x: jax.Array) -> jax.Array:
        return x.reshape(b, length // size, size, kv, h).swapaxes(0, 1)

    return cut(k), cut(v), jnp.arange(length).reshape(-1, size)


def _joined(blocks: jax.Array, like: jax.Array) -> jax.Array:
    """[S/B, b, B, K, H] -> [b, S, K, H]"""
    return blocks.swapaxes(0, 1).reshape(like.shape)
