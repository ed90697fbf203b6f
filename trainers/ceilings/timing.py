"""Ceilings: how a piece of work is timed on all devices at once. Knows JAX."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Tree = Any
Body = Callable[[Tree], Tree]  # what one device does once; its result is its next input

RUN_S = 0.02  # a run repeats the work until it takes about this long
RUNS = 7
MOST_REPEATS = 2000
clock = time.perf_counter


@dataclass(frozen=True)
class Timed:
    """Seconds of one repeat, as a profile has them."""

    seconds: float
    least_s: float
    spread: float


def repeated(mesh: Mesh, body: Body, start: Tree) -> Callable[[int], Timed]:
    """`body` on every device of the mesh, each on its own part of `start` along axis 0, timed.

    The function that comes back takes a number of repeats; all processes call it with the same.
    """
    spec = P(mesh.axis_names)

    def many(count: jax.Array, tree: Tree) -> Tree:
        return jax.lax.fori_loop(0, count, lambda _, one: body(one), tree)

    shapes = jax.tree.map(lambda _: spec, start)
    mapped = jax.shard_map(
        many, mesh=mesh, in_specs=(P(), shapes), out_specs=shapes, check_vma=False
    )
    placed = jax.tree.map(lambda leaf: _placed(mesh, spec, leaf), start)
    step = jax.jit(mapped)
    compiled = step.lower(jnp.int32(0), placed).compile()

    def run(count: int) -> float:
        began = clock()
        jax.block_until_ready(compiled(jnp.int32(count), placed))
        return clock() - began

    run(1)
    return lambda count: _middle([run(count) / count for _ in range(RUNS)])


def _placed(mesh: Mesh, spec: P, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    """Small numbers, of which every device has its own part."""
    shape = (leaf.shape[0] * mesh.size, *leaf.shape[1:])
    sharding = NamedSharding(mesh, spec)

    def part(index: Any) -> Any:
        sizes = [len(range(*at.indices(n))) for at, n in zip(index, shape, strict=True)]
        return jnp.full(sizes, 0.01, leaf.dtype)

    return jax.make_array_from_callback(shape, sharding, part)


def repeats(first_s: float) -> int:
    """How often to repeat what takes so long once."""
    return int(min(max(RUN_S / max(first_s, 1e-7), 1), MOST_REPEATS))


def _middle(seconds: list[float]) -> Timed:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return Timed(middle, min(seconds), (high - low) / middle)
