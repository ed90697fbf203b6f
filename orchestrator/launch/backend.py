"""The protocol of backends, which start, watch and stop a run's processes, and the first look at a
named cluster: all that a run needs and it lacks is said at once. A backend starts the driver on a
cluster, emulated or named; the driver asks it for attempts.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import field

from orchestrator import plugins
from orchestrator.errors import OrchError
from orchestrator.formatting import counted
from orchestrator.launch import provenance
from orchestrator.launch.provenance import differences
from orchestrator.storage import copies
from orchestrator.storage.addresses import folder, is_copy
from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan
from orchestrator.values.run import SavedCheckpoint

_SHOWN_HOSTS = 4


class PreflightRequest(Value):
    """The needs of a run: slices of a `kind` (chip and topology), the submitter's versions, the
    names of `secrets` in each host's environment, and a `file` in the run's storage.
    """

    pods: int
    kind: str
    versions: Mapping[str, str]
    secrets: tuple[str, ...]
    file: str


class PreflightHost(Value):
    """The answer of a host, or as `fault` the error in its place; neither where time was over. It
    `reaches` the run's storage if it can write there; it `lacks` named secrets.
    """

    name: str
    versions: Mapping[str, str] = field(default_factory=dict)
    reaches: bool = False
    lacks: tuple[str, ...] = ()
    fault: str = ""


class PreflightReport(Value):
    """The resources of a cluster for a run. `others` counts its other slices by their kind. Where
    slices are missing, `hint` may say how it would show more.
    """

    present: int
    free: int
    others: Mapping[str, int]
    hosts: tuple[PreflightHost, ...]
    hint: str = ""


class Preflight(Value):
    request: PreflightRequest
    report: PreflightReport

    @property
    def slices(self) -> str:
        wanted, free, present = self.request.pods, self.report.free, self.report.present
        text = f"{wanted} of {self.request.kind} requested, {present} present, {free} free"
        waits = free < wanted <= present
        return f"{text}: the run waits for {wanted - free} more" if waits else text

    @property
    def faults(self) -> list[str]:
        """Everything that keeps the cluster from serving the run; empty when it can."""
        report, faults = self.report, []
        if (missing := self.request.pods - report.present) > 0:
            others = ", ".join(f"{n} of {kind}" for kind, n in sorted(report.others.items()))
            instead = f"it has {others or 'no other slices'}"
            lacks = f"it lacks {counted(missing, 'slice')} of {self.request.kind}"
            hint = f"; {report.hint}" if report.hint else ""
            faults.append(f"slices: {lacks}: {self.slices}; {instead}{hint}")
        by_fault = defaultdict(list)  # each fault once, with the hosts that have it
        for host in report.hosts:
            for fault in self._host_faults(host):
                by_fault[fault].append(host.name)
        for fault in sorted(by_fault, key=lambda fault: fault[0]):
            (_, before, after), names = fault, by_fault[fault]
            shown, left = ", ".join(names[:_SHOWN_HOSTS]), len(names) - _SHOWN_HOSTS
            some = f"{shown} and {left} more" if left > 0 else shown
            which = f"{len(names)} of {len(report.hosts)} hosts ({some})"
            faults.append(f"{before} {which}{after}")
        return faults

    def _host_faults(self, host: PreflightHost) -> Iterator[tuple[int, str, str]]:
        """What is wrong with a host: the faults' order, and the words around the hosts' names."""
        if host.versions:
            for difference in differences(self.request.versions, host.versions):
                yield 1, f"versions: {difference} here, on", ""
            if not host.reaches:
                where = self.request.file.rpartition("/")[0]
                why = (
                    f" cannot write to {where} of this machine: the journal needs one shared file"
                    " system, mounted at the same path on every host; name it with run.storage"
                )
                yield 2, "storage:", why
        else:
            yield 0, "hosts:", " did not answer" + (f": {host.fault}" if host.fault else "")
        for name in host.lacks:
            yield 3, f"secrets: {name} is not in the environment of", ""


def describe_host(name: str, file: str, secrets: Iterable[str]) -> PreflightHost:
    """Describe this host: versions, whether it can write next to `file`, the secrets it lacks."""
    path = folder(file)
    try:
        if is_copy(path):
            reaches = copies.exists(path) and copies.check_writable(path.parent)
        else:
            reaches = path.exists() and os.access(path.parent, os.W_OK)
    except (OSError, OrchError):
        reaches = False
    lacks = tuple(variable for variable in secrets if not os.environ.get(variable))
    return PreflightHost(name=name, versions=provenance.versions(), reaches=reaches, lacks=lacks)


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
    """The arguments of every worker of an attempt; `saves` are the newest that count. One that
    `checks_only` times its host and trains nothing.
    """

    run: str
    claim: int
    attempt: int
    plan_digest: str
    heartbeat_s: float
    saves: tuple[SavedCheckpoint, ...] = ()
    checks_only: bool = False


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
    backend: Backend = plugins.load("backend", name)()
    return backend
