"""What each step took and what it gave, read one step late. Knows JAX arrays, stations and FLOPs.

The metrics of a step are read when the next one is already on the device, so the device never
waits for the meter. A step ends when its metrics can be read. Memory is looked up when an attempt
has done its first step, and where the loop pauses anyway: before it saves, and at the end.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax

from orchestrator.errors import LossNotFinite
from orchestrator.plan import flops
from orchestrator.types.run import Startup, Step
from trainers.contract import METRICS, Program


@dataclass(frozen=True, kw_only=True)
class Dispatched:
    """A step that is on the device."""

    index: int
    metrics: Mapping[str, jax.Array]


def peak_hbm_bytes() -> int | None:
    """The most that any device of this process has held so far; None where devices do not say."""
    told = [device.memory_stats() or {} for device in jax.local_devices()]
    return max(
        (one["peak_bytes_in_use"] for one in told if "peak_bytes_in_use" in one), default=None
    )


class Meter:
    """Turns dispatched steps into measured ones and hands them to `emit`, in order.

    `peak_flops_per_s` is of one device in the compute type; None where nobody knows it. The clock
    of the first step starts here.
    """

    def __init__(
        self,
        program: Program,
        emit: Callable[[Step], None],
        opening: Startup,
        peak_flops_per_s: float | None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        memory: Callable[[], int | None] = peak_hbm_bytes,
    ) -> None:
        self._plan, self._emit = program.plan, emit
        self._clock, self._memory = clock, memory
        self._flops = program.model_flops_per_step
        self._peak_flops_per_s = peak_flops_per_s
        self._opening: Startup | None = opening
        self._pending: Dispatched | None = None
        self._data_s = self._checkpoint_s = 0.0
        self._ended = clock()

    def waited(self, *, data_s: float = 0.0, checkpoint_s: float = 0.0) -> None:
        """Note what the loop waited for; it counts to the step that is measured next."""
        self._data_s += data_s
        self._checkpoint_s += checkpoint_s

    def dispatched(self, index: int, metrics: Mapping[str, jax.Array]) -> None:
        """Note a step that was put on the device, and measure the one before it."""
        for metric in metrics.values():
            metric.copy_to_host_async()
        self._read(looks=self._opening is not None)
        self._pending = Dispatched(index=index, metrics=metrics)

    def flush(self) -> None:
        """Wait for the step on the device, if there is one, and measure it and the memory."""
        self._read(looks=True)

    def _read(self, *, looks: bool) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._emit(self._measured(pending, looks=looks))

    def _measured(self, step: Dispatched, *, looks: bool) -> Step:
        values = {name: float(metric) for name, metric in step.metrics.items()}
        began, self._ended = self._ended, self._clock()
        _check_finite(step.index, values)
        step_s = self._ended - began
        rates = {} if self._opening else self._rates(step_s)
        measured = Step(
            index=step.index,
            step_s=step_s,
            data_s=self._data_s,
            checkpoint_s=self._checkpoint_s,
            tokens=self._plan.batch.tokens,
            loss=values["loss"],
            grad_norm=values["grad_norm"],
            learning_rate=values["learning_rate"],
            peak_hbm_bytes=self._memory() if looks else None,
            trainer_metrics={name: values[name] for name in values if name not in METRICS},
            startup=self._opening,
            **rates,
        )
        self._opening, self._data_s, self._checkpoint_s = None, 0.0, 0.0
        return measured

    def _rates(self, step_s: float) -> dict[str, float | None]:
        plan, peak_flops_per_s = self._plan, self._peak_flops_per_s
        return {
            "tokens_per_s_per_chip": plan.batch.tokens / step_s / plan.chips,
            "model_flops_per_s_per_chip": self._flops / step_s / plan.chips,
            "mfu": peak_flops_per_s
            and flops.mfu(self._flops, step_s, plan.devices, peak_flops_per_s),
        }


def _check_finite(index: int, values: Mapping[str, float]) -> None:
    for name in ("loss", "grad_norm"):
        if not math.isfinite(values[name]):
            said = f"step {index + 1}: {name} is {values[name]}"  # counted as screens count
            raise LossNotFinite(f"{said}; the state before it is the last good one")
