"""Ceilings: collectives among the devices of all processes, every group at once. Knows JAX."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from orchestrator.types.chip_profile import CollectiveBenchmark, CollectiveTime, Exchanged
from trainers.llama.model import DTYPES
from trainers.microbenchmarks.timing import Probe, Timed, in_rounds, probe

GROUP = "group"


def times(
    wishes: Iterable[CollectiveBenchmark], devices: Sequence[jax.Device], tell: Callable[[], None]
) -> list[CollectiveTime]:
    """All wishes: each is made ready, which is told, and then they are run in rounds."""
    probes, become = [], []
    for wish in wishes:
        one, time = ready(wish, devices)
        probes.append(one)
        become.append(time)
        tell()
    return [time(found) for time, found in zip(become, in_rounds(probes), strict=True)]


def ready(
    wish: CollectiveBenchmark, devices: Sequence[jax.Device]
) -> tuple[Probe, Callable[[Timed], CollectiveTime]]:
    """The exchange in every group of the devices, which are in the order of the mesh."""
    grid = np.array(devices).reshape(-1, wish.ways, wish.stride)
    one, start = EXCHANGES[wish.kind](wish)

    def body(each: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return tuple(map(one, each))

    def time(found: Timed) -> CollectiveTime:
        of_each = {name: getattr(found, name) / wish.together for name in ("seconds", "least_s")}
        return CollectiveTime(**(vars(wish) | vars(found) | of_each))

    mesh = Mesh(grid, ("outer", GROUP, "inner"))
    return probe(mesh, body, (start,) * wish.together), time


def _numbers(wish: CollectiveBenchmark) -> int:
    """Of the whole: at least one for each device of the group."""
    return max(wish.bytes // _item_bytes(wish) // wish.ways, 1) * wish.ways


def _item_bytes(wish: CollectiveBenchmark) -> int:
    return DTYPES[wish.dtype].dtype.itemsize


def shaped(wish: CollectiveBenchmark, numbers: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((numbers,), DTYPES[wish.dtype])


def gather(wish: CollectiveBenchmark) -> tuple[Callable[[Any], Any], jax.ShapeDtypeStruct]:
    part = _numbers(wish) // wish.ways

    def body(x: jax.Array) -> jax.Array:
        return jax.lax.all_gather(x, GROUP, tiled=True)[-part:]

    return body, shaped(wish, part)


def scatter(wish: CollectiveBenchmark) -> tuple[Callable[[Any], Any], jax.ShapeDtypeStruct]:
    def body(x: jax.Array) -> jax.Array:
        part = jax.lax.psum_scatter(x, GROUP, tiled=True)
        return jax.lax.dynamic_update_slice_in_dim(x, part / wish.ways, 0, 0)

    return body, shaped(wish, _numbers(wish))


def reduce(wish: CollectiveBenchmark) -> tuple[Callable[[Any], Any], jax.ShapeDtypeStruct]:
    def body(x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, GROUP) / wish.ways

    return body, shaped(wish, _numbers(wish))


def permute(wish: CollectiveBenchmark) -> tuple[Callable[[Any], Any], jax.ShapeDtypeStruct]:
    ring = [(place, (place + 1) % wish.ways) for place in range(wish.ways)]

    def body(x: jax.Array) -> jax.Array:
        return jax.lax.ppermute(x, GROUP, ring)

    return body, shaped(wish, max(wish.bytes // _item_bytes(wish), 1))


EXCHANGES: dict[Exchanged, Callable[[CollectiveBenchmark], tuple[Callable[[Any], Any], Any]]] = {
    "all-gather": gather,
    "reduce-scatter": scatter,
    "all-reduce": reduce,
    "permute": permute,
}
