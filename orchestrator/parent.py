"""Ends a process with the one that started it, however that one ends. Uses the standard library."""

import os
import threading
import time
from collections.abc import Callable

POLL_S = 0.5


def end_with_parent(end: Callable[[], object]) -> None:
    """Call `end` from a thread once the parent of this process is gone."""
    parent = os.getppid()

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_S)
        end()

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()
