"""Time every host of an attempt before its first step: a matmul, a copy in the memory of its
devices, a copy from the host and back, and the collective of each axis of the mesh.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orchestrator.goodput.host_check import HostSeconds, slow_hosts
from orchestrator.values.plan import Plan
from trainers.llama.parameters import DTYPES
from trainers.loop import prepare_devices
from trainers.mesh import mesh_of
from trainers.microbenchmarks import operation_work, repeated
from trainers.multihost import barrier

_ROUNDS = 7
_MATMUL_FLOPS, _COPY_BYTES, _COLLECTIVE_BYTES = 1e12, 1e9, 2**24  # of a device
# Emulated devices are as slow as a core.
_EMULATED_FLOPS, _EMULATED_COPY, _EMULATED_COLLECTIVE = 3e8, 3e7, 2**18
_Run = Callable[[], float]  # does the work once, or many times; the seconds of one time


def time_hosts(plan: Plan) -> HostSeconds:
    """Return what every host took for every test. All processes call it together. What is slow is
    measured again, and the better time counts: other work on a host may have disturbed the first.
    """
    prepare_devices()
    tests = [*_local_tests(plan), *_collective_tests(plan)]
    barrier("the tests of hosts are compiled")
    emulated = jax.local_devices()[0].platform == "cpu"
    taken = _all_times(tests, emulated=emulated)
    names = tuple(name for name, _, _ in tests)
    first = HostSeconds(names, taken, emulated=emulated)
    if not slow_hosts(first):
        return first
    again = np.minimum(taken, _all_times(tests, emulated=emulated))
    return HostSeconds(names, again, emulated=emulated)


def _local_tests(plan: Plan) -> Iterator[tuple[str, bool, _Run]]:
    """Yield the name of each test of one host alone, whether others take part, and the test."""
    devices = jax.local_devices()
    emulated = devices[0].platform == "cpu"
    dtype = DTYPES.get(plan.precision.compute, jnp.bfloat16)
    amounts = (_EMULATED_FLOPS, _EMULATED_COPY) if emulated else (_MATMUL_FLOPS, _COPY_BYTES)
    for name, amount in zip(("matmul", "copy"), amounts, strict=True):
        runs: list[_Run] = []
        for device in devices[:1] if emulated else devices:  # emulated ones are the same cores
            with jax.default_device(device):
                body, start, _ = operation_work(name, dtype, 0, amount)  # type: ignore[arg-type]
                runs.append(repeated(body, start))
        yield {"copy": "copy in memory"}.get(name, name), False, partial(_slowest, runs)
    content = np.ones(int(amounts[1] / 64), np.float32)

    def there_and_back() -> float:
        began = time.perf_counter()
        for device in devices:
            np.asarray(jax.device_put(content, device) + 1)
        return (time.perf_counter() - began) / len(devices)

    there_and_back()
    yield "copy to the host", False, there_and_back


def _slowest(runs: list[_Run]) -> float:
    return max(run() for run in runs)


def _collective_tests(plan: Plan) -> Iterator[tuple[str, bool, _Run]]:
    mesh = mesh_of(plan, jax.devices())
    emulated = jax.local_devices()[0].platform == "cpu"
    numbers = (_EMULATED_COLLECTIVE if emulated else _COLLECTIVE_BYTES) // 4
    for axis, size in mesh.shape.items():
        if size > 1:
            yield f"collective over {axis}", True, _collective(mesh, str(axis), numbers)


def _collective(mesh: Mesh, axis: str, numbers: int) -> _Run:
    """Return a function that sums an array of every device over an axis."""
    blocks = PartitionSpec(mesh.axis_names)
    sharding = NamedSharding(mesh, blocks)
    ones = np.ones(numbers, np.float32)
    array = jax.make_array_from_callback((numbers * mesh.size,), sharding, lambda _: ones)

    def total(x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, axis)

    summed = jax.jit(
        jax.shard_map(total, mesh=mesh, in_specs=blocks, out_specs=blocks, check_vma=False)
    )
    compiled = summed.lower(array).compile()

    def run() -> float:
        began = time.perf_counter()
        jax.block_until_ready(compiled(array))
        return time.perf_counter() - began

    return run


def _all_times(tests: list[tuple[str, bool, _Run]], *, emulated: bool) -> np.ndarray:
    """Return the median seconds of each test, a row for each process."""
    mine: list[float] = []
    for name, together, run in tests:
        # Emulated hosts share the cores of a machine: one after the other is timed.
        turns = range(jax.process_count()) if emulated and not together else range(1)
        for turn in turns:
            barrier(f"{name}, turn {turn}")
            if len(turns) == 1 or turn == jax.process_index():
                if together:
                    run()  # they meet: the first one waits for the last
                mine.append(median(run() for _ in range(_ROUNDS)))
    if jax.process_count() == 1:
        return np.array([mine])
    return np.asarray(multihost_utils.process_allgather(np.array(mine, np.float32)), float)
