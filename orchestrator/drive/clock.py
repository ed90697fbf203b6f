"""The clock of a driver: real, or one that a simulation moves."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Seconds that only grow, and a way to wait."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
