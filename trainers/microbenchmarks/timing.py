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
from trainers.microbenchmarks.operations import GROUP, Work, head_flops, work

AXES = ("outer", GROUP, "inner")
RUN_S = 0.02  # a run repeats its work until it takes about this long
ROUNDS = 7
MOST_REPEATS = 2000
COLLECTIVE_BYTES = (2.0**10, 2.0**18, 2.0**22)
# A rate depends on the size: the largest copies and scores leave the cache.
AMOUNTS: dict[Operation, tuple[float, ...]] = {
    "matmul": (1e6, 3e7, 5e8),
    "attention": (2e7, 3e8, 1e9),
    "elementwise": (2e5, 5e6),
    "copy": (1e5, 3e6, 5e7),
}
Run = Callable[[], float]  # seconds of one repeat


def timings(benchmarks: Iterable[Benchmark], devices: Sequence[jax.Device]) -> list[Timing]:
    """Time all benchmarks, in rounds, so that other programs disturb few runs of each."""
    cases: list[tuple[Benchmark, float, Run]] = []
    for benchmark in benchmarks:
        chosen = np.array(devices[: benchmark.devices])
        mesh = Mesh(chosen.reshape(-1, benchmark.group, benchmark.stride), AXES)
        for amount in amounts(benchmark):
            one = work(benchmark, amount)
            cases.append((benchmark, one.amount, compile_run(mesh, one)))
    rounds = [[run() for _, _, run in cases] for _ in range(ROUNDS)]
    runs: dict[Benchmark, dict[float, tuple[float, ...]]] = {}
    for (benchmark, amount, _), seconds in zip(cases, zip(*rounds, strict=True), strict=True):
        runs.setdefault(benchmark, {})[amount] = seconds
    return [timing(benchmark, by_amount) for benchmark, by_amount in runs.items()]


def amounts(benchmark: Benchmark) -> list[float]:
    """The amounts of work to time. Attention takes whole heads, at least one more each time."""
    of_operation = AMOUNTS.get(benchmark.operation, COLLECTIVE_BYTES)
    if benchmark.operation != "attention":
        return list(of_operation)
    head = head_flops(benchmark)
    return [max(least, round(one / head)) * head for least, one in enumerate(of_operation, 1)]


def timing(benchmark: Benchmark, runs: dict[float, tuple[float, ...]]) -> Timing:
    """The seconds of all runs, by amount, as medians, a best rate and a spread."""
    quartiles = {amount: statistics.quantiles(seconds, n=4) for amount, seconds in runs.items()}
    return Timing(
        benchmark=benchmark,
        points=tuple((amount, median) for amount, (_, median, _) in sorted(quartiles.items())),
        best_per_s=max(amount / min(seconds) for amount, seconds in runs.items()),
        spread=max((high - low) / median for low, median, high in quartiles.values()),
    )


def compile_run(mesh: Mesh, one: Work) -> Run:
    """The work on every device of the mesh; all processes compile the same."""
    spec = P(mesh.axis_names)
    specs = jax.tree.map(lambda _: spec, one.start)

    def repeat(count: jax.Array, tree: object) -> object:
        return jax.lax.fori_loop(0, count, lambda _, before: one.body(before), tree)

    mapped = jax.shard_map(
        repeat, mesh=mesh, in_specs=(P(), specs), out_specs=specs, check_vma=False
    )
    start = jax.tree.map(lambda leaf: filled(mesh, spec, leaf), one.start)
    executable = jax.jit(mapped).lower(jnp.int32(0), start).compile()

    def seconds(count: int) -> float:
        begin = time.perf_counter()
        jax.block_until_ready(executable(jnp.int32(count), start))
        return (time.perf_counter() - begin) / count

    seconds(1)
    count = int(min(max(RUN_S / max(seconds(2), 1e-7), 1), MOST_REPEATS))
    if jax.process_count() > 1:  # all repeat as often as the first
        count = int(multihost_utils.broadcast_one_to_all(np.int32(count)))
    return lambda: seconds(count)


def filled(mesh: Mesh, spec: P, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    """Small numbers; each device has a part of that shape."""
    shape = (leaf.shape[0] * mesh.size, *leaf.shape[1:])
    part = jnp.full(leaf.shape, 0.01, leaf.dtype)
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda _: part)
