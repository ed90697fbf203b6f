"""The only file that calls MLflow, with hard limits. Every write may be repeated without effect: a
point is known by name, step, time and value; tags and files are replaced.
"""

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from orchestrator.errors import SpecError
from orchestrator.journal import boundary
from orchestrator.plugins import require
from orchestrator.tracking.destinations import NotRecorded
from orchestrator.tracking.mlflow.metrics import MetricPoint
from orchestrator.values.codec import Value
from orchestrator.values.run import Destination, SavedCheckpoint, TrackedRun
from orchestrator.values.spec import TrackingOptions

TRACKER, NOTE = "mlflow", "mlflow.note.content"
_VARIABLE = "MLFLOW_TRACKING_URI"
_DATABASE, _ARTIFACTS = "mlflow.db", "mlflow-artifacts"
_SERVERS = ("http", "https", "databricks")
# The same port each time, where it is free: a browser keeps a page's settings by address.
USUAL_PORT = 5080
_SQLITE = "sqlite:///"


# --- the address of the MLflow that records runs; nothing here imports MLflow


def is_server(where: Destination) -> bool:
    return _scheme(where.uri) in _SERVERS


def destination(
    tracking: TrackingOptions, storage: Path, environment: Mapping[str, str]
) -> Destination:
    """Return where runs in a storage directory are recorded, or raise `SpecError`."""
    # MLFLOW_TRACKING_URI comes first, then the spec's address, then a SQLite file in the directory.
    place, written = _VARIABLE, environment.get(_VARIABLE, "")
    if not written:
        place, written = "tracking.uri", "" if tracking.uri == "auto" else tracking.uri
    folder = storage.absolute()
    uri = _absolute(place, written) if written else f"sqlite:///{folder / _DATABASE}"
    served = _scheme(uri) in _SERVERS
    return Destination(
        tracker=TRACKER,
        uri=uri,
        experiment=tracking.experiment,
        artifacts=None if served else (folder / _ARTIFACTS).as_uri(),
    )


def run_link(tracked: TrackedRun) -> str | None:
    """Return where the MLflow UI shows a run: its server, or the one that `orch ui` starts."""
    if tracked.tracker != TRACKER:
        return None
    served = _scheme(tracked.uri) in ("http", "https")
    server = tracked.uri.rstrip("/") if served else f"http://127.0.0.1:{USUAL_PORT}"
    return f"{server}/#/runs/{tracked.run_id}"


def _scheme(uri: str) -> str:
    # `postgresql+psycopg2://…` is a postgresql.
    return urlsplit(uri).scheme.partition("+")[0]


def _absolute(place: str, written: str) -> str:
    """Return the address as it is valid on every machine and in every directory."""
    kind, parts = _scheme(written), urlsplit(written)
    if parts.password is not None or (kind in _SERVERS and parts.username is not None):
        advice = "put them into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        raise SpecError(f"{place}: holds a user or password, which would be stored: {advice}")
    if kind == "sqlite":
        path = written.partition(":///")[2]
        if not path:
            raise SpecError(f"{place}: {written}: names no file; write sqlite:///runs/mlflow.db")
        return f"sqlite:///{Path(path).absolute()}"
    if kind and kind != "file":
        return written.rstrip("/")
    path_written = Path(parts.path if kind else written).absolute()
    if kind or path_written.suffix not in (".db", ".sqlite"):
        advice = f"write sqlite:///{path_written / _DATABASE}, or a server's address"
        raise SpecError(f"{place}: {written}: MLflow no longer records in folders; {advice}")
    return f"sqlite:///{path_written}"


# --- the deadline of a call, and of all calls of a sync

# The time limit of the HTTP library begins anew with every byte, so a server that sends one now and
# then would hold a caller for ever. An alarm of the process ends the call whatever it waits for.
# Python delivers signals to its main thread only: in another, only the library's limit counts.
_CALL_LIMIT_S = 60.0
_FILE_LIMIT_S = 300.0  # files go in one call each
SYNC_LIMIT_S = 1_200.0
# A library may catch the error of an alarm and go on.
_RING_AGAIN_S = 1.0


@contextmanager
def deadline(where: Destination, limit_s: float, what: str) -> Iterator[None]:
    """Raise `NotRecorded` in a `with` block that takes longer. Blocks may be nested."""
    outer_left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or 0 < outer_left_s <= limit_s:  # the outer block ends this one
        yield
        return
    ended, passed = False, None

    def ring(*_: object) -> None:
        nonlocal passed
        if not ended:
            passed = NotRecorded(f"{where.label}: {what} took more than {limit_s:,.0f} s")
            raise passed

    began_s, outer = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s, _RING_AGAIN_S)
    try:
        yield
    except Exception as error:
        if passed and error is not passed:  # libraries wrap errors
            raise passed from error
        raise
    finally:
        ended = True
        left_s = outer_left_s and max(outer_left_s - (time.monotonic() - began_s), 0.001)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer)
        signal.setitimer(signal.ITIMER_REAL, left_s, _RING_AGAIN_S if left_s else 0)


# Without these, one call may take 4 minutes when a server refuses, and 20 when it hangs.
_LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "60",
}
# What is too long is an error instead of cut. Nothing is sent to anybody else, or printed.
SETTINGS = {
    "MLFLOW_TRUNCATE_LONG_VALUES": "false",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
MOST_POINTS, MOST_PARAMS, _MOST_RUNS = 1_000, 100, 1_000
_MOST_DESCRIBED = 50
_CHECKPOINT = "orch.checkpoint"  # a tag of a model: the checkpoint's folder
Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]


class StoredRun(Value):
    id: str
    experiment: str
    status: str
    deleted: bool
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]


class Store:
    def __init__(self, where: Destination) -> None:
        require("run")
        for name, value in _LIMITS.items():
            os.environ.setdefault(name, value)
        os.environ.update(SETTINGS)
        self.where = where
        with in_plain_words(where):
            from mlflow.tracking import MlflowClient  # noqa: PLC0415  it takes seconds

            if not is_server(where):  # a new database logs many lines
                for name in ("alembic", "mlflow.store.db.utils"):
                    logging.getLogger(name).setLevel(logging.WARNING)
            if _scheme(where.uri) == "postgresql":
                with suppress(ImportError):  # its own waiting hears of no alarm
                    from psycopg2 import extensions, extras  # noqa: PLC0415

                    extensions.set_wait_callback(extras.wait_select)
            if where.uri.startswith(_SQLITE):
                _check_own_beside(where)
                # A database is made under another name and moved into place: whoever opened one
                # that is still without tables, after seconds or a kill, would fail from then on.
                database = Path(where.uri.removeprefix(_SQLITE))
                if not database.exists():
                    database.parent.mkdir(parents=True, exist_ok=True)
                    unfinished = database.with_name(f".{database.name}.{os.getpid()}")
                    try:
                        client = MlflowClient(tracking_uri=f"{_SQLITE}{unfinished}")
                        client.search_experiments(max_results=1)
                        with suppress(FileExistsError):
                            os.link(unfinished, database)  # the first process wins
                    finally:
                        unfinished.unlink(missing_ok=True)
            self._client = MlflowClient(tracking_uri=where.uri)
            self.experiment = self._experiment()

    def _experiment(self) -> str:
        name = self.where.experiment
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name, self.where.artifacts))
            except Exception:  # another process may just have created it
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        if experiment.lifecycle_stage != "active":
            raise NotRecorded(f"{self.where.label}: its experiment {name!r} was deleted")
        # MLflow stores absolute addresses of artifacts: those of a database that was copied with
        # its storage would be written where it came from.
        stored = experiment.artifact_location
        if _is_beside(self.where) and stored != self.where.artifacts:
            here = Path(self.where.uri.removeprefix(_SQLITE)).parent
            there, is_same = Path(unquote(urlsplit(stored).path)).parent, False
            with suppress(OSError):
                is_same = here.samefile(there)  # another name of the same folder
            if not is_same:
                raise NotRecorded(
                    f"{self.where.label}: was moved or copied from {there}, where its artifacts"
                    " lie: rename it, and `orch sync` records the runs anew, or set"
                    " MLFLOW_TRACKING_URI"
                )
        return str(experiment.experiment_id)

    def tracked(self, run_id: str) -> TrackedRun:
        return TrackedRun(tracker=TRACKER, uri=self.where.uri, run_id=run_id)

    def run(self, run_id: str) -> StoredRun | None:
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        with in_plain_words(self.where):
            try:
                return _stored(self._client.get_run(run_id))
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return None
                raise

    def tagged(self, tag: str, value: str, most: int = _MOST_RUNS) -> list[StoredRun]:
        return self._search(f"tags.`{tag}` = '{value}'", most, "ASC")

    def metric_names(self, tag: str, value: str) -> set[str]:
        runs = self._search(f"tags.`{tag}` = '{value}'", _MOST_RUNS, "DESC")
        return {name for run in runs for name in run.metrics}

    def newest(self) -> list[StoredRun]:
        """Return the newest runs of the experiment that orch recorded, the newest first."""
        return self._search("tags.`orch.run` LIKE '%'", _MOST_DESCRIBED, "DESC")

    def _search(self, wanted: str, most: int, order: str) -> list[StoredRun]:
        """Return runs that are not deleted, in the order of their start."""
        where, by = [self.experiment], [f"start_time {order}"]
        with in_plain_words(self.where):
            found = self._client.search_runs(where, wanted, max_results=most, order_by=by)
            return [_stored(run) for run in found]

    def create(self, name: str, at_s: float, tags: Mapping[str, str]) -> StoredRun:
        with in_plain_words(self.where):
            run = self._client.create_run(
                self.experiment, start_time=_ms(at_s), tags=dict(tags), run_name=name
            )
            return _stored(run)

    def delete(self, run_id: str) -> None:
        with in_plain_words(self.where):
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

        metrics = [Metric(point.name, point.value, _ms(point.at_s), point.step) for point in points]
        with in_plain_words(self.where):
            self._client.log_batch(
                run_id,
                metrics=metrics,
                params=[Param(key, value) for key, value in (params or {}).items()],
                tags=[RunTag(key, value) for key, value in (tags or {}).items()],
            )

    def log_file(self, run_id: str, path: Path, folder: str | None) -> None:
        with in_plain_words(self.where, _FILE_LIMIT_S):
            self._client.log_artifact(run_id, str(path), folder)

    def set_status(self, run_id: str, status: Status, ended_at_s: float | None) -> None:
        with in_plain_words(self.where):
            if ended_at_s is None:
                self._client.update_run(run_id, status=status)
            else:
                self._client.set_terminated(run_id, status, _ms(ended_at_s))

    def experiment_tags(self) -> dict[str, str]:
        with in_plain_words(self.where):
            return dict(self._client.get_experiment(self.experiment).tags)

    def checkpoints(self, run_id: str) -> set[str] | None:
        """Return the folders of the checkpoints that are models of a run; None where the server
        knows no such models.
        """
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        found, token = set[str](), None
        with in_plain_words(self.where):
            while True:
                try:
                    page = self._client.search_logged_models(
                        [self.experiment], f"source_run_id = '{run_id}'", page_token=token
                    )
                except MlflowException as error:
                    if error.error_code in ("ENDPOINT_NOT_FOUND", "NOT_FOUND", "NOT_IMPLEMENTED"):
                        return None
                    raise
                found |= {model.tags.get(_CHECKPOINT, "") for model in page}
                if not (token := page.token):
                    return found

    def add_checkpoint(
        self, run_id: str, saved: SavedCheckpoint, folder: str, loss: MetricPoint | None
    ) -> None:
        """Add a checkpoint as a model of a run, with the loss of its last step."""
        from mlflow.entities import LoggedModelOutput, Metric  # noqa: PLC0415

        with in_plain_words(self.where):
            model = self._client.create_logged_model(
                self.experiment,
                name=f"step-{saved.step}",
                source_run_id=run_id,
                tags={_CHECKPOINT: saved.folder},
                params={"step": str(saved.step), "sha256": saved.sha256, "folder": folder},
                model_type="checkpoint",
            )
            if loss:  # the same point as that of the step, linked with the model
                at_ms, model_id = _ms(loss.at_s), model.model_id
                metric = Metric(loss.name, loss.value, at_ms, loss.step, model_id=model_id)
                self._client.log_batch(run_id, metrics=[metric])
            output = LoggedModelOutput(model_id=model.model_id, step=saved.step)
            self._client.log_outputs(run_id, models=[output])
            self._client.finalize_logged_model(model.model_id, "READY")

    def set_experiment_tag(self, key: str, value: str) -> None:
        with in_plain_words(self.where):
            self._client.set_experiment_tag(self.experiment, key, value)


@contextmanager
def in_plain_words(where: Destination, limit_s: float = _CALL_LIMIT_S) -> Iterator[None]:
    """Turn any error of a call to MLflow into one plain sentence, and silence its warnings."""
    # A call to a server, of MLflow or of a database, has a time limit, however that spends it.
    is_file = where.uri.startswith(_SQLITE)
    limit = nullcontext() if is_file else deadline(where, limit_s, "a call")
    try:
        with warnings.catch_warnings(), limit:
            warnings.simplefilter("ignore")
            yield
    except NotRecorded:
        raise
    except Exception as error:  # MLflow, requests, SQLAlchemy and the disk have their own classes
        raise NotRecorded(f"{where.label}: {_reason(error)}") from error


_REASONS = {
    "server closed the connection": "the server broke the connection off",
    "Connection refused": "the server refuses connections",
    "Read timed out": "the server does not answer",
    "ConnectTimeoutError": "the server cannot be reached",
    "Name or service not known": "no server of that name is known",
    "Connection aborted": "the server broke the connection off",
    "too many 500": "the server answers with error 500",
    "database is locked": "another process writes to it for too long",
    "database or disk is full": "its disk is full",
    "No space left on device": "its disk is full",
    "readonly database": "it cannot be written",
}


def _reason(error: Exception) -> str:
    """Return the reason in one line. MLflow wraps errors of libraries, so their texts decide."""
    # The text of a database ends before its statement.
    text = " ".join(str(error).split()).partition(" [SQL: ")[0] or type(error).__name__
    for pattern, reason in _REASONS.items():
        if pattern in text:
            return reason
    return text if len(text) <= 200 else text[:197] + "..."


def _stored(run: Any) -> StoredRun:
    return StoredRun(
        id=run.info.run_id,
        experiment=str(run.info.experiment_id),
        status=run.info.status,
        deleted=run.info.lifecycle_stage != "active",
        name=run.info.run_name or run.info.run_id,
        tags=dict(run.data.tags),
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
    )


def _ms(at_s: float) -> int:
    return round(at_s * 1_000)


def _check_own_beside(where: Destination) -> None:
    """Refuse a database in the storage that is a link or another user's."""
    # Whoever writes it decides who gets the artifacts. The user may name such a one.
    if not _is_beside(where):
        return
    database = Path(where.uri.removeprefix(_SQLITE))
    for path in (database, database.parent / _ARTIFACTS):
        try:
            boundary.check_own(boundary.settled(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            why = f"{path.name} {error.strerror}: set MLFLOW_TRACKING_URI to one of your own"
            raise NotRecorded(f"{where.label}: {why}") from error


def _is_beside(where: Destination) -> bool:
    if not where.uri.startswith(_SQLITE):
        return False
    database = Path(where.uri.removeprefix(_SQLITE))
    return where.artifacts == (database.parent / _ARTIFACTS).as_uri() and database.name == _DATABASE
