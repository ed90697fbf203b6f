"""Station Record: what MLflow has of a run, and where. Plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Destination:
    """An MLflow and an experiment in it. `artifacts` is where files go that no server takes."""

    uri: str
    experiment: str
    artifacts: str | None

    @property
    def words(self) -> str:
        """As people read it: the file of a database, else the address."""
        return self.uri.removeprefix("sqlite:///")


@dataclass(frozen=True, kw_only=True)
class SyncProgress:
    """What of a run is in MLflow: `steps` of them, in `state`, after so many attempts."""

    state: str
    attempts: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class SyncState:
    """Where a run is to be recorded, what is, and why the last try failed."""

    destination: Destination
    recorded: SyncProgress | None = None
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class SyncResult:
    """What came of a try to record a run: what is in MLflow now, or why it could not be done.

    `by_driver` says that the run goes on and its own driver was recording it.
    """

    run: str
    mlflow_tracking_uri: str
    mlflow_experiment: str
    mlflow_run_id: str | None
    recorded: SyncProgress | None
    problem: str | None
    by_driver: bool = False


@dataclass(frozen=True, kw_only=True)
class ViewLink:
    """Where a comparison opens in the MLflow UI."""

    name: str
    url: str
