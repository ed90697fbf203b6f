"""Launch room: what the processes of a launch say to each other, a line of JSON each. Pure."""

from dataclasses import dataclass

from orchestrator.launch.ray.slices import Host


@dataclass(frozen=True, kw_only=True)
class ClusterRequest:
    """The cluster that is wanted, and the command to run on it."""

    mark: str
    folder: str
    hosts: tuple[Host, ...]
    command: str


@dataclass(frozen=True, kw_only=True)
class ClusterEvent:
    """What the keeper says: nodes that stand, where the cluster takes jobs, the job's state, or
    what went wrong.
    """

    nodes: int = 0
    address: str | None = None
    job: str | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A slice as the cluster shows it, of so many hosts that the plan's slices have.

    `settled` is False while the cluster has not yet noticed that a host of it is gone.
    """

    name: str
    hosts: int
    of: int
    free: bool
    settled: bool = True

    @property
    def whole(self) -> bool:
        """Whether every host of it is there."""
        return self.hosts == self.of


@dataclass(frozen=True, kw_only=True)
class WorkerArgs:
    """What one process of an attempt is told: which run, which attempt, which plan of it, and how
    often it gives a sign.
    """

    run: str
    attempt: int
    plan_digest: str
    beat_s: float


@dataclass(frozen=True, kw_only=True)
class AttemptCommand:
    """What the driver says to the crew: look at the slices, or go, on those that are named."""

    share: WorkerArgs | None = None
    slices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AttemptEvent:
    """What the crew says: the slices that it sees and the runs whose turn comes before, or that the
    attempt is over, and of what.
    """

    slices: tuple[Slice, ...] = ()
    before: tuple[str, ...] = ()
    over: bool = False
    error: str | None = None
