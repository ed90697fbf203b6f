"""RMSNorm and LayerNorm, in fp32."""

import jax
import jax.numpy as jnp

from orchestrator.network.description import Norm
from trainers.llama.parameters import Parameters


def norm(kind: Norm | None, weights: Parameters, x: jax.Array) -> jax.Array:
    """x normalized over its last dimension; as it is where there is no norm."""
    if kind is None:
        return x
    wide = x.astype(jnp.float32)
    if kind.bias is not None:
        wide -= jnp.mean(wide, axis=-1, keepdims=True)
    mean_square = jnp.mean(wide**2, axis=-1, keepdims=True)
    return scaled(kind, weights, wide, mean_square).astype(x.dtype)


def norm_of_heads(
    kind: Norm, weights: Parameters, x: jax.Array, axes: tuple[str, ...]
) -> jax.Array:
    """x [b, S/s, heads/Y, H] normalized over all heads together, which these mesh axes split."""
    wide = x.astype(jnp.float32)
    of_chip = jnp.mean(wide**2, axis=(-2, -1), keepdims=True)
    mean_square = jax.lax.pmean(of_chip, axes)
    return scaled(kind, weights, wide, mean_square).astype(x.dtype)


def scaled(kind: Norm, weights: Parameters, wide: jax.Array, mean_square: jax.Array) -> jax.Array:
    normed = wide * jax.lax.rsqrt(mean_square + kind.epsilon)
    scale = weights[kind.scale.name]
    normed = normed * (scale + kind.offset if kind.offset else scale)
    return normed if kind.bias is None else normed + weights[kind.bias.name]
