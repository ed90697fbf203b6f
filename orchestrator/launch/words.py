"""Launch room: what the owner of a private cluster and its keeper say to each other. Pure."""

from dataclasses import dataclass

from orchestrator.launch.slices import Host


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The cluster that is wanted, and the command to run on it."""

    mark: str
    folder: str
    hosts: tuple[Host, ...]
    command: str


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the keeper says: nodes that stand, the job's state, or what went wrong."""

    nodes: int = 0
    job: str | None = None
    error: str | None = None
