"""What each process measures of itself, and the gather of it. All processes end a step together, so
a step's time does not tell who made the others wait. These times do: each is without any wait for
others. The time of a step's own operations on the devices is not among them: a trace has it.
"""

import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from orchestrator.values.slowdowns import HostTimes

EVERY = 3  # steps between gathers
_READ_LATER = 2  # steps after a gather: by then nobody waits for it
# The timed work is as many products of matrices as take this share of the steps, on a chip with
# 400 TFLOP/s. They are as many on every host, or launching them would weigh more on some.
_SHARE, _FLOPS_PER_S, _MOST_PRODUCTS = 0.0005, 4e14, 4096
_SIZE = 1024
_WAITED_S = 1e-4  # a host that waited less for the step was late itself, and cannot time the work
_TICK_S = 0.02
_clock = time.perf_counter


class OwnTimes(AbstractContextManager["OwnTimes"]):
    """Times of this process, gathered every few steps. With one process it does nothing."""

    def __init__(self, step_s: float) -> None:
        """Prepare for steps of at least that many seconds."""
        self._alone = jax.process_count() == 1
        self._host_s: list[float] = []
        self._input_s = 0.0
        self._late_s, self._ticks_from_s, self._closing = 0.0, _clock(), threading.Event()
        self._working: jax.Array | None = None  # the timed work, on the devices
        # Emulated devices do the work during the next step, on cores that all processes share.
        self._times_devices = jax.local_devices()[0].platform != "cpu"
        self._gathered: jax.Array | None = None
        if not self._alone:
            self._prepare(step_s)
            threading.Thread(target=self._tick, name="ticks", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._closing.set()

    def _prepare(self, step_s: float) -> None:
        """Compile the work that is timed on this process's devices, and the gather."""
        mine = jax.local_devices()
        local = Mesh(np.array(mine), ("mine",))
        self._everywhere = NamedSharding(local, PartitionSpec())
        products = int(_SHARE * EVERY * step_s * _FLOPS_PER_S / (2 * _SIZE**3))
        count = min(max(products, 1), _MOST_PRODUCTS)
        shape, kind = (len(mine), _SIZE, _SIZE), NamedSharding(local, PartitionSpec("mine"))
        self._matrices = jax.device_put(jnp.full(shape, 1 / _SIZE, jnp.bfloat16), kind)

        def work(after: jax.Array, x: jax.Array) -> jax.Array:
            # The scalar `after` comes from a step: the work begins when that has ended.
            y = x + (0 * after).astype(x.dtype)
            return jax.lax.fori_loop(0, count, lambda _, y: jnp.matmul(x, y), y)[:, 0, 0]

        self._work = jax.jit(work)
        if self._times_devices:
            zero = jax.device_put(np.float32(0), self._everywhere)
            self._work(zero, self._matrices).block_until_ready()
        first: dict[int, jax.Device] = {}  # of each process
        for device in jax.devices():
            first.setdefault(device.process_index, device)
        here = SingleDeviceSharding(first[jax.process_index()])
        self._row = jax.jit(lambda own: own[None], out_shardings=here)  # faster than device_put
        ranks = Mesh(np.array([first[rank] for rank in sorted(first)]), ("rank",))
        self._each = NamedSharding(ranks, PartitionSpec("rank"))
        replicated = NamedSharding(ranks, PartitionSpec())
        self._gather = jax.jit(_own_times, out_shardings=replicated)
        self._start_gather(np.zeros(4, np.float32))
        jax.block_until_ready(self._gathered)
        self._gathered = None

    def _tick(self) -> None:
        """Sum up by how much short sleeps are late: the process was stopped, or had no core."""
        before = _clock()
        while not self._closing.wait(_TICK_S):
            now = _clock()
            self._late_s += max(now - before - _TICK_S, 0.0)
            before = now

    def begin_work(self, index: int, metrics: Mapping[str, jax.Array]) -> None:
        """Put the timed work behind a step that is on the devices."""
        if self._alone or not self._times_devices or (index + 1) % EVERY:
            return
        shards = {shard.device: shard.data for shard in metrics["loss"].addressable_shards}
        devices = self._everywhere.mesh.devices.flat
        after = jax.make_array_from_single_device_arrays(
            (), self._everywhere, [shards[device] for device in devices]
        )
        self._working = self._work(after, self._matrices)

    def end_step(
        self, index: int, *, host_s: float, input_s: float, waited_s: float
    ) -> HostTimes | None:
        """Note a step that has just ended; return what the processes measured, when it is here."""
        if self._alone:
            return None
        self._host_s.append(host_s)
        self._input_s += input_s
        due = (index + 1) % EVERY
        if due == 0:
            self._start_gather(self._own(waited_s))
        elif due == _READ_LATER and self._gathered is not None and jax.process_index() == 0:
            rows = np.asarray(self._gathered.addressable_data(0), float)
            columns = (tuple(float(f"{value:.3g}") for value in column) for column in rows.T)
            devices_s, host, inputs_s, stopped = columns
            return HostTimes(devices_s=devices_s, host_s=host, input_s=inputs_s, stopped=stopped)
        return None

    def _own(self, waited_s: float) -> np.ndarray:
        """The times of the last steps, as HostTimes has them."""
        devices_s, steps, began = 0.0, len(self._host_s), _clock()
        if self._working is not None:
            self._working.block_until_ready()
            if waited_s > _WAITED_S:
                devices_s = _clock() - began
        now, late_s = _clock(), self._late_s
        stopped = min(late_s / max(now - self._ticks_from_s, 1e-9), 1.0)
        own = (devices_s, median(self._host_s), self._input_s / steps, stopped)
        self._working, self._host_s, self._input_s = None, [], 0.0
        self._late_s, self._ticks_from_s = 0.0, now
        return np.array(own, np.float32)

    def _start_gather(self, own: np.ndarray) -> None:
        mine, shape = self._row(own), (self._each.mesh.size, len(own))
        rows = jax.make_array_from_single_device_arrays(shape, self._each, [mine])
        self._gathered = self._gather(rows)


def _own_times(rows: jax.Array) -> jax.Array:
    return rows * 1
