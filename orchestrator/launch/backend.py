"""The protocol that every backend implements: it starts, watches and stops a run's processes.

A backend starts the driver of a run, on a cluster that it emulates here or on a named one. The
driver then asks it for attempts. Ray is one backend, and no other code knows which one it uses.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from orchestrator import plugins
from orchestrator.errors import OrchError
from orchestrator.launch.preflight import Preflight, PreflightRequest
from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan
from orchestrator.values.run import SavedCheckpoint

JOB_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
OnState = Callable[[str], None]


class DeadRank(Value):
    """A rank whose end a backend saw, maybe before any heartbeat: where it was, how it ended."""

    rank: int
    host: str
    slice_name: str
    how: str

    @property
    def error(self) -> str:
        return f"rank {self.rank} {self.how} (host {self.host}, slice {self.slice_name})"


def describe_exit(code: int) -> str:
    """How a process ended, by the code that the system gives its parent: signals are negative."""
    return f"ended with exit code {code}" if code >= 0 else f"was killed (signal {-code})"


class ClusterUnusable(OrchError):
    """A named cluster cannot be reached, refuses us, or does not run what it is given."""


class Slice(Value):
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
        return self.hosts == self.size


class AttemptSpec(Value):
    """The journal's directory that an attempt works on, the claim that it serves, and the worker.

    A backend ends what it has started for an attempt when the claim counts no more: see
    `journal.ClaimWatch`. `worker` is the dotted name `package.module:function` of a function that
    takes `WorkerArgs` and a rank.
    """

    run: str
    claim: int
    worker: str


class WorkerArgs(Value):
    """The arguments of every worker of an attempt; `saves` are the newest that count."""

    run: str
    claim: int
    attempt: int
    plan_digest: str
    heartbeat_s: float
    saves: tuple[SavedCheckpoint, ...] = ()


class AttemptEvent(Value):
    """News of an attempt: the slices and the runs `ahead` of it in the queue, or its end.

    An attempt that has ended without an error has done its work. An error `repeats` if every
    attempt would end with it. `dead` are the ranks that the backend saw end, the first one first.
    """

    slices: tuple[Slice, ...] = ()
    ahead: tuple[str, ...] = ()
    ended: bool = False
    error: str | None = None
    repeats: bool = False
    dead: tuple[DeadRank, ...] = ()


class AttemptHandle(AbstractContextManager["AttemptHandle"], Protocol):
    """One attempt at a run. First it shows slices, then it runs workers on the chosen ones.

    `next_event` returns None after the timeout. Leaving the `with` stops every process of it.
    """

    def next_event(self, timeout_s: float) -> AttemptEvent | None: ...

    def start(self, args: WorkerArgs, slices: Sequence[str]) -> None:
        """Start one worker for each host of these slices. Ranks count from 0."""

    def slices(self) -> tuple[Slice, ...] | None:
        """The slices as they are now; None when the backend cannot say."""


class ClusterEvent(Value):
    """News of a cluster: how many nodes are up, its address, the state of its job, or an error."""

    nodes: int = 0
    address: str | None = None
    job: str | None = None
    error: str | None = None


class LocalCluster(Protocol):
    """A cluster on this machine that runs one command; its events are None after a timeout."""

    def next_event(self, timeout_s: float) -> ClusterEvent | None: ...


class ClusterClient(Protocol):
    """A named cluster, for a machine that submits. A job is PENDING, RUNNING or in `JOB_ENDED`."""

    def preflight(
        self, plan: Plan, request: PreflightRequest, archive: bytes | None, on_state: OnState
    ) -> Preflight:
        """Look at what the cluster has for a run; `on_state` hears the state of the look."""

    def start(self, words: Sequence[str], archive: bytes | None, name: str | None = None) -> str:
        """Start `python WORDS` in the archive's code or the cluster's own; return a job id."""

    def state(self, job: str) -> str: ...

    def why(self, job: str) -> str: ...

    def live_jobs(self) -> Sequence[str]: ...

    def end(self, job: str) -> None:
        """End a job with all its processes: stopped ones too."""


class Backend(Protocol):
    """Starts, watches and stops the processes of a run."""

    def emulate(self, plan: Plan, command: str) -> AbstractContextManager[LocalCluster]:
        """A cluster on this machine with the plan's slices; nothing of it outlives the `with`."""

    def connect(self, address: str) -> ClusterClient: ...

    def attempt(self, spec: AttemptSpec) -> AttemptHandle:
        """Prepare an attempt: from now on it looks for slices of the kind that the run needs."""


def find_backend(name: str) -> Backend:
    """A new backend of that name: built in, an entry point, or `package.module:class`."""
    backend: Backend = plugins.load("backend", name, plugins.BACKENDS)()
    return backend
