"""The protocol that every backend implements: it starts, watches and stops an attempt's processes.

The driver of a run knows a backend through this file alone. Ray is one backend, on a cluster of
emulated slices as on a named one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from orchestrator import plugins

BUILT_IN = {"ray": "orchestrator.launch.ray.attempt_process:RayBackend"}


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A slice as the backend sees it: `hosts` of its `size` hosts answer.

    `free` says that nobody uses it. `settled` is False while the backend has not yet noticed that a
    host is gone.
    """

    name: str
    hosts: int
    size: int
    free: bool
    settled: bool = True

    @property
    def whole(self) -> bool:
        """Whether every host answers."""
        return self.hosts == self.size


@dataclass(frozen=True, kw_only=True)
class AttemptSpec:
    """What an attempt is for: the directory of the run's journal, and the worker.

    `worker` is the dotted name `package.module:function` of a function that takes `WorkerArgs` and
    a rank.
    """

    run: str
    worker: str


@dataclass(frozen=True, kw_only=True)
class WorkerArgs:
    """The arguments of every worker of an attempt."""

    run: str
    attempt: int
    plan_digest: str
    heartbeat_s: float


@dataclass(frozen=True, kw_only=True)
class AttemptEvent:
    """News of an attempt: the slices and the runs `ahead` of it in the queue, or its end.

    An attempt that has ended without an error has done its work.
    """

    slices: tuple[Slice, ...] = ()
    ahead: tuple[str, ...] = ()
    ended: bool = False
    error: str | None = None


class Attempt(Protocol):
    """One attempt at a run. First it shows slices, then it runs workers on the chosen ones.

    Leaving the `with` stops every process of it.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def next_event(self, timeout_s: float) -> AttemptEvent | None:
        """The next event; None when there is none within the timeout."""
        ...

    def start(self, args: WorkerArgs, slices: Sequence[str]) -> None:
        """Start one worker for each host of these slices. Ranks count from 0."""
        ...

    def slices(self) -> tuple[Slice, ...] | None:
        """The slices as they are now; None when the backend cannot say."""
        ...


class Backend(Protocol):
    """Starts, watches and stops the processes of attempts."""

    def attempt(self, spec: AttemptSpec) -> Attempt:
        """Prepare an attempt: from now on it looks for slices of the kind that the run needs."""
        ...


def find_backend(name: str) -> Backend:
    """A new backend of that name: built in, an entry point, or `package.module:class`."""
    backend: Backend = plugins.load("backend", name, BUILT_IN)()
    return backend
