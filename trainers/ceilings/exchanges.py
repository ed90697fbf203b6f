"""Ceilings: collectives among the devices of all processes, every group at once. Knows JAX."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from orchestrator.stations.profile import Exchanged, ExchangeTime, ExchangeWish
from trainers.ceilings.timing import Probe, Timed, in_rounds, probe

GROUP = "group"
ITEM_BYTES = 4


def times(
    wishes: Iterable[ExchangeWish], devices: Sequence[jax.Device], tell: Callable[[], None]
) -> list[ExchangeTime]:
    """All wishes: each is made ready, which is told, and then they are run in rounds."""
    probes, become = [], []
    for wish in wishes:
        one, time = ready(wish, devices)
        probes.append(one)
        become.append(time)
        tell()
    return [time(found) for time, found in zip(become, in_rounds(probes), strict=True)]


def ready(
    wish: ExchangeWish, devices: Sequence[jax.Device]
) -> tuple[Probe, Callable[[Timed], ExchangeTime]]:
    """The exchange in every group of the devices, which are in the order of the mesh."""
    grid = np.array(devices).reshape(-1, wish.ways, wish.stride)
    one, start = EXCHANGES[wish.kind](wish)

    def body(each: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return tuple(map(one, each))

    def time(found: Timed) -> ExchangeTime:
        of_each = {name: getattr(found, name) / wish.together for name in ("seconds", "least_s")}
        return ExchangeTime(**(vars(wish) | vars(found) | of_each))

    mesh = Mesh(grid, ("outer", GROUP, "inner"))
    return probe(mesh, body, (start,) * wish.together), time


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
