"""What each process measures of itself, told to the first. All processes end a step together, so a
step's time does not tell who made the others wait. These times do: each is without any wait for
others. The time of a step's own operations on the devices is not among them: a trace has it.
"""

import struct
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orchestrator.values.slowdowns import HostTimes
from trainers.jax_private_api import process_messages

EVERY = 3  # steps between gathers
_READ_LATER = 1  # steps after a gather: by then all have told theirs
# Processes tell each other over JAX's own service, from a thread: a collective on the devices, and
# an array for it, would take the training thread 0.5 ms. Each has one key, with its newest times.
_KEY, _TIMES = "orch/own-times/", struct.Struct("=q4d")  # the gather, and the times
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
        self._alone, self._rank = jax.process_count() == 1, jax.process_index()
        self._host_s: list[float] = []
        self._input_s = 0.0
        self._late_s, self._ticks_from_s, self._closing = 0.0, _clock(), threading.Event()
        self._working: jax.Array | None = None  # the timed work, on the devices
        # Emulated devices do the work during the next step, on cores that all processes share.
        self._times_devices = jax.local_devices()[0].platform != "cpu"
        # Times of an earlier stage no longer count.
        self._to_tell: bytes | None = _TIMES.pack(-1, 0, 0, 0, 0)
        self._wanted: int | None = None  # the gather that the first process asks for
        self._told: HostTimes | None = None
        if not self._alone:
            if self._times_devices:
                self._compile_work(step_s)
            self._thread = threading.Thread(target=self._tick, name="ticks", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        if not self._alone:
            self._thread.join(_TICK_S * 50)

    def _compile_work(self, step_s: float) -> None:
        """Compile the work that is timed on this process's devices."""
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
        zero = jax.device_put(np.float32(0), self._everywhere)
        self._work(zero, self._matrices).block_until_ready()

    def _tick(self) -> None:
        """Sum up by how much short sleeps are late: the process was stopped, or had no core. In
        between, tell the others of this process, and learn of theirs.
        """
        service = process_messages()
        while True:
            before = _clock()
            if self._closing.wait(_TICK_S):
                return
            self._late_s += max(_clock() - before - _TICK_S, 0.0)
            # Where the service is gone JAX ends the process, and says why.
            with suppress(jax.errors.JaxRuntimeError):
                if own := self._to_tell:
                    self._to_tell = None
                    service.key_value_set_bytes(f"{_KEY}{self._rank}", own, allow_overwrite=True)
                if (gather := self._wanted) is not None:
                    rows = service.key_value_dir_get_bytes(_KEY)
                    self._told = _times(rows, gather)
                    self._wanted = None if self._told else gather

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
        gather, due = divmod(index + 1, EVERY)
        if due == 0:
            self._to_tell = self._own(gather, waited_s)
        elif due == _READ_LATER and self._rank == 0:
            self._wanted = gather
        told, self._told = self._told, None
        return told

    def _own(self, gather: int, waited_s: float) -> bytes:
        """The times of the last steps, as HostTimes has them."""
        devices_s, steps, began = 0.0, len(self._host_s), _clock()
        if self._working is not None:
            self._working.block_until_ready()
            if waited_s > _WAITED_S:
                devices_s = _clock() - began
        now, late_s = _clock(), self._late_s
        stopped = min(late_s / max(now - self._ticks_from_s, 1e-9), 1.0)
        host_s, input_s = median(self._host_s), self._input_s / steps
        self._working, self._host_s, self._input_s = None, [], 0.0
        self._late_s, self._ticks_from_s = 0.0, now
        return _TIMES.pack(gather, devices_s, host_s, input_s, stopped)


def _times(rows: list[tuple[str, bytes]], gather: int) -> HostTimes | None:
    """The times that all processes told in this gather or a later one; None until all have."""
    known = {int(key.rpartition("/")[2]): _TIMES.unpack(row) for key, row in rows}
    if len(known) < jax.process_count() or min(row[0] for row in known.values()) < gather:
        return None
    ranks = zip(*(known[rank][1:] for rank in sorted(known)), strict=True)
    columns = (tuple(float(f"{value:.3g}") for value in column) for column in ranks)
    devices_s, host_s, input_s, stopped = columns
    return HostTimes(devices_s=devices_s, host_s=host_s, input_s=input_s, stopped=stopped)
