"""Make the next few batches in a thread while the device works."""

import threading
from collections.abc import Callable
from queue import Empty, Full, Queue
from typing import Generic, Self, TypeVar

T = TypeVar("T")
POLL_S = 0.1


class Prefetched(Generic[T]):
    """Calls `make(step)` for each step in order, in one thread, at most `ahead` of the reader.

    What `make` raises, `take` raises.
    """

    def __init__(self, make: Callable[[int], T], steps: range, *, ahead: int = 2) -> None:
        self._make, self._steps = make, steps
        self._ready: Queue[T | BaseException] = Queue(maxsize=ahead)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()

    def take(self) -> T:
        """The result for the next step; waits for it."""
        result = self._next()
        if isinstance(result, BaseException):
            raise result
        return result

    def _next(self) -> T | BaseException:
        while True:
            try:
                return self._ready.get(timeout=POLL_S)
            except Empty:
                if not self._thread.is_alive() and self._ready.empty():
                    raise IndexError(f"no step is left of {self._steps}") from None

    def _run(self) -> None:
        for step in self._steps:
            try:
                result: T | BaseException = self._make(step)
            except BaseException as error:  # noqa: BLE001 - the reader raises it
                result = error
            if not self._put(result) or isinstance(result, BaseException):
                return

    def _put(self, result: T | BaseException) -> bool:
        """Wait until the queue has space; False if the reader is gone."""
        while not self._closing.is_set():
            try:
                self._ready.put(result, timeout=POLL_S)
            except Full:
                continue
            return True
        return False
