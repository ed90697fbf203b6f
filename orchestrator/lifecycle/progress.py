"""Report the progress of an operation to whoever watches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from orchestrator.lifecycle.interrupts import interruptible
from orchestrator.types.progress_events import ProgressEvent, Stage, TaskEnded

Progress: TypeAlias = Callable[[ProgressEvent], None]


def silent(_: ProgressEvent) -> None:
    """The progress that nobody watches."""


@contextmanager
def task(progress: Progress, name: str) -> Iterator[Callable[[str], None]]:
    """Report a task's stages for as long as it lasts, and what Ctrl-C ended."""

    def reached(stage: str) -> None:
        progress(Stage(task=name, stage=stage))

    try:
        with interruptible(name):
            yield reached
    finally:
        progress(TaskEnded(task=name))
