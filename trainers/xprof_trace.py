"""An XProf trace of chosen steps."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import jax


class XprofTrace:
    """Traces the steps of a range on the primary process, into `folder`."""

    def __init__(self, folder: Path, steps: range) -> None:
        self._folder = folder
        self._steps = steps if jax.process_index() == 0 else range(0)
        self._tracing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tracing:
            self._stop()

    def step(self, index: int, drain: Callable[[], None]) -> AbstractContextManager[object]:
        """Mark a step in the trace; `drain` is called before a trace begins and before it ends."""
        if self._tracing != (index in self._steps):
            drain()
            if self._tracing:
                self._stop()
            else:
                self._start()
        return jax.profiler.StepTraceAnnotation("step", step_num=index)

    def _start(self) -> None:
        jax.profiler.start_trace(self._folder)
        self._tracing = True

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._tracing = False
