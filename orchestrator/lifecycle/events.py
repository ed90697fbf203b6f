"""Events: how far an act is, as plain values for whoever shows them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from orchestrator.errors import Interrupted


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A task that takes a while has begun, or has come to another stage."""

    task: str
    stage: str


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many of a task's units are done; `total` is None where nobody knows it."""

    task: str
    done: int
    total: int | None = None
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskEnded:
    """A task has ended, well or not."""

    task: str


Progress: TypeAlias = Callable[[object], None]  # called with each event


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
