"""A rank whose end a backend has seen: it may never have sent a heartbeat."""

import signal
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DeadRank:
    """A rank, where it was, and in words how it ended."""

    rank: int
    host: str
    slice_name: str
    how: str

    @property
    def error(self) -> str:
        """All of it in one line."""
        return f"rank {self.rank} {self.how} (host {self.host}, slice {self.slice_name})"


def describe_exit(code: int) -> str:
    """How a process ended, by the code that the system gives its parent: signals are negative."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
