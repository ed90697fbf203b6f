"""Data room: the next few batches made while the device works. Knows threads, and no data."""

import threading
from collections.abc import Callable
from queue import Empty, Full, Queue
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")
POLL_S = 0.1


class Prefetched(Generic[T]):
    """`make(step)` for each step in order, called in one thread, at most `ahead` of the reader.

    What `make` raises is raised by `take` in its place.
    """

    def __init__(self, make: Callable[[int], T], steps: range, *, ahead: int = 2) -> None:
        self._make, self._steps = make, steps
        self._ready: Queue[T | BaseException] = Queue(maxsize=ahead)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()

    def take(self) -> T:
        """What was made for the next step; waits for it, and raises what making it raised."""
        made = self._next()
        if isinstance(made, BaseException):
            raise made
        return made

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
                made: T | BaseException = self._make(step)
            except BaseException as error:  # noqa: BLE001 - the reader raises it
                made = error
            if not self._put(made) or isinstance(made, BaseException):
                return

    def _put(self, made: T | BaseException) -> bool:
        """Wait for room, unless the reader has gone: False then."""
        while not self._closing.is_set():
            try:
                self._ready.put(made, timeout=POLL_S)
            except Full:
                continue
            return True
        return False
