"""Say what an interrupt ended, and what is left of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.errors import Interrupted


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
