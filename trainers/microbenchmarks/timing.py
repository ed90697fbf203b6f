"""Ceilings: how a piece of work is timed on all devices at once. Knows JAX."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Tree = Any
Body = Callable[[Tree], Tree]  # what one device does once; its result is its next input

RUN_S = 0.02  # a run repeats the work until it takes about this long
ROUNDS = 7
MOST_REPEATS = 2000
clock = time.perf_counter


@dataclass(frozen=True)
class Timed:
    """Seconds of one repeat, as a profile has them."""

    seconds: float
    least_s: float
    spread: float


@dataclass(frozen=True)
class Probe:
    """Work that is compiled and can be run; how often a run repeats it."""

    run: Callable[[int], float]
    count: int


def probe(mesh: Mesh, body: Body, start: Tree) -> Probe:
    """`body` on every device of the mesh, each on its own part of `start` along axis 0.

    All processes come here with the same.
    """
    spec = P(mesh.axis_names)

    def many(count: jax.Array, tree: Tree) -> Tree:
        return jax.lax.fori_loop(0, count, lambda _, one: body(one), tree)

    shapes = jax.tree.map(lambda _: spec, start)
    mapped = jax.shard_map(
        many, mesh=mesh, in_specs=(P(), shapes), out_specs=shapes, check_vma=False
    )
    placed = jax.tree.map(lambda leaf: _placed(mesh, spec, leaf), start)
    compiled = jax.jit(mapped).lower(jnp.int32(0), placed).compile()

    def run(count: int) -> float:
        """Seconds of one repeat."""
        began = clock()
        jax.block_until_ready(compiled(jnp.int32(count), placed))
        return (clock() - began) / count

    run(1)
    return Probe(run, _agreed(int(min(max(RUN_S / max(run(2), 1e-7), 1), MOST_REPEATS))))


def in_rounds(probes: Sequence[Probe]) -> list[Timed]:
    """Each probe once in every round: what else the machine does comes and goes in seconds."""
    rounds = [[one.run(one.count) for one in probes] for _ in range(ROUNDS)]
    return [_middle(list(seconds)) for seconds in zip(*rounds, strict=True)]


def _agreed(count: int) -> int:
    """The number of the first process, told to all."""
    if jax.process_count() == 1:
        return count
    return int(multihost_utils.broadcast_one_to_all(np.int32(count)))


def _placed(mesh: Mesh, spec: P, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    """Small numbers, of which every device has its own part."""
    shape = (leaf.shape[0] * mesh.size, *leaf.shape[1:])
    sharding = NamedSharding(mesh, spec)

    def part(index: Any) -> Any:
        sizes = [len(range(*at.indices(n))) for at, n in zip(index, shape, strict=True)]
        return jnp.full(sizes, 0.01, leaf.dtype)

    return jax.make_array_from_callback(shape, sharding, part)


def _middle(seconds: list[float]) -> Timed:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return Timed(middle, min(seconds), (high - low) / middle)
