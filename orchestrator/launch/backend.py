"""The protocol of backends, which start, watch and stop a run's processes. A backend starts the
driver on a cluster, emulated or named; the driver asks it for attempts.
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
    """A slice as the backend sees it: `hosts` of its `size` hosts answer; nobody uses a `free` one.
    `settled` is False while the backend may not have noticed yet that a host is gone.
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
    """An attempt's journal directory, its claim, and `package.module:function` of its worker, which
    takes `WorkerArgs` and a rank. A backend ends an attempt's processes when the claim counts no
    more: see `journal.ClaimWatch`.
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
    """News of an attempt: its slices and the runs `ahead` in the queue, or its end, with an error
    unless its work is done. An error `repeats` if every attempt would end with it. `dead` ranks are
    in the order in which the backend saw them end.
    """

    slices: tuple[Slice, ...] = ()
    ahead: tuple[str, ...] = ()
    ended: bool = False
    error: str | None = None
    repeats: bool = False
    dead: tuple[DeadRank, ...] = ()


class AttemptHandle(AbstractContextManager["AttemptHandle"], Protocol):
    """One attempt at a run: it shows slices, then runs workers on the chosen ones. `next_event`
    returns None after the timeout. Leaving the `with` stops every process.
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
    def emulate(self, plan: Plan, command: str) -> AbstractContextManager[LocalCluster]:
        """A cluster on this machine with the plan's slices; nothing of it outlives the `with`."""

    def connect(self, address: str) -> ClusterClient: ...

    def attempt(self, spec: AttemptSpec) -> AttemptHandle:
        """Prepare an attempt: from now on it looks for slices of the kind that the run needs."""


def find_backend(name: str) -> Backend:
    backend: Backend = plugins.load("backend", name, plugins.BACKENDS)()
    return backend
