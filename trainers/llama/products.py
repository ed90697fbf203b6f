"""Products in fp8, each scaled by what its factors hold now: e4m3 in the forward pass, and e5m2 for
the gradients that come back. They add up in fp32, and what comes out is rounded once.

A scale is a power of two, so it rounds nothing itself, and each chip scales the part of a tensor
that it has. A number near the middle of two fp8 values may round either way on another mesh, and
what it moves makes others do so: gradients of two meshes differ by less than their own rounding.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

FORWARD, GRADIENT = jnp.float8_e4m3fn, jnp.float8_e5m2
# The power of two that a tensor's largest number is brought to: the last but one of the type.
_TOP = {FORWARD: 2.0**7, GRADIENT: 2.0**14}
_LEAST = 2.0**-60  # tensors without a larger number are not scaled up further
_EXPONENT = 0x7F800000  # the bits of an fp32 number that hold its power of two

_Axes = tuple[Sequence[int], Sequence[int]]  # of both factors


class _Factor(NamedTuple):
    """A factor as it multiplies, and in a narrow type the power of two that one stands for."""

    values: jax.Array
    unit: jax.Array | None = None


def factor(x: jax.Array, kind: Any | None) -> _Factor:
    """x as it is, or in a narrow type, its largest number here near the largest of the type."""
    if kind is None:
        return _Factor(x)
    most = jnp.maximum(jnp.max(jnp.abs(x)).astype(jnp.float32), _LEAST)
    bits = jax.lax.bitcast_convert_type(most, jnp.int32) & _EXPONENT
    unit = jax.lax.bitcast_convert_type(bits, jnp.float32) / _TOP[kind]
    return _Factor((x * (1 / unit).astype(x.dtype)).astype(kind), unit)


def multiply(x: _Factor, y: _Factor, axes: _Axes, dtype: Any, batch: int = 0) -> jax.Array:
    """Their product over these axes, of each of the first `batch` dimensions, rounded once."""
    if x.unit is None or y.unit is None:
        return jnp.tensordot(x.values, y.values, axes)
    # Numbers times powers of two need no rounding, so the sums in fp32 may be rounded before.
    every = tuple(range(batch))
    product = jax.lax.dot_general(
        x.values, y.values, (axes, (every, every)), preferred_element_type=dtype
    )
    return product * (x.unit * y.unit).astype(dtype)


def matmul(x: jax.Array, weight: jax.Array, *, narrow: bool) -> jax.Array:
    """x [..., D] times a weight [D, F]; or of each expert, [E, rows, D] times [E, D, F]."""
    return _narrow_matmul(x, weight) if narrow else jnp.matmul(x, weight)


@jax.custom_vjp
def _narrow_matmul(x: jax.Array, weight: jax.Array) -> jax.Array:
    experts, factors = weight.ndim - 2, (factor(x, FORWARD), factor(weight, FORWARD))
    return multiply(*factors, ((x.ndim - 1,), (experts,)), x.dtype, experts)


def _backward(
    saved: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, weight = saved
    experts, last, rows = weight.ndim - 2, x.ndim - 1, tuple(range(weight.ndim - 2, x.ndim - 1))
    arrived = factor(gradient, GRADIENT)
    d_x = multiply(
        arrived, factor(weight, FORWARD), ((last,), (weight.ndim - 1,)), x.dtype, experts
    )
    d_weight = multiply(factor(x, FORWARD), arrived, (rows, rows), weight.dtype, experts)
    return d_x, d_weight


_narrow_matmul.defvjp(lambda x, weight: (_narrow_matmul(x, weight), (x, weight)), _backward)
