"""Collective matmuls: transfers over `tensor` overlap with the products.

    b sequences, Y chips in the ring, each with t positions of its own; T = Y t

A product with a gathered input starts with the chip's own positions while its neighbours' are on
their way. A product with a reduce-scatter sends partial sums while it computes the rest. Both
directions of the ring are used, Y/2 hops each. All hops but the first and the last are one loop: on
thousands of chips the lists of senders and receivers are most of the program, once for each hop.

Positions stay in the order of arrival; nothing is copied into place. An operation on each position
alone can work in that order: `jax.tree.map` over Groups.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainers.llama.axes import TENSOR


class Groups(NamedTuple):
    """Everyone's positions. A pair joins the chips k behind and k ahead; there are h pairs."""

    own: jax.Array  # [b, t, ...]
    pairs: jax.Array | None = None  # [h - 1, b, 2 t, ...], k = 1, 2, ..., where h is over 1
    last: jax.Array | None = None  # [b, 2 t, ...], k = h, where h is over 0
    opposite: jax.Array | None = None  # [b, t, ...], where Y is even


@jax.custom_vjp
def all_gather_matmul(x: jax.Array, weight: jax.Array) -> Groups:
    """Everyone's positions times a weight: x [b, t, D], weight [D, F] -> Groups of F."""
    return _gather_and_multiply(x, weight)[1]


@jax.custom_vjp
def matmul_reduce_scatter(groups: Groups, weight: jax.Array) -> jax.Array:
    """The sum of all products for own positions: Groups of F, weight [F, D] -> [b, t, D]."""
    return _multiply_and_scatter(groups, weight)


def _gathered_forward(x: jax.Array, weight: jax.Array) -> tuple[Groups, Any]:
    everyones, products = _gather_and_multiply(x, weight)
    return products, (everyones, weight)


def _gathered_backward(saved: Any, gradients: Groups) -> tuple[jax.Array, jax.Array]:
    everyones, weight = saved
    return _multiply_and_scatter(gradients, weight.T), _weight_gradient(everyones, gradients)


def _scattered_forward(groups: Groups, weight: jax.Array) -> tuple[jax.Array, Any]:
    return matmul_reduce_scatter(groups, weight), (groups, weight)


def _scattered_backward(saved: Any, gradient: jax.Array) -> tuple[Groups, jax.Array]:
    groups, weight = saved
    everyones, products = _gather_and_multiply(gradient, weight.T)
    return products, _weight_gradient(groups, everyones)


all_gather_matmul.defvjp(_gathered_forward, _gathered_backward)
matmul_reduce_scatter.defvjp(_scattered_forward, _scattered_backward)


def _weight_gradient(groups: Groups, gradients: Groups) -> jax.Array:
    """Of weight [F, D], from Groups of F and gradients of D: one product, so one rounding."""
    return _rows(groups).T @ _rows(gradients)


def _rows(groups: Groups) -> jax.Array:
    """Every position as a row: Groups of F -> [b T, F]."""
    present = jax.tree.leaves(groups)
    return jnp.concatenate([group.reshape(-1, group.shape[-1]) for group in present])


def _gather_and_multiply(x: jax.Array, weight: jax.Array) -> tuple[Groups, Groups]:
    """Everyone's positions, and each times the weight while the next are on their way."""
    Pair = tuple[jax.Array, jax.Array]

    def hop(arrived: Pair, _: None) -> tuple[Pair, Pair]:
        pair = jnp.concatenate(arrived, axis=1)
        return (_receive(arrived[0], 1), _receive(arrived[1], -1)), (pair, pair @ weight)

    ways = jax.lax.axis_size(TENSOR)
    hops = (ways - 1) // 2
    positions, products = Groups(x), Groups(x @ weight)
    arrived = x, x
    if hops:
        arrived = _receive(x, 1), _receive(x, -1)
    if hops > 1:
        arrived, (pairs, made) = jax.lax.scan(hop, arrived, length=hops - 1)
        positions, products = positions._replace(pairs=pairs), products._replace(pairs=made)
    if hops:
        last = jnp.concatenate(arrived, axis=1)
        positions, products = positions._replace(last=last), products._replace(last=last @ weight)
    if ways % 2 == 0:
        opposite = _receive(arrived[0], 1)
        positions = positions._replace(opposite=opposite)
        products = products._replace(opposite=opposite @ weight)
    return positions, products


def _multiply_and_scatter(groups: Groups, weight: jax.Array) -> jax.Array:
    """The sum of all chips' products for this chip: the farthest are sent first.

    A partial sum travels while the next product is computed.
    """

    def sides(pair: jax.Array) -> list[jax.Array]:
        return jnp.split(pair @ weight, 2, axis=1)

    def hop(waiting: list[jax.Array], pair: jax.Array) -> tuple[list[jax.Array], None]:
        came = _receive_sums(waiting)
        return jax.tree.map(jnp.add, sides(pair), came), None

    waiting: list[jax.Array] = []
    if groups.opposite is not None:
        waiting = [groups.opposite @ weight]
    if groups.last is not None:
        behind, ahead = sides(groups.last)
        waiting = [sum(_receive_sums(waiting), behind), ahead]
    if groups.pairs is not None:
        waiting, _ = jax.lax.scan(hop, waiting, groups.pairs, reverse=True)
    return sum(_receive_sums(waiting), groups.own @ weight)


def _receive_sums(waiting: list[jax.Array]) -> list[jax.Array]:
    """The waiting sums that reach this chip: those for behind, then those for ahead."""
    return [_receive(x, step) for x, step in zip(waiting, (-1, 1), strict=False)]


def _receive(x: jax.Array, step: int) -> jax.Array:
    """The value of the chip `step` behind."""
    ways = jax.lax.axis_size(TENSOR)
    return jax.lax.ppermute(x, TENSOR, [(chip, (chip + step) % ways) for chip in range(ways)])


@jax.custom_vjp
def in_order(groups: Groups) -> jax.Array:
    """Groups -> [b, T, ...], chip after chip."""
    own, pairs, last, opposite = groups
    if last is None and opposite is None:
        return own
    ahead, behind = [own[None]], list[jax.Array]()
    for nearest_first in (pairs, None if last is None else last[None]):
        if nearest_first is not None:
            sides = jnp.split(nearest_first, 2, axis=2)
            ahead.append(sides[1])
            behind.insert(0, sides[0][::-1])
    if opposite is not None:
        ahead.append(opposite[None])
    by_distance = jnp.concatenate(ahead + behind)  # [Y, b, t, ...]
    chips = jnp.roll(by_distance, jax.lax.axis_index(TENSOR), axis=0)
    return jnp.moveaxis(chips, 0, 1).reshape(chips.shape[1], -1, *chips.shape[3:])


@jax.custom_vjp
def in_arrival_order(x: jax.Array) -> Groups:
    """[b, T, ...], chip after chip -> Groups."""
    ways = jax.lax.axis_size(TENSOR)
    if ways == 1:
        return Groups(x)
    hops = (ways - 1) // 2
    chips = jnp.moveaxis(x.reshape(x.shape[0], ways, -1, *x.shape[2:]), 1, 0)
    by_distance = jnp.roll(chips, -jax.lax.axis_index(TENSOR), axis=0)
    pairs = jnp.concatenate([by_distance[: -hops - 1 : -1], by_distance[1 : hops + 1]], axis=2)
    return Groups(
        own=by_distance[0],
        pairs=pairs[:-1] if hops > 1 else None,
        last=pairs[-1] if hops else None,
        opposite=by_distance[ways // 2] if ways % 2 == 0 else None,
    )


in_order.defvjp(lambda groups: (in_order(groups), None), lambda _, dx: (in_arrival_order(dx),))
in_arrival_order.defvjp(
    lambda x: (in_arrival_order(x), None), lambda _, groups: (in_order(groups),)
)
