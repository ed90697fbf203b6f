"""How a benchmark is timed: compiled first, then run in rounds on all devices at once."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from orchestrator.types.chip_profile import Benchmark, Operation, Timing
from trainers.microbenchmarks.operations import GROUP, Work, work

AXES = ("outer", GROUP, "inner")
RUN_S = 0.02  # a run repeats its work until it takes about this long
ROUNDS = 7
MOST_REPEATS = 2000
COLLECTIVE_BYTES = (2.0**10, 2.0**18, 2.0**22)
# A rate depends on the size: the largest copy leaves the cache.
AMOUNTS: dict[Operation, tuple[float, ...]] = {
    "matmul": (1e6, 3e7, 5e8),
    "attention": (2e7, 3e8),
    "elementwise": (2e5, 5e6),
    "copy": (1e5, 3e6, 5e7),
}
Run = Callable[[], float]  # seconds of one repeat


def timings(
    benchmarks: Iterable[Benchmark],
    devices: Sequence[jax.Device],
    compiled: Callable[[Benchmark], None],
) -> list[Timing]:
    """Time all benchmarks. The rounds spread what other programs do over all of them."""
    cases: list[tuple[Benchmark, float, Run]] = []
    for benchmark in benchmarks:
        grid = np.array(devices).reshape(-1, benchmark.group, benchmark.stride)
        for amount in AMOUNTS.get(benchmark.operation, COLLECTIVE_BYTES):
            todo = work(benchmark, amount)
            cases.append((benchmark, todo.amount, prepare(Mesh(grid, AXES), todo)))
        compiled(benchmark)
    rounds = [[run() for _, _, run in cases] for _ in range(ROUNDS)]
    seconds: dict[Benchmark, dict[float, list[float]]] = {}
    for (benchmark, amount, _), runs in zip(cases, zip(*rounds, strict=True), strict=True):
        seconds.setdefault(benchmark, {})[amount] = list(runs)
    return [timing(benchmark, runs) for benchmark, runs in seconds.items()]


def timing(benchmark: Benchmark, runs: dict[float, list[float]]) -> Timing:
    """The seconds of the runs at each amount, summed up."""
    quartiles = {amount: statistics.quantiles(seconds, n=4) for amount, seconds in runs.items()}
    return Timing(
        benchmark=benchmark,
        points=tuple((amount, median) for amount, (_, median, _) in sorted(quartiles.items())),
        best_per_s=max(amount / min(seconds) for amount, seconds in runs.items()),
        spread=max((high - low) / median for low, median, high in quartiles.values()),
    )


def prepare(mesh: Mesh, todo: Work) -> Run:
    """Compile the work for every device of the mesh; all processes prepare the same."""
    spec = P(mesh.axis_names)
    specs = jax.tree.map(lambda _: spec, todo.start)

    def repeat(count: jax.Array, tree: object) -> object:
        return jax.lax.fori_loop(0, count, lambda _, one: todo.body(one), tree)

    mapped = jax.shard_map(
        repeat, mesh=mesh, in_specs=(P(), specs), out_specs=specs, check_vma=False
    )
    start = jax.tree.map(lambda leaf: filled(mesh, spec, leaf), todo.start)
    executable = jax.jit(mapped).lower(jnp.int32(0), start).compile()

    def seconds(count: int) -> float:
        begin = time.perf_counter()
        jax.block_until_ready(executable(jnp.int32(count), start))
        return (time.perf_counter() - begin) / count

    seconds(1)
    count = same_everywhere(int(min(max(RUN_S / max(seconds(2), 1e-7), 1), MOST_REPEATS)))
    return lambda: seconds(count)


def same_everywhere(count: int) -> int:
    """The first process's number."""
    if jax.process_count() == 1:
        return count
    return int(multihost_utils.broadcast_one_to_all(np.int32(count)))


def filled(mesh: Mesh, spec: P, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    """Small numbers; each device has a part of that shape."""
    shape = (leaf.shape[0] * mesh.size, *leaf.shape[1:])
    return jax.make_array_from_callback(
        shape, NamedSharding(mesh, spec), lambda _: jnp.full(leaf.shape, 0.01, leaf.dtype)
    )
