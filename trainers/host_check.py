"""Time every host of an attempt before its first step: a matmul, a copy in the memory of its
devices, a copy from the host and back, and the collective of each axis of the mesh.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orchestrator.goodput.slowdowns import HostSeconds, slow_hosts
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
# A name, the work, and for a collective the processes that each one does it with.
_Test = tuple[str, _Run, Mapping[int, Set[int]] | None]


def time_hosts(plan: Plan) -> HostSeconds:
    """Return what every host took for every test. All processes call it together. What is slow is
    measured again, and the better time counts: other work on a host may have disturbed the first.
    """
    prepare_devices()
    emulated = jax.local_devices()[0].platform == "cpu"
    tests = [*_local_tests(plan, emulated=emulated), *_collective_tests(plan, emulated=emulated)]
    barrier("the tests of hosts are compiled")
    taken = _all_times(tests, emulated=emulated)
    names = tuple(name for name, *_ in tests)
    first = HostSeconds(names, taken, emulated=emulated)
    if not slow_hosts(first):
        return first
    again = np.minimum(taken, _all_times(tests, emulated=emulated))
    return HostSeconds(names, again, emulated=emulated)


def _local_tests(plan: Plan, *, emulated: bool) -> Iterator[_Test]:
    """Yield the tests that need only one host."""
    devices = jax.local_devices()
    dtype = DTYPES.get(plan.precision.compute, jnp.bfloat16)
    amounts = (_EMULATED_FLOPS, _EMULATED_COPY) if emulated else (_MATMUL_FLOPS, _COPY_BYTES)
    for name, amount in zip(("matmul", "copy"), amounts, strict=True):
        runs: list[_Run] = []
        for device in devices[:1] if emulated else devices:  # emulated ones are the same cores
            with jax.default_device(device):
                body, start, _ = operation_work(name, dtype, 0, amount)  # type: ignore[arg-type]
                runs.append(repeated(body, start))
        yield {"copy": "copy in memory"}.get(name, name), partial(_slowest, runs), None
    content = np.ones(int(amounts[1] / 64), np.float32)

    def there_and_back() -> float:
        began = time.perf_counter()
        for device in devices:
            np.asarray(jax.device_put(content, device) + 1)
        return (time.perf_counter() - began) / len(devices)

    there_and_back()
    yield "copy to the host", there_and_back, None


def _slowest(runs: list[_Run]) -> float:
    return max(run() for run in runs)


def _collective_tests(plan: Plan, *, emulated: bool) -> Iterator[_Test]:
    mesh = mesh_of(plan, jax.devices())
    numbers = (_EMULATED_COLLECTIVE if emulated else _COLLECTIVE_BYTES) // 4
    for place, (axis, size) in enumerate(mesh.shape.items()):
        if size > 1:
            together: defaultdict[int, set[int]] = defaultdict(set)
            lines = np.moveaxis(mesh.devices, place, -1).reshape(-1, size)
            for group in ({device.process_index for device in line} for line in lines):
                for rank in group:
                    together[rank] |= group
            yield f"collective over {axis}", _collective(mesh, str(axis), numbers), together


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


def _all_times(tests: list[_Test], *, emulated: bool) -> np.ndarray:
    """Return the median seconds of each test, a row for each process. The processes of a collective
    end it together: the least of their times counts for all of them.
    """
    mine: list[float] = []
    for name, run, together in tests:
        # Emulated hosts share the cores of a machine: one after the other is timed.
        turns = range(jax.process_count()) if emulated and not together else range(1)
        for turn in turns:
            barrier(f"{name}, turn {turn}")
            if len(turns) == 1 or turn == jax.process_index():
                if together:
                    run()  # they meet: the first one waits for the last
                mine.append(median(run() for _ in range(_ROUNDS)))
    rows = np.array([mine], np.float32)
    if jax.process_count() > 1:
        rows = np.array(multihost_utils.process_allgather(rows[0]))
    for column, (_, _, together) in enumerate(tests):
        own = rows[:, column].copy()
        for rank, others in (together or {}).items():
            rows[rank, column] = min(own[[*others]])
    return rows.astype(float)
