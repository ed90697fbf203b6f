"""What a tracker has of a run, and where. Plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where a tracker records runs: its name, its address, an experiment there.

    `artifacts` is where files go when no server takes them.
    """

    tracker: str
    uri: str
    experiment: str
    artifacts: str | None

    @property
    def label(self) -> str:
        """The address as people read it: the file of a database, else the address itself."""
        return self.uri.removeprefix("sqlite:///")


@dataclass(frozen=True, kw_only=True)
class SyncProgress:
    """How much of a run is recorded: its `state`, so many attempts, so many steps."""

    state: str
    attempts: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class SyncState:
    """Where a run is to be recorded, how much is, and why the last sync failed."""

    destination: Destination
    recorded: SyncProgress | None = None
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class SyncResult:
    """The result of one sync: how much of the run is recorded now, or why the sync failed.

    `destination` is None where nothing may be sent. `run_id` names the record in the tracker.
    `by_driver` says that the run is live and its own driver was recording it.
    """

    run: str
    destination: Destination | None
    run_id: str | None
    recorded: SyncProgress | None
    problem: str | None
    by_driver: bool = False


@dataclass(frozen=True, kw_only=True)
class ViewLink:
    """A comparison view, and where it opens in the tracker's web page."""

    name: str
    url: str
