"""The deadline of a call to a server, and of all calls of a sync.

The time limit of the HTTP library begins anew with every byte, so a server that sends one now and
then would hold a caller for ever. An alarm of the process ends the call whatever it waits for.
Python delivers signals to its main thread only: in another thread only the library's limit counts.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.tracking.protocol import NotRecorded
from orchestrator.values.run import Destination

CALL_LIMIT_S = 60.0
FILE_LIMIT_S = 300.0  # files go in one call each
SYNC_LIMIT_S = 1_200.0
# A library may catch the error of an alarm and go on.
_RING_AGAIN_S = 1.0


@contextmanager
def deadline(where: Destination, limit_s: float, what: str) -> Iterator[None]:
    """Raise `NotRecorded` in a `with` block that takes longer. Blocks may lie in each other."""
    outer_left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or 0 < outer_left_s <= limit_s:  # the outer block ends this one
        yield
        return
    ended, passed = False, None

    def ring(*_: object) -> None:
        nonlocal passed
        if not ended:
            passed = NotRecorded(f"{where.label}: {what} took more than {limit_s:,.0f} s")
            raise passed

    began_s, outer = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s, _RING_AGAIN_S)
    try:
        yield
    except Exception as error:
        if passed and error is not passed:  # libraries wrap errors
            raise passed from error
        raise
    finally:
        ended = True
        left_s = outer_left_s and max(outer_left_s - (time.monotonic() - began_s), 0.001)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer)
        signal.setitimer(signal.ITIMER_REAL, left_s, _RING_AGAIN_S if left_s else 0)
