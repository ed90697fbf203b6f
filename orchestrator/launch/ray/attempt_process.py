"""The driver's end of an attempt on Ray: a process of its own that joins the cluster.

When that process ends, in whatever way, Ray ends all that it started.
"""

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

from orchestrator.launch.backend import AttemptEvent, Slice, WorkerArgs
from orchestrator.launch.ray.process_messages import AttemptCommand
from orchestrator.types import codec

SLICES_LIMIT_S = 10.0
SILENT_LIMIT_S = 60.0
POLL_S = 0.2
# By default Ray Train checks its workers every two seconds, waits a minute for slices, and repeats
# what they print.
RAY_TRAIN = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}


class AttemptProcess:
    """The process that carries out an attempt. Leaving the `with` kills it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **RAY_TRAIN}
        )
        self._events: queue.SimpleQueue[AttemptEvent] = queue.SimpleQueue()
        self._heard_s, self._started = time.monotonic(), False
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

    def next_event(self, timeout_s: float) -> AttemptEvent | None:
        """The next event; None when there is none within the timeout.

        A process that is stopped before the attempt begins has lost it. Later its ranks decide,
        which do their work without it.
        """
        with suppress(queue.Empty):
            return self._events.get(timeout=timeout_s)
        silent_s = time.monotonic() - self._heard_s
        if self._started or silent_s < SILENT_LIMIT_S:
            return None
        error = f"the process that carries out the attempt has been silent for {silent_s:.0f} s"
        return AttemptEvent(ended=True, error=error)

    def start(self, args: WorkerArgs, slices: Sequence[str]) -> None:
        """Start the workers on these slices."""
        self._started = True
        self._send(AttemptCommand(args=args, slices=tuple(slices)))

    def slices(self) -> tuple[Slice, ...] | None:
        """The slices as they are now; None when the process does not answer."""
        self._send(AttemptCommand())
        deadline = time.monotonic() + SLICES_LIMIT_S
        while self._listener.is_alive() and time.monotonic() < deadline:
            event = self.next_event(POLL_S)
            if event and not event.ended:
                return event.slices
        return None

    def _send(self, command: AttemptCommand) -> None:
        """Send a command. When the process is gone, an event says so."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.write(codec.to_json(command) + b"\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:
                self._heard_s = time.monotonic()
                with suppress(msgspec.DecodeError):
                    self._events.put(codec.from_json(line, AttemptEvent))
        error = "the process that carries out the attempt has ended"
        self._events.put(AttemptEvent(ended=True, error=error))
