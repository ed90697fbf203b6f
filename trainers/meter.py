"""Measure each step, one step late, so that the device never waits for the meter. A step ends when
its metrics can be read: when the next is on the device. Memory is read after an attempt's first
step, and where the loop pauses: after evaluations, before saves, at the end.
"""

import gzip
import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import jax

from orchestrator.errors import LossNotFinite, OrchError, SpecError
from orchestrator.planning import flops
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.profile import PROGRAM, TRACE, TraceNote
from orchestrator.values.run import Evaluation, Startup, Step
from trainers.contract import METRICS, Program, place
from trainers.data.batches import HeldOut
from trainers.own_times import OwnTimes

_State = dict[str, Any]
_COMPILATION = "/jax/core/compile/backend_compile_duration"  # JAX tells it of each
clock = time.perf_counter


def _peak_hbm_bytes() -> int | None:
    """Return the most that any device of this process has used; None if none reports it."""
    reports = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [report["peak_bytes_in_use"] for report in reports if "peak_bytes_in_use" in report]
    return max(peaks, default=None)


_compilations: list[float] = []


def _compiled_s() -> float:
    """Return the seconds that this process has spent compiling since it was first asked."""
    if not _compilations:
        _compilations.append(0.0)

        def add(event: str, duration_secs: float, **_: str | int) -> None:
            if event == _COMPILATION:
                _compilations[0] += duration_secs

        jax.monitoring.register_event_duration_secs_listener(add)
    return _compilations[0]


class Meter:
    """Measures steps and passes them to `emit`, in order; the first step begins with the meter."""

    def __init__(
        self,
        program: Program,
        emit: Callable[[Step], None],
        startup: Startup,
        peak_flops_per_s: float | None,  # of one device in the compute type, where it is known
        own: OwnTimes | None = None,  # of the processes; None: nobody asks who is slow
        *,
        clock: Callable[[], float] = clock,
        memory: Callable[[], int | None] = _peak_hbm_bytes,
    ) -> None:
        self._plan, self._emit = program.plan, emit
        self._clock, self._memory = clock, memory
        self._flops = program.model_flops_per_step
        self._peak_flops_per_s = peak_flops_per_s
        self._startup: Startup | None = startup
        self._pending: tuple[int, Mapping[str, jax.Array]] | None = None  # on the device
        self._evaluation: Evaluation | None = None
        self._own = own
        self._data_s = self._checkpoint_s = self._devices_s = 0.0
        self._compiled_s = _compiled_s()
        self._last_end = clock()

    def add_wait(
        self, *, data_s: float = 0.0, checkpoint_s: float = 0.0, devices_s: float = 0.0
    ) -> None:
        """Note that the loop waited: for a batch, for a state to be copied, for the devices."""
        self._data_s += data_s
        self._checkpoint_s += checkpoint_s
        if checkpoint_s:  # what a first save compiles is a part of it
            self._compiled_s = _compiled_s()
        self._devices_s += devices_s

    def add_step(self, index: int, metrics: Mapping[str, jax.Array]) -> None:
        """Note a step that is now on the device, and measure the one before it."""
        for metric in metrics.values():
            metric.copy_to_host_async()
        if self._own:
            self._own.begin_work(index, metrics)
        self.flush(with_memory=self._startup is not None)
        self._pending = index, metrics

    def evaluate(self, measure: Callable[[], Evaluation]) -> None:
        """Wait for the step on the device, and measure the loss of held-out text after it."""
        pending, self._pending = self._pending, None
        if pending is None:
            raise ValueError("no step is on the device")
        step = self._measured(*pending, with_memory=False)
        self._evaluation = measure()
        self._last_end, self._compiled_s = self._clock(), _compiled_s()
        if not math.isfinite(self._evaluation.loss):
            raise LossNotFinite(f"step {step.index + 1}: its loss on held-out text is not finite")
        self._emit(replace(step, evaluation=self._evaluation, peak_hbm_bytes=self._memory()))

    def flush(self, *, with_memory: bool = True) -> None:
        """Wait for the step on the device, if there is one, and measure it and the memory."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._emit(self._measured(*pending, with_memory=with_memory))

    def _measured(self, index: int, metrics: Mapping[str, jax.Array], *, with_memory: bool) -> Step:
        waits_from = clock()
        values = {name: float(metric) for name, metric in metrics.items()}
        waited_s = clock() - waits_from
        began, self._last_end = self._last_end, self._clock()
        for name in ("loss", "grad_norm"):
            if not math.isfinite(values[name]):  # screens count from one
                raise LossNotFinite(
                    f"step {index + 1}: {name} is {values[name]}; the state before it is the last"
                    " good one"
                )
        step_s, plan, peak = self._last_end - began, self._plan, self._peak_flops_per_s
        rates: dict[str, Any] = {}
        if not self._startup:
            rates = {
                "tokens_per_s_per_chip": plan.batch.tokens / step_s / plan.chips,
                "model_flops_per_s_per_chip": self._flops / step_s / plan.chips,
                "mfu": peak and flops.mfu(self._flops, step_s, plan.devices, peak),
            }
        compiled_s, hosts, told_from = _compiled_s(), None, clock()
        if self._own:
            elsewhere_s = self._devices_s + self._data_s + self._checkpoint_s
            hosts = self._own.end_step(
                index,
                host_s=max(step_s - waited_s - elsewhere_s, 0.0),
                input_s=self._data_s,
                waited_s=waited_s,
            )
        measured = Step(
            index=index,
            step_s=step_s,
            data_s=self._data_s,
            checkpoint_s=self._checkpoint_s,
            tokens=plan.batch.tokens,
            loss=values["loss"],
            grad_norm=values["grad_norm"],
            learning_rate=values["learning_rate"],
            peak_hbm_bytes=self._memory() if with_memory else None,
            trainer_metrics={name: values[name] for name in values if name not in METRICS},
            startup=self._startup,
            evaluation=self._evaluation,
            compile_s=0.0 if self._startup else compiled_s - self._compiled_s,
            hosts=hosts,
            **rates,
        )
        self._startup, self._compiled_s = None, compiled_s
        self._data_s = self._checkpoint_s = 0.0
        self._devices_s = clock() - told_from  # the gather may wait for them too
        return measured


class Evaluator:
    """Evaluates held-out text after each `every` steps and the last, calling `progressed`."""

    def __init__(
        self, program: Program, text: HeldOut, every: int, last: int, progressed: Callable[[], None]
    ) -> None:
        if program.evaluate is None:
            trainer = program.plan.trainer
            raise SpecError(f"run.evaluation: trainer {trainer} has no evaluation; leave it out")
        self._program, self._text, self._progressed = program, text, progressed
        self._every, self._last = every, last
        lowered = program.evaluate.lower(program.state, program.batch)
        self._compiled = lowered.compile(compiler_options=program.compiler_options or None)

    def is_due(self, done: int) -> bool:
        return done % self._every == 0 or done == self._last

    def evaluate(self, state: _State, done: int) -> Evaluation:
        """Return the mean loss over all predicted tokens."""
        began, loss, tokens = clock(), 0.0, 0
        pending: list[dict[str, jax.Array]] = []
        for number in range(self._text.batches + 1):
            # A batch is placed while the one before it is on the device.
            batch = self._batch(number) if number < self._text.batches else None
            for sums in pending:
                self._progressed()
                loss, tokens = loss + float(sums["loss_sum"]), tokens + int(sums["tokens"])
            pending = [] if batch is None else [self._compiled(state, batch)]
        return Evaluation(
            steps_done=done, loss=loss / tokens, tokens=tokens, evaluation_s=clock() - began
        )

    def _batch(self, number: int) -> Any:
        return place(
            self._program, lambda start, stop: self._text.batch(number, range(start, stop))
        )


# XProf traces of some steps of one process, each in a folder of its own, with what reads it later:
# the compiled program, and which steps of which plan it has. See docs/profile.md.


def _text_of(compiled: jax.stages.Compiled) -> str:
    return compiled.as_text() or ""


class StepTraces:
    """Traces the steps that `wanted` returns; it is asked before each step, and may change its
    mind. `kept` is called with the folder of each trace. No fault of a trace ends the training.
    """

    def __init__(
        self,
        folder: Path,
        wanted: Callable[[], range],
        kept: Callable[[Path], object],
        program_text: Callable[[jax.stages.Compiled], str] | None = None,
    ) -> None:
        self._folder, self.wanted, self._kept = folder, wanted, kept
        self._program_text = program_text or _text_of
        self._began: int | None = None  # the first step of the trace that is being taken
        self._next, self._refused = 0, range(0)

    def of(self, compiled: jax.stages.Compiled, plan: Plan) -> Self:
        self._compiled, self._plan = compiled, plan
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def step(self, index: int, drain: Callable[[], None]) -> AbstractContextManager[object]:
        """Mark a step in the trace; `drain` is called before a trace begins and before it ends."""
        wanted = self.wanted()
        if self._began is not None and index not in wanted:
            drain()
            self._end()
        elif self._began is None and index in wanted and wanted != self._refused:
            drain()
            self._begin(index, wanted)
        self._next = index + 1
        return jax.profiler.StepTraceAnnotation("step", step_num=index)

    def _begin(self, index: int, wanted: range) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # each call of Python would be an event, and slow the step
        steps, rank = f"steps-{wanted.start}-{wanted.stop}", f"rank-{jax.process_index()}"
        self._into = self._folder / steps / rank
        try:
            jax.profiler.start_trace(self._into, profiler_options=options)
        except (OSError, RuntimeError) as error:  # somebody else is tracing this process
            self._refused = wanted
            print(f"no trace of steps {index} to {wanted.stop - 1}: {error}", file=sys.stderr)
            return
        self._began = index

    def _end(self) -> None:
        began, self._began = self._began, None
        if began is None:
            return
        device = jax.local_devices()[0]
        note = TraceNote(
            plan_digest=self._plan.digest,
            rank=jax.process_index(),
            first_step=began,
            end_step=self._next,
            platform=device.platform,
            device_kind=device.device_kind,
        )
        try:
            jax.profiler.stop_trace()
            text = self._program_text(self._compiled)
            (self._into / PROGRAM).write_bytes(gzip.compress(text.encode(), 6))
            (self._into / TRACE).write_bytes(codec.to_json(note))  # last: the trace is whole
            self._kept(self._into)
        except (OSError, RuntimeError, OrchError) as error:
            print(f"the trace in {self._into} is not whole: {error}", file=sys.stderr)
