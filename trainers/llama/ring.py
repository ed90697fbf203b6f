"""Trainer llama: collective matmuls, where what travels over `tensor` hides behind the products.

    b sequences, Y chips in the ring, each with t positions of its own; T = Y t

A product with a gathered input starts with the chip's own positions while its neighbours' are on
their way. A product that is added up and scattered sends what it has while it makes the rest. Both
directions of the ring are used, Y/2 hops each.

Everyone's positions are held as they come, nothing copied into place: Groups are the chip's own,
then those of its neighbours k behind and k ahead side by side, for k = 1, 2, ...; where Y is even,
the last group is the one chip opposite. What treats every position alike can stay in that order.
"""

from typing import Any

import jax
import jax.numpy as jnp

from trainers.llama.axes import TENSOR

Groups = list[jax.Array]  # [b, t, ...], then [b, 2 t, ...] each but perhaps the last


@jax.custom_vjp
def gathered_matmul(x: jax.Array, weight: jax.Array) -> Groups:
    """Everyone's positions times a weight: x [b, t, D], weight [D, F] -> Groups of F."""
    return _products(_gathered(x), weight)


@jax.custom_vjp
def matmul_scattered(groups: Groups, weight: jax.Array) -> jax.Array:
    """Everyone's products added up, own positions kept: Groups of F, weight [F, D] -> [b, t, D]."""
    return _scattered(_products(groups, weight))


def _gathered_forward(x: jax.Array, weight: jax.Array) -> tuple[Groups, Any]:
    everyones = _gathered(x)
    return _products(everyones, weight), (everyones, weight)


def _gathered_backward(saved: Any, gradients: Groups) -> tuple[jax.Array, jax.Array]:
    everyones, weight = saved
    dx = _scattered(_products(gradients, weight.T))
    return dx, _weight_gradient(everyones, gradients)


def _scattered_forward(groups: Groups, weight: jax.Array) -> tuple[jax.Array, Any]:
    return matmul_scattered(groups, weight), (groups, weight)


def _scattered_backward(saved: Any, gradient: jax.Array) -> tuple[Groups, jax.Array]:
    groups, weight = saved
    everyones = _gathered(gradient)
    return _products(everyones, weight.T), _weight_gradient(groups, everyones)


gathered_matmul.defvjp(_gathered_forward, _gathered_backward)
matmul_scattered.defvjp(_scattered_forward, _scattered_backward)


def _products(groups: Groups, weight: jax.Array) -> Groups:
    return [group @ weight for group in groups]


def _weight_gradient(groups: Groups, gradients: Groups) -> jax.Array:
    """Of weight [F, D], from Groups of F and gradients of D: one product, so one rounding."""
    x, gradient = jnp.concatenate(groups, axis=1), jnp.concatenate(gradients, axis=1)
    return jnp.einsum("btf,btd->fd", x, gradient)


def _gathered(x: jax.Array) -> Groups:
    """Everyone's positions: own ones at once, the others' as they come round."""
    ways = jax.lax.axis_size(TENSOR)
    groups, behind, ahead = [x], x, x
    for k in range(1, ways // 2 + 1):
        behind = _sent(behind, 1)
        if 2 * k < ways:
            ahead = _sent(ahead, -1)
            groups.append(jnp.concatenate([behind, ahead], axis=1))
        else:
            groups.append(behind)
    return groups


def _scattered(groups: Groups) -> jax.Array:
    """Everyone's parts for this chip, added up: the farthest set out first."""
    ways = jax.lax.axis_size(TENSOR)
    to_behind = to_ahead = jnp.zeros((), groups[0].dtype)  # nothing yet
    for k in range(ways // 2, 0, -1):
        if 2 * k < ways:
            for_behind, for_ahead = jnp.split(groups[k], 2, axis=1)
            to_behind = _sent(to_behind + for_behind, -1)
            to_ahead = _sent(to_ahead + for_ahead, 1)
        else:
            to_behind = _sent(groups[k], -1)
    return groups[0] + to_behind + to_ahead


def _sent(x: jax.Array, step: int) -> jax.Array:
    """What the chip `step` behind holds."""
    ways = jax.lax.axis_size(TENSOR)
    return jax.lax.ppermute(x, TENSOR, [(chip, (chip + step) % ways) for chip in range(ways)])


@jax.custom_vjp
def in_order(groups: Groups) -> jax.Array:
    """Groups -> [b, T, ...], chip after chip."""
    ways = jax.lax.axis_size(TENSOR)
    if ways == 1:
        return groups[0]
    chunks: dict[int, jax.Array] = {0: groups[0]}
    for k, group in enumerate(groups[1:], 1):
        sides = jnp.split(group, 2 if 2 * k < ways else 1, axis=1)
        chunks[ways - k], chunks[k] = sides[0], sides[-1]
    ahead = jnp.stack([chunks[k] for k in range(ways)], axis=1)  # chunk k: the chip k ahead
    chips = jnp.roll(ahead, jax.lax.axis_index(TENSOR), axis=1)
    return chips.reshape(chips.shape[0], -1, *chips.shape[3:])


@jax.custom_vjp
def as_come(x: jax.Array) -> Groups:
    """[b, T, ...], chip after chip -> Groups."""
    ways = jax.lax.axis_size(TENSOR)
    if ways == 1:
        return [x]
    chips = x.reshape(x.shape[0], ways, -1, *x.shape[2:])
    ahead = jnp.roll(chips, -jax.lax.axis_index(TENSOR), axis=1)
    chunks = [ahead[:, k] for k in range(ways)]
    pairs = [[chunks[ways - k], chunks[k]] for k in range(1, (ways + 1) // 2)]
    opposite = [chunks[ways // 2]] if ways % 2 == 0 else []
    return [chunks[0], *(jnp.concatenate(pair, axis=1) for pair in pairs), *opposite]


in_order.defvjp(lambda groups: (in_order(groups), None), lambda _, dx: (as_come(dx),))
as_come.defvjp(lambda x: (as_come(x), None), lambda _, groups: (in_order(groups),))
