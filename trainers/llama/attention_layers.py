"""Grouped-query attention, as each chip runs it.

b sequences, S positions split s ways over `sequence`, N heads, K kv heads, H head_dim;
Y ways of `tensor` (kv heads: K/Y, at least one)
"""

from math import ceil, floor, log, pi

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from orchestrator.network.attention import EXCHANGE, LATENT, yarn_growth
from orchestrator.network.description import Attention, LatentAttention, Matmul, Norm, Rotary
from orchestrator.values.model import RopeScaling
from trainers.llama import attention_kernels
from trainers.llama.collectives import TENSOR, all_gather, mesh_axes
from trainers.llama.mlp import with_biases
from trainers.llama.parameters import Parameters, norm, norm_of_heads
from trainers.llama.ring import in_arrival_order, in_order, matmul_reduce_scatter
from trainers.llama.runtime import Runtime

# Rotary positions: the pairs of a head's vector turn with the position.


def rotate(kind: Rotary, x: jax.Array, positions: jax.Array) -> jax.Array:
    """x [b, S/s, heads, H], its first `width` numbers turned: half of them with the other half."""
    angles = positions[:, None] * frequencies(kind)  # [S/s, width / 2]
    cos, sin = (f(angles) * magnitude(kind.scaling) for f in (jnp.cos, jnp.sin))
    both = jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)
    turning, rest = x[..., : kind.width], x[..., kind.width :]
    return jnp.concatenate([_turned(turning, *(one[:, None] for one in both)), rest], axis=-1)


@jax.custom_vjp
def _turned(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """x cos + x' sin, in fp32, where x' has the halves of x in the other order."""
    wide = x.astype(jnp.float32)
    return (wide * cos + _halves_exchanged(x) * sin).astype(x.dtype)


def _turned_forward(
    x: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _turned(x, cos, sin), (cos, sin)


def _turned_backward(
    saved: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, None, None]:
    """The gradient turns back, by the same angles."""
    cos, sin = saved
    return _turned(gradient, cos, -sin), None, None


_turned.defvjp(_turned_forward, _turned_backward)


def _halves_exchanged(x: jax.Array) -> jax.Array:
    """By a matrix of ones and zeros, and exact: halves of a head of 128 are half of a TPU's lanes,
    and arrays of halves cost copies (docs/proof.md).
    """
    width = x.shape[-1]
    exchange = np.roll(np.eye(width), width // 2, axis=0).astype(x.dtype)
    with jax.named_scope(EXCHANGE):
        return jnp.einsum(
            "...h,hi->...i",
            x,
            exchange,
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )


def frequencies(kind: Rotary) -> jax.Array:
    """Radians that each pair turns from one position to the next."""
    exponents, scaling = jnp.arange(0, kind.width, 2) / kind.width, kind.scaling
    plain = kind.theta**-exponents
    if scaling is None:
        return plain
    share = stretched_share(kind, scaling)
    return plain * np.float32(1 - share + share / scaling.factor)


def stretched_share(kind: Rotary, scaling: RopeScaling) -> np.ndarray:
    """How much of each frequency is stretched: all of it (one), none of it (zero), or a part."""
    plain = kind.theta ** -(np.arange(0, kind.width, 2) / kind.width)
    if scaling.kind == "linear":
        return np.ones_like(plain)
    if scaling.kind == "llama3":
        turns = scaling.original_length * plain / (2 * pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        return 1 - np.clip((turns - low) / (high - low), 0, 1)
    first, last = (
        pair_that_turns(kind, scaling, n) for n in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, kind.width - 1)
    width = max(last - first, 1e-3)
    return np.clip((np.arange(kind.width // 2) - first) / width, 0, 1)


def pair_that_turns(kind: Rotary, scaling: RopeScaling, times: float) -> float:
    """The pair that turns so many times in the original length."""
    return kind.width * log(scaling.original_length / (times * 2 * pi)) / (2 * log(kind.theta))


def magnitude(scaling: RopeScaling | None) -> float:
    """What turned vectors are multiplied by."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return yarn_growth(scaling.factor)


QueriesKeysValues = tuple[jax.Array, jax.Array, jax.Array]


def grouped_query_attention(
    runtime: Runtime, kind: Attention, layer: Parameters, y: jax.Array
) -> jax.Array:
    """The attention's addition to the stream. y [b, S/(s Y), D]"""
    return attended(runtime, kind, layer, queries_keys_values(runtime, kind, layer, y))


def attended(
    runtime: Runtime, kind: Attention, layer: Parameters, heads: QueriesKeysValues
) -> jax.Array:
    """What the output projection makes of the attention of queries, keys and values, by the names
    that a policy knows.
    """
    q, k, v = map(checkpoint_name, heads, ("query", "key", "value"))
    sinks = layer[kind.sinks.name] if kind.sinks else None
    attend = runtime.kernels[kind.scores]
    y = attend(
        q,
        attention_kernels.gather(k, runtime.ways),
        attention_kernels.gather(v, runtime.ways),
        sinks,
        runtime.documents,
    )
    output = runtime.gather_rows(layer[kind.output.weight.name], 2)  # [D, N/Y, H]
    y = matmul_reduce_scatter(in_arrival_order(y), output)
    return y if kind.output.bias is None else y + layer[kind.output.bias.name].astype(y.dtype)


def queries_keys_values(
    runtime: Runtime, kind: Attention, layer: Parameters, y: jax.Array
) -> QueriesKeysValues:
    """All positions of the tensor group: [b, S/s, N/Y, H], [b, S/s, K/Y, H] twice."""
    shards = [layer[matmul.weight.name] for matmul in kind.inputs]  # [D/X, heads of each, H]
    products = with_biases(kind.inputs, layer, runtime.products(y, shards))
    q, k, v = map(in_order, products)
    positions = attention_kernels.own_positions(runtime.plan.batch.length, runtime.ways)
    q = rotate(kind.rotary, head_norm(kind.query_norm, layer, q, "heads"), positions)
    k = rotate(kind.rotary, head_norm(kind.key_norm, layer, k, "kv_heads"), positions)
    return q, k, v


def head_norm(kind: Norm | None, layer: Parameters, x: jax.Array, heads: str) -> jax.Array:
    """Queries or keys, each head normalized by itself, or all heads together."""
    if kind is not None and len(kind.scale.dimensions) == 2:
        return norm_of_heads(kind, layer, x, mesh_axes(heads))
    return norm(kind, layer, x)


# Multi-head latent attention, as each chip runs it.


def latent_attention(
    runtime: Runtime, kind: LatentAttention, layer: Parameters, y: jax.Array
) -> jax.Array:
    """The attention's addition to the stream. y [b, S/(s Y), D]"""
    return attended(runtime, kind, layer, latent_queries_keys_values(runtime, kind, layer, y))


def latent_queries_keys_values(
    runtime: Runtime, kind: LatentAttention, layer: Parameters, y: jax.Array
) -> QueriesKeysValues:
    """All positions of the tensor group: [b, S/s, N/Y, H] twice, [b, S/s, N/Y, V]."""
    query, key, value = kind.inputs
    *of_queries, of_keys_and_values, turned = (
        checkpoint_name(y @ runtime.gather_matrix(layer[matmul.weight.name], 0), LATENT)
        for matmul in kind.latents
    )
    source = norm(kind.query_latent_norm, layer, of_queries[0] if of_queries else y)
    [q] = heads_of(runtime, layer, source, query)
    source = norm(kind.kv_latent_norm, layer, of_keys_and_values)
    k, v = heads_of(runtime, layer, source, key, value)
    positions = attention_kernels.own_positions(runtime.plan.batch.length, runtime.ways)
    shared = rotate(kind.rotary, all_gather(turned, TENSOR, 1)[:, :, None], positions)
    k = jnp.concatenate([k, jnp.broadcast_to(shared, (*k.shape[:-1], shared.shape[-1]))], axis=-1)
    still, turning = q[..., : kind.nope], q[..., kind.nope :]
    q = jnp.concatenate([still, rotate(kind.rotary, turning, positions)], axis=-1)
    return q, k, v


def heads_of(
    runtime: Runtime, layer: Parameters, source: jax.Array, *matmuls: Matmul
) -> list[jax.Array]:
    """Heads [b, S/s, N/Y, H] of all positions, from sources [b, S/(s Y), R] of this chip's."""
    shards = [layer[matmul.weight.name] for matmul in matmuls]  # [R/X, N/Y, H]
    return [in_order(product) for product in runtime.products(source, shards, joined=2)]
