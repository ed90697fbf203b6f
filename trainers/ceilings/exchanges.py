"""Ceilings: collectives among the devices of all processes, every group at once. Knows JAX."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from orchestrator.stations.profile import Exchanged, ExchangeTime, ExchangeWish
from trainers.ceilings.timing import repeated, repeats

GROUP = "group"
ITEM_BYTES = 4


def timed(wish: ExchangeWish, devices: Sequence[jax.Device]) -> ExchangeTime:
    """The exchange in every group of the devices, which are in the order of the mesh."""
    grid = np.array(devices).reshape(-1, wish.ways, wish.stride)
    mesh = Mesh(grid, ("outer", GROUP, "inner"))
    work, start = EXCHANGES[wish.kind](wish)
    run = repeated(mesh, work, start)
    found = run(_agreed(repeats(run(2).seconds)))
    return ExchangeTime(
        kind=wish.kind,
        processes=wish.processes,
        devices=wish.devices,
        ways=wish.ways,
        stride=wish.stride,
        bytes=wish.bytes,
        seconds=found.seconds,
        least_s=found.least_s,
        spread=found.spread,
    )


def _agreed(count: int) -> int:
    """The number of the first process, told to all."""
    if jax.process_count() == 1:
        return count
    from jax.experimental import multihost_utils  # noqa: PLC0415  alone, nobody needs it

    return int(multihost_utils.broadcast_one_to_all(np.int32(count)))


def _numbers(wish: ExchangeWish) -> int:
    """Of the whole: at least one for each device of the group."""
    return max(wish.bytes // ITEM_BYTES // wish.ways, 1) * wish.ways


def gather(wish: ExchangeWish) -> tuple[Callable[[Any], Any], jax.ShapeDtypeStruct]:
    part = _numbers(wish) // wish.ways

    def body(x: jax.Array) -> jax.Array:
        return jax.lax.all_gather(x, GROUP, tiled=True)[-part:]

    return body, jax.ShapeDtypeStruct((part,), jnp.float32)


def scatter(wish: ExchangeWish) -> tuple[Callable[[Any], Any], jax.ShapeDtypeStruct]:
    def body(x: jax.Array) -> jax.Array:
        part = jax.lax.psum_scatter(x, GROUP, tiled=True)
        return jax.lax.dynamic_update_slice_in_dim(x, part / wish.ways, 0, 0)

    return body, jax.ShapeDtypeStruct((_numbers(wish),), jnp.float32)


def reduce(wish: ExchangeWish) -> tuple[Callable[[Any], Any], jax.ShapeDtypeStruct]:
    def body(x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, GROUP) / wish.ways

    return body, jax.ShapeDtypeStruct((_numbers(wish),), jnp.float32)


def permute(wish: ExchangeWish) -> tuple[Callable[[Any], Any], jax.ShapeDtypeStruct]:
    ring = [(place, (place + 1) % wish.ways) for place in range(wish.ways)]

    def body(x: jax.Array) -> jax.Array:
        return jax.lax.ppermute(x, GROUP, ring)

    return body, jax.ShapeDtypeStruct((max(wish.bytes // ITEM_BYTES, 1),), jnp.float32)


EXCHANGES: dict[Exchanged, Callable[[ExchangeWish], tuple[Callable[[Any], Any], Any]]] = {
    "all-gather": gather,
    "reduce-scatter": scatter,
    "all-reduce": reduce,
    "permute": permute,
}
