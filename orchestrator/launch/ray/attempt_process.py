"""Launch room: the driver's end of the process that carries out an attempt."""

import os
import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from orchestrator.launch.ray.protocol import AttemptCommand, AttemptEvent, Slice
from orchestrator.types import codec

LOOK_LIMIT_S = 10.0
POLL_S = 0.2
# Ray Train asks its workers how they are every two seconds, waits a minute for slices, and says
# what is printed twice.
RAY_TRAIN = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}


class AttemptProcess:
    """The crew of one attempt, for as long as a `with` lasts: then all that it started is ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **RAY_TRAIN}
        )
        self._said: queue.SimpleQueue[AttemptEvent] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def heard(self, wait_s: float) -> AttemptEvent | None:
        """The next thing that the crew said, or None when it said nothing for so long."""
        with suppress(queue.Empty):
            return self._said.get(timeout=wait_s)
        return None

    def tell(self, order: AttemptCommand) -> None:
        """Give an order. A crew that has ended hears nothing, and has said so."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.write(codec.to_json(order) + b"\n")
            self._process.stdin.flush()

    def look(self) -> tuple[Slice, ...] | None:
        """The slices as they are now; None when the crew cannot say."""
        self.tell(AttemptCommand())
        deadline = time.monotonic() + LOOK_LIMIT_S
        while self._listener.is_alive() and time.monotonic() < deadline:
            said = self.heard(POLL_S)
            if said and not said.over:
                return said.slices
        return None

    def _listen(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:
                with suppress(msgspec.DecodeError):
                    self._said.put(codec.from_json(line, AttemptEvent))
        self._said.put(
            AttemptEvent(over=True, error="the process that carries out the attempt has ended")
        )
