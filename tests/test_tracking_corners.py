"""Corners of what MLflow gets: short names, files that are sent once."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow.tracking
import pytest

from orchestrator.tracking.mlflow import export, metrics, store
from orchestrator.tracking.mlflow.store import Store
from orchestrator.values.run import RecentSteps
from tests.journals import reason, tiny_plan
from tests.records import destination_in, finished_run, start_tracked_run, train_steps


def test_a_reason_has_no_sql() -> None:
    """What SQLAlchemy says of a full disk, and of anything else."""
    statement = "[SQL: UPDATE alembic_version SET version_num='b'] (Background on this error at: x)"
    full = ValueError(f"(sqlite3.OperationalError) database or disk is full {statement}")
    assert store._reason(full) == "its disk is full"
    other = ValueError(f"(sqlite3.OperationalError) no such table: runs {statement}")
    assert store._reason(other) == "(sqlite3.OperationalError) no such table: runs"


@pytest.mark.parametrize(("length", "cut"), [(200, False), (201, True)])
def test_a_reason_is_a_line(length: int, cut: bool) -> None:
    said = store._reason(ValueError("x" * length))
    assert (len(said), said.endswith("...")) == (200, cut)


@pytest.mark.parametrize("more", [0, 1])
def test_a_value_or_name_of_the_largest_size_is_sent(more: int) -> None:
    value = export._params({"key": "x" * (export._LONGEST_VALUE + more)})["key"]
    assert value.startswith("in artifact") is bool(more)
    [name] = export._params({"k" * (export._LONGEST_NAME + more): "x"})
    assert name.endswith("_") is bool(more)
    assert len(name) == export._LONGEST_NAME


def test_the_note_says_why_and_how_fast(tmp_path: Path) -> None:
    run = finished_run(tmp_path).run()
    recent = RecentSteps(steps=3, step_s=0.25, mfu=0.4, tokens_per_s_per_chip=None)
    measured = replace(run, recent=recent)
    lines = export._note(measured, tiny_plan(), None).splitlines()
    assert "Measured: 0.25 s a step, MFU 40.0 %." in lines
    without = replace(run, recent=replace(recent, mfu=None))
    assert "Measured: 0.25 s a step." in export._note(without, None, None).splitlines()
    failed = replace(run, state="failed", reason=reason("no luck\nat all"))
    assert "Why: no luck" in export._note(failed, None, None).splitlines()
    assert "Why" not in export._note(replace(failed, state="running"), None, None)


def test_an_attempt_on_the_same_plan_has_no_forecast_of_its_own(tmp_path: Path) -> None:
    writer = start_tracked_run(tmp_path)
    train_steps(writer, range(3))
    writer.end_attempt("failure")
    train_steps(writer, range(3, 5))
    points = export.description(writer.journal, writer.run(), None).points
    assert {point.step for point in points} == {0}
    writer.end_attempt("failure")
    train_steps(writer, range(5, 6), pods=1)
    points = export.description(writer.journal, writer.run(), None).points
    assert {point.step for point in points} == {0, 2}


def test_batches_are_no_larger_than_a_server_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = start_tracked_run(tmp_path)
    train_steps(writer, range(8))
    run = writer.run()
    per_step = len(metrics.of_step(writer.journal.steps(run)[-1], tiny_plan()))
    monkeypatch.setattr(export, "MOST_POINTS", 2 * per_step)
    store_: Any = None  # it sends nothing here
    sizes = [len(points) for points, _ in export.RunExport(writer.journal, store_)._batches(run)]
    assert sum(sizes) >= 8 * per_step - 8
    assert max(sizes) < 2 * per_step  # a tag goes with them


def test_a_database_is_made_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody opens one whose tables are not all there; nothing is left of a try that failed."""
    made: list[Path] = []

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            made.append(Path(tracking_uri.removeprefix(store._SQLITE)))

        def search_experiments(self, **_: Any) -> None:
            made[-1].touch()

        def get_experiment_by_name(self, _: str) -> Any:
            raise ConnectionError

    monkeypatch.setattr(mlflow.tracking, "MlflowClient", Client)
    with pytest.raises(Exception):  # noqa: B017, PT011
        Store(destination_in(tmp_path))
    assert made[0].name == f".mlflow.db.{os.getpid()}"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert (tmp_path / "mlflow.db").exists()
