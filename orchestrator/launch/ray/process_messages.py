"""Messages between the processes of a launch, one line of JSON each."""

from dataclasses import dataclass

from orchestrator.launch.backend import WorkerArgs
from orchestrator.launch.ray.slices import EmulatedHost

SIGN_OF_LIFE_S = 5.0  # between the empty lines of an attempt process


@dataclass(frozen=True, kw_only=True)
class ClusterRequest:
    """A cluster to start, and the command to run on it."""

    mark: str
    folder: str
    hosts: tuple[EmulatedHost, ...]
    command: str


@dataclass(frozen=True, kw_only=True)
class AttemptCommand:
    """A command of the driver: start workers on these slices, or just report the slices."""

    args: WorkerArgs | None = None
    slices: tuple[str, ...] = ()
