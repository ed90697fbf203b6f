"""The address of the MLflow that records runs. Imports no MLflow."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.errors import SpecError
from orchestrator.types.run import TrackedRun
from orchestrator.types.run_options import TrackingOptions
from orchestrator.types.tracking import Destination

TRACKER = "mlflow"
VARIABLE = "MLFLOW_TRACKING_URI"
DATABASE, ARTIFACTS = "mlflow.db", "mlflow-artifacts"
SERVERS = ("http", "https", "databricks")
# The same port each time, where it is free: a browser keeps a page's settings by address.
USUAL_PORT = 5080
ELSEWHERE = "put them into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"


def is_server(where: Destination) -> bool:
    """Whether a server answers there, or a database is opened."""
    return scheme(where.uri) in SERVERS


def destination(
    tracking: TrackingOptions, storage: Path, environment: Mapping[str, str]
) -> Destination:
    """Where runs in a storage directory are recorded.

    MLFLOW_TRACKING_URI comes first, then the spec's address, then a SQLite file beside the runs.
    `SpecError` names an address that cannot be used.
    """
    place, written = VARIABLE, environment.get(VARIABLE, "")
    if not written:
        place, written = "tracking.uri", "" if tracking.uri == "auto" else tracking.uri
    beside = storage.absolute()
    uri = _absolute(place, written) if written else f"sqlite:///{beside / DATABASE}"
    served = scheme(uri) in SERVERS
    return Destination(
        tracker=TRACKER,
        uri=uri,
        experiment=tracking.experiment,
        artifacts=None if served else (beside / ARTIFACTS).as_uri(),
    )


def run_link(tracked: TrackedRun) -> str | None:
    """Where the MLflow UI shows a run: its server, or the one that `orch ui` starts."""
    if tracked.tracker != TRACKER:
        return None
    served = scheme(tracked.uri) in ("http", "https")
    server = tracked.uri.rstrip("/") if served else f"http://127.0.0.1:{USUAL_PORT}"
    return f"{server}/#/runs/{tracked.run_id}"


def scheme(uri: str) -> str:
    """The kind of an address; `postgresql+psycopg2://…` is a postgresql."""
    return urlsplit(uri).scheme.partition("+")[0]


def _absolute(place: str, written: str) -> str:
    """The same address, valid on every machine and in every directory."""
    kind, parts = scheme(written), urlsplit(written)
    if parts.password is not None or (kind in SERVERS and parts.username is not None):
        raise SpecError(f"{place}: holds a user or password, which would be stored: {ELSEWHERE}")
    if kind == "sqlite":
        path = written.partition(":///")[2]
        if not path:
            raise SpecError(f"{place}: {written}: names no file; write sqlite:///runs/mlflow.db")
        return f"sqlite:///{Path(path).absolute()}"
    if kind:
        if kind == "file":
            raise SpecError(f"{place}: {written}: {_no_folder(Path(parts.path))}")
        return written.rstrip("/")
    path_written = Path(written)
    if path_written.suffix not in (".db", ".sqlite"):
        raise SpecError(f"{place}: {written}: {_no_folder(path_written)}")
    return f"sqlite:///{path_written.absolute()}"


def _no_folder(path: Path) -> str:
    inside = path.absolute() / DATABASE
    return f"MLflow no longer records in folders; write sqlite:///{inside}, or a server's address"
