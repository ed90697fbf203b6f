"""The driver's end of an attempt on Ray: a process whose end makes Ray end all that it started."""

import os
import queue
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Generic, TypeVar

import msgspec
import psutil

from orchestrator.launch.backend import AttemptEvent, Slice, WorkerArgs
from orchestrator.values import codec
from orchestrator.values.codec import Value

_E = TypeVar("_E")
SIGN_OF_LIFE_S = 5.0  # between the empty lines of an attempt process


class AttemptCommand(Value):
    """A command of the driver: start workers on these slices, or just report the slices."""

    args: WorkerArgs | None = None
    slices: tuple[str, ...] = ()


_SLICES_LIMIT_S = 10.0
_SILENT_LIMIT_S = 60.0
POLL_S = 0.2
# By default Ray Train checks its workers every two seconds, waits a minute for slices, and repeats
# what they print.
_RAY_TRAIN = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}


class JsonProcess(Generic[_E]):
    """A process that takes values and gives events, one line of JSON each, `last` at its end."""

    def __init__(self, process: subprocess.Popen[bytes], last: _E) -> None:
        self.process, self._last, self.heard_s = process, last, time.monotonic()
        self._events: queue.SimpleQueue[_E] = queue.SimpleQueue()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def next_event(self, timeout_s: float) -> _E | None:
        with suppress(queue.Empty):
            return self._events.get(timeout=timeout_s)
        return None

    def send(self, value: object) -> None:
        """Send a value. When the process is gone, an event says so."""
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.write(codec.to_json(value) + b"\n")
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout
        with self.process.stdout as lines:
            for line in lines:
                self.heard_s = time.monotonic()
                with suppress(msgspec.DecodeError):
                    self._events.put(codec.from_json(line, type(self._last)))
        self._events.put(self._last)


class AttemptProcess(JsonProcess[AttemptEvent], AbstractContextManager["AttemptProcess"]):
    """The process that carries out an attempt. Leaving the `with` kills it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._started, pipe = False, subprocess.PIPE
        environment = {**os.environ, **_RAY_TRAIN}
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        error = "the process that carries out the attempt has ended"
        super().__init__(process, AttemptEvent(ended=True, error=error))

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        self.listener.join()
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def next_event(self, timeout_s: float) -> AttemptEvent | None:
        """Return the next event, or None after the timeout. A process stopped before the attempt
        begins has lost it; later its ranks decide, which work without it.
        """
        event, silent_s = super().next_event(timeout_s), time.monotonic() - self.heard_s
        if event or self._started or silent_s < _SILENT_LIMIT_S:
            return event
        error = f"the process that carries out the attempt has been silent for {silent_s:.0f} s"
        return AttemptEvent(ended=True, error=error)

    def start(self, args: WorkerArgs, slices: Sequence[str]) -> None:
        self._started = True
        self.send(AttemptCommand(args=args, slices=tuple(slices)))

    def slices(self) -> tuple[Slice, ...] | None:
        self.send(AttemptCommand())
        deadline = time.monotonic() + _SLICES_LIMIT_S
        while self.listener.is_alive() and time.monotonic() < deadline:
            event = self.next_event(POLL_S)
            if event and not event.ended:
                return event.slices
        return None


# --- every process that a private cluster started carries a mark

MARK = "ORCH_CLUSTER"
_LIMIT_S = 20.0
_TREE_POLL_S = 0.05


def marked(mark: str) -> list[int]:
    return [process.pid for process in _marked(mark)]


def runs(mark: str, command: str) -> bool:
    """Whether a process that carries a mark was started with this command."""
    words = shlex.split(command)
    for process in _marked(mark):
        with suppress(psutil.Error):
            if process.cmdline() == words:
                return True
    return False


def end_all(mark: str, *spared: int) -> None:
    """Kill every process that carries a mark, until only the spared ones are left."""
    deadline = time.monotonic() + _LIMIT_S
    while left := [process for process in _marked(mark) if process.pid not in spared]:
        if time.monotonic() > deadline:
            return
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(_TREE_POLL_S)


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or belongs to somebody else
            if process.environ().get(MARK) == mark:
                yield process
