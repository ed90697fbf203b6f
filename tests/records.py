"""What tests see of MLflow: a database that is made once, its rows read without MLflow."""

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.journal.ownership import Writer
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepLog
from orchestrator.tracking.destinations import begin
from orchestrator.tracking.mlflow.store import Store
from orchestrator.tracking.recorder import Recorder
from orchestrator.values.run import Destination, SyncResult
from tests.journals import run_request, step, tiny_plan, tiny_spec


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database as MLflow makes it, which takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    Store(replace(destination_in(folder), experiment="another"))
    return folder / "mlflow.db"


@pytest.fixture
def storage(tmp_path: Path, empty_database: Path) -> Path:
    """A storage directory with a database of its own."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return tmp_path


def destination_in(storage: Path) -> Destination:
    """The SQLite file beside the runs."""
    return Destination(
        tracker="mlflow",
        uri=f"sqlite:///{storage / 'mlflow.db'}",
        experiment="orch",
        artifacts=(storage / "mlflow-artifacts").as_uri(),
    )


def start_tracked_run(storage: Path, key: str = "it", pods: int = 2, **changes: object) -> Writer:
    """The driver of a run that is to be recorded."""
    fields = {"spec": tiny_spec(pods), "plan": tiny_plan(pods), "rehearsal": False} | changes
    writer = journal.claim_run(journal.create_run(storage, run_request(**fields), key).journal)
    begin(writer.journal, destination_in(storage))
    return writer


def train_steps(writer: Writer, indices: range, pods: int = 2) -> int:
    """An attempt that does these steps; it goes on afterwards."""
    number = writer.start_attempt(tiny_plan(pods))
    with StepLog(writer.journal.path, number) as log:
        for index in indices:
            opens = index == indices.start
            seen = {"peak_hbm_bytes": 3 << 30} if opens else {"model_flops_per_s_per_chip": 2e12}
            log.append(
                step(index, restored=index if opens else None, loss=9.0 / (1 + index), **seen)
            )
    return number


def finished_run(
    storage: Path, key: str = "it", steps: int = 20, pods: int = 2, **more: object
) -> Journal:
    """A run that has done all its steps, the last of them in a second attempt."""
    writer = start_tracked_run(storage, key, pods, steps=steps, **more)
    train_steps(writer, range(steps // 2), pods)
    writer.end_attempt("failure", error="ValueError: out of luck")
    train_steps(writer, range(steps // 4, steps), pods)
    writer.end_attempt("finished")
    writer.end_run("succeeded")
    return writer.journal


def record_once(*journals: Journal) -> list[SyncResult]:
    """Record each run once, by a recorder that knows nothing yet."""
    recorder = Recorder({})
    return [recorder.record(journal) for journal in journals]


@contextmanager
def _opened(database: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(database)) as connection:
        yield connection


def rows(storage: Path, query: str, *values: object) -> list[tuple[object, ...]]:
    """What a query finds in a storage directory's database."""
    with _opened(storage / "mlflow.db") as connection:
        return connection.execute(query, values).fetchall()


def points(storage: Path, name: str) -> list[tuple[int, float]]:
    """Every point of a metric, by step."""
    stored = rows(storage, "SELECT step, value FROM metrics WHERE key = ? ORDER BY step", name)
    return [(int(str(step)), float(str(value))) for step, value in stored]


def duplicate_points(storage: Path) -> list[tuple[object, ...]]:
    """Points of one metric of one run at one step, of which there are several."""
    return rows(
        storage,
        "SELECT run_uuid, key, step, COUNT(*) FROM metrics GROUP BY 1, 2, 3 HAVING COUNT(*) > 1",
    )


def key_values(storage: Path, table: str) -> dict[str, str]:
    """The params or tags of the only run."""
    return {str(key): str(value) for key, value in rows(storage, f"SELECT key, value FROM {table}")}


def problems_of(results: Sequence[SyncResult]) -> list[str | None]:
    return [result.problem for result in results]
