"""Interrupts of an operation: they become an error that says what ended, or are collected."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from orchestrator.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class OperationInterrupted(Interrupted):
    """Ctrl-C ended an operation. `next_command` continues it; empty for the same command again."""

    code = Interrupted.code

    def __init__(
        self, doing: str, left: str = "nothing is left running", next_command: str = ""
    ) -> None:
        super().__init__(f"interrupted while {doing}; {left}", next_command=next_command)


@contextmanager
def interruptible(
    doing: str, left: str = "nothing is left running", next_command: str = ""
) -> Iterator[None]:
    """Turn Ctrl-C into an error that says what it ended and what is left of it."""
    try:
        yield
    except KeyboardInterrupt:
        raise OperationInterrupted(doing, left, next_command) from None


@contextmanager
def interruptible_by_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM both interrupt, also where a shell ignores them."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(interrupt):
        yield


@contextmanager
def collected_interrupts() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM during a `with` block; they do not end the process.

    Python delivers signals to its main thread alone: another thread collects none.
    """
    numbers: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield numbers
        return
    with _handled_by(lambda number, _: numbers.append(number)):
        yield numbers


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    earlier = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, previous in earlier.items():
            signal.signal(number, previous)


def interrupt_name(number: int) -> str:
    """The interrupt as people call it."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    return f"interrupted ({name})"
