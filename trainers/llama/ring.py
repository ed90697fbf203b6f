"""Collective matmuls: transfers over `tensor` overlap with the products.

b sequences, Y chips in the ring, each with t positions of its own; T = Y t; F one dimension of a
weight or several, as those of heads

A product with a gathered input starts with the chip's own positions while its neighbours' are on
their way. A product with a reduce-scatter sends partial sums while it computes the rest. Both
directions of the ring are used, Y/2 hops each. All hops but the first and the last are one loop, or
lists of senders and receivers would be most of the program on thousands of chips. A round is two
hops: what the first writes is not copied for the second.

Positions stay in the order of arrival, [Y, b, t, ...]: the chip's own, then those of the chips k
behind and k ahead for k = 1, 2, ..., last the opposite chip's where Y is even. Each hop writes into
one array, so that a weight's gradient is one product of whole arrays.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from trainers.llama.collectives import TENSOR, line
from trainers.llama.products import FORWARD, GRADIENT, factor, multiply

_HOPS = 2  # in a round of the loop over hops

_Pair = tuple[jax.Array, jax.Array]  # from behind, from ahead
_Whole = tuple[jax.Array, jax.Array]  # everyone's positions, and their products
_Types = tuple[Any, Any]  # that both factors are narrowed to; None where they stay as they are


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def all_gather_matmul(x: jax.Array, weight: jax.Array, narrow: bool) -> jax.Array:
    """Everyone's positions times a weight: x [b, t, D], weight [D, F] -> [Y, b, t, F]. `narrow`:
    it and the gradients multiply in fp8.
    """
    return _gathered_forward(x, weight, narrow)[0]


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul_reduce_scatter(x: jax.Array, weight: jax.Array, narrow: bool) -> jax.Array:
    """The sum of all products for own positions: x [Y, b, t, F], weight [D, F] -> [b, t, D]."""
    forward, _ = _types(narrow)
    return _multiply_and_scatter(x, weight, (forward, forward))


def _types(narrow: bool) -> tuple[Any, Any]:
    return (FORWARD, GRADIENT) if narrow else (None, None)


def _gathered_forward(x: jax.Array, weight: jax.Array, narrow: bool) -> tuple[jax.Array, Any]:
    forward, _ = _types(narrow)
    everyones, products = _gather_and_multiply(x, weight, (forward, forward))
    return products, (everyones, weight)


def _scattered_backward(
    narrow: bool, saved: Any, gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    (x, weight), (forward, backward) = saved, _types(narrow)
    everyones, products = _gather_and_multiply(gradient, weight, (backward, forward))
    return products, _weight_gradient(everyones, x, (backward, forward))


def _gathered_backward(
    narrow: bool, saved: Any, gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    (everyones, weight), (forward, backward) = saved, _types(narrow)
    scattered = _multiply_and_scatter(gradient, weight, (backward, forward))
    return scattered, _weight_gradient(everyones, gradient, (forward, backward))


all_gather_matmul.defvjp(_gathered_forward, _gathered_backward)
matmul_reduce_scatter.defvjp(
    lambda x, weight, narrow: (matmul_reduce_scatter(x, weight, narrow), (x, weight)),
    _scattered_backward,
)


@line("matmul")
def _weight_gradient(stream: jax.Array, inner: jax.Array, types: _Types) -> jax.Array:
    """The gradient of weight [D, F], rounded once, from [Y, b, t, D] and [Y, b, t, F]. Positions
    stay three dimensions, in the order in which a ring has written them, which saves copies.
    """
    if len(stream) > 1:
        stream = with_layout_constraint(stream, Layout(tuple(range(stream.ndim))))
    x, y = factor(stream, types[0]), factor(inner, types[1])
    return multiply(x, y, ((0, 1, 2), (0, 1, 2)), inner.dtype)


@line("activation_gather")
def _gather_and_multiply(
    x: jax.Array, weight: jax.Array, types: _Types
) -> tuple[jax.Array, jax.Array]:
    """Everyone's positions, and each times the weight while the next are on their way."""
    ways, dtype = jax.lax.axis_size(TENSOR), x.dtype
    with line("matmul"):  # once, for all hops
        matrix = factor(weight, types[1])

    @line("matmul")
    def product(x: jax.Array) -> jax.Array:
        return multiply(factor(x, types[0]), matrix, ((x.ndim - 1,), (0,)), dtype)

    if ways == 1:
        return x[None], product(x)[None]

    def put(whole: _Whole, arrived: jax.Array, slot: Any) -> _Whole:
        positions, products = whole
        return (
            jax.lax.dynamic_update_slice_in_dim(positions, arrived, slot, 0),
            jax.lax.dynamic_update_slice_in_dim(products, product(arrived), slot, 0),
        )

    def hop(state: tuple[_Whole, _Pair], k: jax.Array) -> tuple[tuple[_Whole, _Pair], None]:
        whole, arrived = state
        after = _receive(arrived[0], 1), _receive(arrived[1], -1)
        return (put(whole, jnp.stack(arrived), 2 * k - 1), after), None

    hops, arrived = (ways - 1) // 2, (x, x)
    if hops:
        arrived = _receive(x, 1), _receive(x, -1)
    shapes = x.shape, (*x.shape[:-1], *weight.shape[1:])
    empty = [jax.lax.empty((ways, *shape), x.dtype) for shape in shapes]
    whole = put((empty[0], empty[1]), x[None], 0)
    if hops > 1:
        (whole, arrived), _ = jax.lax.scan(hop, (whole, arrived), jnp.arange(1, hops), unroll=_HOPS)
    last = _receive(arrived[0], 1) if ways % 2 == 0 else None
    if hops:
        whole = put(whole, jnp.stack(arrived), 2 * hops - 1)
    if last is not None:
        whole = put(whole, last[None], ways - 1)
    return whole


@line("activation_scatter")
def _multiply_and_scatter(x: jax.Array, weight: jax.Array, types: _Types) -> jax.Array:
    """The sum of all chips' products for this chip: the farthest are sent first. x [Y, b, t, F]"""
    # A partial sum travels while the next product is computed.
    ways = jax.lax.axis_size(TENSOR)
    hops = (ways - 1) // 2
    with line("matmul"):
        matrix = factor(weight, types[1])

    @line("matmul")
    def product(x: jax.Array) -> jax.Array:
        inner = range(1, weight.ndim)
        axes = [x.ndim + n - weight.ndim for n in inner], list(inner)
        return multiply(factor(x, types[0]), matrix, axes, weight.dtype)

    def sides(k: Any) -> _Pair:
        pair = product(jax.lax.dynamic_slice_in_dim(x, 2 * k - 1, 2))
        return pair[0], pair[1]

    def hop(waiting: _Pair, k: jax.Array) -> tuple[_Pair, None]:
        behind, ahead = sides(k)
        return (behind + _receive(waiting[0], -1), ahead + _receive(waiting[1], 1)), None

    if ways <= 2:
        own = product(x[0])
        return own if ways == 1 else own + _receive(product(x[1]), 1)
    opposite = product(x[-1]) if ways % 2 == 0 else None
    behind, ahead = sides(hops)
    if opposite is not None:
        behind = behind + _receive(opposite, -1)
    waiting = behind, ahead
    if hops > 1:
        waiting, _ = jax.lax.scan(hop, waiting, jnp.arange(1, hops), reverse=True, unroll=_HOPS)
    return product(x[0]) + _receive(waiting[0], -1) + _receive(waiting[1], 1)


def _receive(x: jax.Array, step: int) -> jax.Array:
    """The value of the chip `step` behind."""
    ways = jax.lax.axis_size(TENSOR)
    return jax.lax.ppermute(x, TENSOR, [(chip, (chip + step) % ways) for chip in range(ways)])


@jax.custom_vjp
def in_order(x: jax.Array) -> jax.Array:
    """[Y, b, t, ...] in order of arrival -> [b, T, ...], chip after chip."""
    ways = x.shape[0]
    if ways == 1:
        return x[0]
    by_distance = jnp.concatenate([x[slot][None] for slot in _slots(ways)])
    chips = jnp.roll(by_distance, jax.lax.axis_index(TENSOR), axis=0)
    return jnp.moveaxis(chips, 0, 1).reshape(chips.shape[1], -1, *chips.shape[3:])


@jax.custom_vjp
def in_arrival_order(x: jax.Array) -> jax.Array:
    """[b, T, ...], chip after chip -> [Y, b, t, ...] in order of arrival."""
    ways = jax.lax.axis_size(TENSOR)
    if ways == 1:
        return x[None]
    chips = jnp.moveaxis(x.reshape(x.shape[0], ways, -1, *x.shape[2:]), 1, 0)
    by_distance = jnp.roll(chips, -jax.lax.axis_index(TENSOR), axis=0)
    slots = _slots(ways)
    return jnp.concatenate([by_distance[slots.index(slot)][None] for slot in range(ways)])


def _slots(ways: int) -> list[int]:
    """Where the positions of the chips 0, 1, 2, ... ahead are in the order of arrival."""
    hops = (ways - 1) // 2
    ahead, behind = range(2, 2 * hops + 1, 2), range(2 * hops - 1, 0, -2)
    return [0, *ahead, *([ways - 1] if ways % 2 == 0 else []), *behind]


in_order.defvjp(lambda x: (in_order(x), None), lambda _, dx: (in_arrival_order(dx),))
in_arrival_order.defvjp(lambda x: (in_arrival_order(x), None), lambda _, dx: (in_order(dx),))
