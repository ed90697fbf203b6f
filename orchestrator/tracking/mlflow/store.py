"""Record room: one MLflow, asked with hard limits. The only file that calls MLflow.

Every write may be done twice with the result of once: a metric's point is known by name, step, time
and value, and tags and files are replaced.
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import OrchError
from orchestrator.tracking.mlflow.metrics import MetricPoint
from orchestrator.tracking.mlflow.tracking_uri import is_server
from orchestrator.types.tracking import Destination

# Without these, one call may take 4 minutes when a server refuses and 20 when it hangs.
LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "60",
}
# Too long is an error here, instead of cut; nothing is sent to anybody else, or printed.
MANNERS = {
    "MLFLOW_TRUNCATE_LONG_VALUES": "false",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
SQLITE = "sqlite:///"
MOST_POINTS, MOST_PARAMS = 1_000, 100
Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]


class NotRecorded(OrchError):
    """MLflow could not be asked, or refused; the journal has it all, and `orch sync` sends it."""


class RefusedAlone(NotRecorded):
    """This run cannot be recorded now, others in the same MLflow may."""


class RecordedElsewhere(RefusedAlone):
    """Another process records this run now."""


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """An MLflow run as it stands there."""

    id: str
    experiment: str
    status: str
    deleted: bool
    tags: Mapping[str, str]
    params: Mapping[str, str]


class Store:
    """The runs of one experiment of one MLflow."""

    def __init__(self, where: Destination) -> None:
        for name, value in LIMITS.items():
            os.environ.setdefault(name, value)
        os.environ.update(MANNERS)
        self.where = where
        with asked(where):
            from mlflow.tracking import MlflowClient  # noqa: PLC0415  it takes seconds

            if not is_server(where):
                _quiet_migrations()
            if where.uri.startswith(SQLITE):
                _made_whole(Path(where.uri.removeprefix(SQLITE)))
            self._client = MlflowClient(tracking_uri=where.uri)
            self.experiment = self._experiment()

    def _experiment(self) -> str:
        """The experiment's id; it is made when there is none."""
        name = self.where.experiment
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, self.where.artifacts))
            except Exception:  # another may just have made it
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise NotRecorded(f"{self.where.words}: its experiment {name!r} was deleted")
        return str(found.experiment_id)

    def run(self, run_id: str) -> StoredRun | None:
        """The MLflow run of that id; None when there is none."""
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        with asked(self.where):
            try:
                return _found(self._client.get_run(run_id))
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return None
                raise

    def tagged(self, tag: str, value: str) -> list[StoredRun]:
        """The runs that carry a tag, oldest first."""
        with asked(self.where):
            runs = self._client.search_runs(
                [self.experiment], f"tags.`{tag}` = '{value}'", order_by=["start_time ASC"]
            )
            return [_found(run) for run in runs]

    def create(self, name: str, at_s: float, tags: Mapping[str, str]) -> StoredRun:
        """A new run."""
        with asked(self.where):
            made = self._client.create_run(
                self.experiment, start_time=_ms(at_s), tags=dict(tags), run_name=name
            )
            return _found(made)

    def delete(self, run_id: str) -> None:
        with asked(self.where):
            self._client.delete_run(run_id)

    def log(
        self,
        run_id: str,
        points: Sequence[MetricPoint] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Write params, then points, then tags: a tag that counts them is never ahead of them."""
        from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415

        metrics = [Metric(one.name, one.value, _ms(one.at_s), one.step) for one in points]
        with asked(self.where):
            self._client.log_batch(
                run_id,
                metrics=metrics,
                params=[Param(key, value) for key, value in (params or {}).items()],
                tags=[RunTag(key, value) for key, value in (tags or {}).items()],
            )

    def keep(self, run_id: str, path: Path, folder: str | None) -> None:
        """Keep a file as an artifact; one of that name is replaced."""
        with asked(self.where):
            self._client.log_artifact(run_id, str(path), folder)

    def set_status(self, run_id: str, status: Status, ended_at_s: float | None) -> None:
        """How the run stands; with a time, when it ended."""
        with asked(self.where):
            if ended_at_s is None:
                self._client.update_run(run_id, status=status)
            else:
                self._client.set_terminated(run_id, status, _ms(ended_at_s))

    def set_experiment_tag(self, key: str, value: str) -> None:
        with asked(self.where):
            self._client.set_experiment_tag(self.experiment, key, value)


@contextmanager
def asked(where: Destination) -> Iterator[None]:
    """Turns whatever goes wrong while MLflow is asked into one sentence. What its libraries say to
    each other's developers is not for whoever runs a command.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except NotRecorded:
        raise
    except (
        Exception
    ) as error:  # MLflow, requests, SQLAlchemy and the disk raise classes of their own
        raise NotRecorded(f"{where.words}: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    """The innermost reason, in one line of a sensible length."""
    text = " ".join(str(error).split()) or type(error).__name__
    for told, words in REASONS.items():
        if told in text:
            return words
    return text if len(text) <= 200 else text[:197] + "..."


REASONS = {
    "Connection refused": "the server refuses connections",
    "Read timed out": "the server does not answer",
    "ConnectTimeoutError": "the server cannot be reached",
    "Name or service not known": "no server of that name is known",
    "Connection aborted": "the server broke the connection off",
    "too many 500": "the server answers with error 500",
    "database is locked": "another process writes to it for too long",
}


def _found(run: Any) -> StoredRun:
    return StoredRun(
        id=run.info.run_id,
        experiment=str(run.info.experiment_id),
        status=run.info.status,
        deleted=run.info.lifecycle_stage != "active",
        tags=dict(run.data.tags),
        params=dict(run.data.params),
    )


def _ms(at_s: float) -> int:
    return round(at_s * 1_000)


def _made_whole(database: Path) -> None:
    """Make a database apart and put it in place at once, if there is none.

    MLflow takes seconds for its tables. Who opened them half made, because another was at it or was
    killed there, would fail from then on.
    """
    if database.exists():
        return
    from mlflow.tracking import MlflowClient  # noqa: PLC0415

    database.parent.mkdir(parents=True, exist_ok=True)
    apart = database.with_name(f".{database.name}.{os.getpid()}")
    try:
        MlflowClient(tracking_uri=f"{SQLITE}{apart}").search_experiments(max_results=1)
        with suppress(FileExistsError):
            os.link(apart, database)  # who was first wins
    finally:
        apart.unlink(missing_ok=True)


def _quiet_migrations() -> None:
    """A new database is told of in many lines, which say nothing to a person."""
    import logging  # noqa: PLC0415

    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
