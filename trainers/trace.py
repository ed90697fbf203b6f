"""Keeps XProf traces of some steps of one process, each in a folder of its own, with what reads it
later: the compiled program, and which steps of which plan it has. See docs/profile.md.
"""

import gzip
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import jax

from orchestrator.errors import OrchError
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.profile import PROGRAM, TRACE, TraceNote


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
