"""Report the progress of an act to whoever watches, and say what an interrupt ended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from orchestrator.errors import Interrupted
from orchestrator.types.events import Stage, TaskEnded

Progress: TypeAlias = Callable[[object], None]  # called with each event of types/events.py


def silent(_: object) -> None:
    """The progress that nobody watches."""


class ActInterrupted(Interrupted):
    """Ctrl-C ended an act. `next_command` continues it; empty for the same command again."""

    def __init__(
        self, doing: str, left: str = "nothing is left running", next_command: str = ""
    ) -> None:
        super().__init__(f"interrupted while {doing}; {left}")
        self.next_command = next_command


@contextmanager
def interruptible(
    doing: str, left: str = "nothing is left running", next_command: str = ""
) -> Iterator[None]:
    """Turn Ctrl-C into an error that says what it ended and what is left of it."""
    try:
        yield
    except KeyboardInterrupt:
        raise ActInterrupted(doing, left, next_command) from None


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
