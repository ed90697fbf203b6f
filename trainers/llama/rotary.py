"""Rotary positions: the pairs of a head's vector turn with the position.

Stretched to longer sequences by the rules of Llama 3.1 and YaRN (arXiv 2309.00071).
"""

from math import ceil, floor, log, pi

import jax
import jax.numpy as jnp
import numpy as np

from orchestrator.network.description import Rotary
from orchestrator.network.rotary import EXCHANGE, yarn_growth
from orchestrator.types.model import RopeScaling


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
