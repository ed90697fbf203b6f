"""Measure each step, one step late.

The metrics of a step are read when the next one is already on the device, so the device never waits
for the meter. A step ends when its metrics can be read. Memory is read after the first step of an
attempt, and where the loop pauses anyway: after evaluations, before it saves, and at the end.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from orchestrator.errors import LossNotFinite, SpecError
from orchestrator.planning import flops
from orchestrator.values.run import Evaluation, Startup, Step
from trainers.contract import METRICS, Program, place
from trainers.data.batches import HeldOut


@dataclass(frozen=True, kw_only=True)
class PendingStep:
    """A step that is on the device."""

    index: int
    metrics: Mapping[str, jax.Array]


def peak_hbm_bytes() -> int | None:
    """The most that any device of this process has used; None where devices do not report it."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return max(
        (one["peak_bytes_in_use"] for one in stats if "peak_bytes_in_use" in one), default=None
    )


class Meter:
    """Measures steps and passes them to `emit`, in order.

    `peak_flops_per_s` is of one device in the compute type; None where unknown. The clock of the
    first step starts with the meter.
    """

    def __init__(
        self,
        program: Program,
        emit: Callable[[Step], None],
        startup: Startup,
        peak_flops_per_s: float | None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        memory: Callable[[], int | None] = peak_hbm_bytes,
    ) -> None:
        self._plan, self._emit = program.plan, emit
        self._clock, self._memory = clock, memory
        self._flops = program.model_flops_per_step
        self._peak_flops_per_s = peak_flops_per_s
        self._startup: Startup | None = startup
        self._pending: PendingStep | None = None
        self._evaluation: Evaluation | None = None
        self._data_s = self._checkpoint_s = 0.0
        self._last_end = clock()

    def add_wait(self, *, data_s: float = 0.0, checkpoint_s: float = 0.0) -> None:
        """Add what the loop waited for to the step that is measured next."""
        self._data_s += data_s
        self._checkpoint_s += checkpoint_s

    def add_step(self, index: int, metrics: Mapping[str, jax.Array]) -> None:
        """Note a step that is now on the device, and measure the one before it."""
        for metric in metrics.values():
            metric.copy_to_host_async()
        self._measure_pending(with_memory=self._startup is not None)
        self._pending = PendingStep(index=index, metrics=metrics)

    def evaluate(self, measure: Callable[[], Evaluation]) -> None:
        """Wait for the step on the device, and measure the loss of held-out text after it."""
        pending, self._pending = self._pending, None
        if pending is None:
            raise ValueError("no step is on the device")
        step = self._measured(pending, with_memory=False)
        self._evaluation = measure()
        self._last_end = self._clock()
        if not math.isfinite(self._evaluation.loss):
            raise LossNotFinite(f"step {step.index + 1}: its loss on held-out text is not finite")
        self._emit(replace(step, evaluation=self._evaluation, peak_hbm_bytes=self._memory()))

    def flush(self) -> None:
        """Wait for the step on the device, if there is one, and measure it and the memory."""
        self._measure_pending(with_memory=True)

    def _measure_pending(self, *, with_memory: bool) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._emit(self._measured(pending, with_memory=with_memory))

    def _measured(self, step: PendingStep, *, with_memory: bool) -> Step:
        values = {name: float(metric) for name, metric in step.metrics.items()}
        began, self._last_end = self._last_end, self._clock()
        _check_finite(step.index, values)
        step_s = self._last_end - began
        rates = {} if self._startup else self._rates(step_s)
        measured = Step(
            index=step.index,
            step_s=step_s,
            data_s=self._data_s,
            checkpoint_s=self._checkpoint_s,
            tokens=self._plan.batch.tokens,
            loss=values["loss"],
            grad_norm=values["grad_norm"],
            learning_rate=values["learning_rate"],
            peak_hbm_bytes=self._memory() if with_memory else None,
            trainer_metrics={name: values[name] for name in values if name not in METRICS},
            startup=self._startup,
            evaluation=self._evaluation,
            **rates,
        )
        self._startup, self._data_s, self._checkpoint_s = None, 0.0, 0.0
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
            step = index + 1  # screens count from one
            raise LossNotFinite(
                f"step {step}: {name} is {values[name]}; the state before it is the last good one"
            )


# The loss on held-out text, by the forward pass of a program. The state stays as it is.


State = dict[str, Any]
clock = time.perf_counter


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Evaluates after every so many steps, and after the last. `progressed` is called after each
    batch.
    """

    program: Program
    compiled: jax.stages.Compiled
    text: HeldOut
    every: int
    last: int
    progressed: Callable[[], None]

    def is_due(self, done: int) -> bool:
        return done % self.every == 0 or done == self.last

    def evaluate(self, state: State, done: int) -> Evaluation:
        """The mean loss over all predicted tokens. A batch is placed while one is on the device."""
        began, loss, tokens = clock(), 0.0, 0
        pending: dict[str, jax.Array] | None = None
        for number in range(self.text.batches):
            batch = self._batch(number)
            if pending is not None:
                loss, tokens = self._added(loss, tokens, pending)
            pending = self.compiled(state, batch)
        assert pending is not None
        loss, tokens = self._added(loss, tokens, pending)
        return Evaluation(
            steps_done=done, loss=loss / tokens, tokens=tokens, evaluation_s=clock() - began
        )

    def _batch(self, number: int) -> Any:
        return place(self.program, lambda start, stop: self.text.batch(number, range(start, stop)))

    def _added(self, loss: float, tokens: int, sums: dict[str, jax.Array]) -> tuple[float, int]:
        self.progressed()
        return loss + float(sums["loss_sum"]), tokens + int(sums["tokens"])


def compiled_evaluation(program: Program) -> jax.stages.Compiled:
    """The forward pass of a program, compiled ahead of time with the plan's options."""
    if program.evaluate is None:
        trainer = program.plan.trainer
        raise SpecError(f"run.evaluation: trainer {trainer} has no evaluation; leave it out")
    lowered = program.evaluate.lower(program.state, program.batch)
    return lowered.compile(compiler_options=program.compiler_options or None)
