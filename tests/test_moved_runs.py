"""A folder of runs that is copied or moved: it works there, and nothing is written where it was."""

import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from orchestrator.journal.run_journal import Journal, absolute_uri, relative_uri
from orchestrator.run.records import _places_by_uri
from orchestrator.tracking import destinations
from orchestrator.tracking.destinations import read_sync_state
from tests.conftest import RunOrch
from tests.records import (
    destination_in,
    empty_database,
    finished_run,
    problems_of,
    record_once,
    rows,
    start_tracked_run,
    storage,
)

__all__ = ["empty_database", "storage"]


def digests(folder: Path) -> dict[str, str]:
    """Every file of a folder, by its path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("kind", ["copied", pytest.param("moved", marks=pytest.mark.slow)])
def test_a_database_elsewhere_is_refused_and_recorded_anew(
    kind: str, storage: Path, tmp_path_factory: pytest.TempPathFactory, orch_process: RunOrch
) -> None:
    """It says where artifacts lie: nothing is written where it came from. Without it the runs are
    recorded where they are now.
    """
    first = finished_run(storage)
    assert problems_of(record_once(first)) == [None]
    there = tmp_path_factory.mktemp("else where") / "runs"
    before = digests(storage)
    if kind == "copied":
        shutil.copytree(storage, there)
    else:
        shutil.move(storage, there)
    elsewhere = Journal(there / first.key)
    (elsewhere.path / "report.html").write_text("<p>new")
    state = read_sync_state(elsewhere)
    assert state
    assert state.destination == destination_in(there)
    assert state.recorded
    tracked = elsewhere.run().tracking
    assert tracked
    assert tracked.uri == destination_in(there).uri
    assert list(_places_by_uri(there)) == [destination_in(there).uri]
    [problem] = problems_of(record_once(elsewhere))
    assert problem is not None
    assert f"{there}/mlflow.db: was moved or copied from {storage}, where" in problem
    (there / "mlflow.db").rename(there / "earlier.db")
    done = orch_process("sync", first.key, "--storage", str(there))
    assert done.returncode == 0, done.stdout + done.stderr
    [[uri]] = rows(there, "SELECT artifact_uri FROM runs")
    assert str(uri).startswith(f"{there.as_uri()}/")
    assert len(list(there.glob("mlflow-artifacts/*/artifacts/report.html"))) == 1
    assert (digests(storage) if storage.exists() else before) == before


def test_another_name_of_a_folder_is_the_same_folder(storage: Path, tmp_path: Path) -> None:
    """A link to a storage moves nothing."""
    first = finished_run(storage)
    assert problems_of(record_once(first)) == [None]
    linked = tmp_path / "linked"
    linked.symlink_to(storage)
    assert problems_of(record_once(Journal(linked / first.key))) == [None]


def test_a_driver_records_where_its_storage_is(
    storage: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What the command passes on names no path: the storage may be mounted elsewhere."""
    run = start_tracked_run(storage).journal
    passed = destinations.passed_on(run)
    assert passed
    assert str(storage) not in passed
    there = shutil.copytree(storage, tmp_path_factory.mktemp("mounted") / "runs")
    environment = {destinations.VARIABLE: passed}
    assert destinations._chosen(Journal(there / run.key), environment) == destination_in(there)


@pytest.mark.parametrize(
    ("uri", "stored"),
    [
        ("sqlite:////data/runs/mlflow.db", "sqlite:///{storage}/mlflow.db"),
        ("/data/runs/all.db", "{storage}/all.db"),
        ("sqlite:////data/runs2/mlflow.db", "sqlite:////data/runs2/mlflow.db"),
        ("sqlite:////other/data/runs/mlflow.db", "sqlite:////other/data/runs/mlflow.db"),
        ("file:///data/runs/mlflow-artifacts", "{storage-uri}/mlflow-artifacts"),
        ("http://server/data/runs/", "http://server/data/runs/"),
        ("postgresql://db/data/runs/x", "postgresql://db/data/runs/x"),
    ],
)
def test_an_address_inside_the_storage_is_relative_to_it(uri: str, stored: str) -> None:
    """And no other, however alike it is."""
    assert relative_uri(uri, Path("/data/runs")) == stored
    assert absolute_uri(stored, Path("/data/runs")) == uri
    elsewhere = absolute_uri(stored, Path("/a b"))
    assert ("/a b/" in elsewhere or "/a%20b/" in elsewhere) == ("{storage" in stored)
