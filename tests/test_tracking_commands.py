"""`orch sync`, and what other commands see to on their way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli.look_commands import sync_command
from orchestrator.run import records
from orchestrator.show.machine_screens import sync_screen
from orchestrator.tracking.destinations import read_sync_state
from orchestrator.tracking.recorder import Recorder, _only_one
from orchestrator.values.run import Destination, SyncProgress, SyncResult
from tests.clusters import eventually
from tests.conftest import RunOrch
from tests.journals import reason
from tests.records import (
    empty_database,
    finished_run,
    points,
    rows,
    start_tracked_run,
    storage,
    train_steps,
)

__all__ = ["empty_database", "storage"]


def test_sync_records_what_is_named_or_all(
    orch_process: RunOrch, orch: RunOrch, storage: Path
) -> None:
    """A run, or every run; as JSON; and again without a difference."""
    first, second = finished_run(storage, "first"), finished_run(storage, "second")
    at = ("--storage", str(storage))
    done = orch_process("sync", "first", *at)
    assert done.returncode == 0, done.stderr
    *_, said, following = done.stdout.splitlines()
    assert said == f"Sync: 1 run recorded in {storage}/mlflow.db (orch)."
    assert following == f"Next: orch ui --storage {storage}"
    [(name,)] = rows(storage, "SELECT name FROM runs")
    assert name == "first: 2 pods of 2x2 v5e"
    printed = json.loads(orch("sync", *at, "--json").stdout)
    assert [entry["run"] for entry in printed] == ["first", "second"]
    assert [entry["recorded"]["steps"] for entry in printed] == [20, 20]
    assert [entry["run_id"] for entry in printed] == [
        tracked.run_id for run in (first, second) if (tracked := run.run().tracking)
    ]
    assert len(points(storage, "learning/loss")) == 40


def test_sync_says_what_it_could_not_do(
    orch_process: RunOrch, orch: RunOrch, storage: Path
) -> None:
    """Nothing is lost, and the exit status tells."""
    finished_run(storage)
    (storage / "mlflow.db").write_text("this is no database")
    done = orch_process("sync", "--storage", str(storage))
    assert done.returncode == 1
    assert "warning: it: " in done.stdout
    assert "Sync: 1 of 1 runs not recorded. Nothing is lost" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert orch("sync", "nobody", "--storage", str(storage)).returncode == 2
    assert "No runs in" in orch("sync", "--storage", str(storage / "none")).stdout


def test_sync_leaves_a_run_to_its_own_driver(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it records, nothing is wrong; when the driver is gone, something is. The exit status
    says so too.
    """
    monkeypatch.setattr(records, "LOCK_LIMIT_S", 0.1)
    writer = start_tracked_run(storage)
    train_steps(writer, range(3))
    before = read_sync_state(writer.journal)
    with writer.background_heartbeat(), _only_one(writer.journal):
        synced = Recorder(os.environ).record(writer.journal, limit_s=0.1)
        beside = CliRunner().invoke(sync_command, ["--storage", str(storage)])
    assert (synced.by_driver, synced.problem) == (True, None)
    assert read_sync_state(writer.journal) == before
    assert (beside.exit_code, beside.stdout.splitlines()[0]) == (
        0,
        "it: recorded by its own driver",
    )
    lines = sync_screen([synced], storage, "orch ui").splitlines()
    assert lines[0] == "it: recorded by its own driver"
    assert lines[1].startswith("Sync: 1 run recorded in ")
    writer.end_attempt("finished")
    writer.end_run("succeeded")
    with _only_one(writer.journal):
        late = Recorder(os.environ).record(writer.journal, limit_s=0.1)
    assert (late.by_driver, late.problem) == (False, "another process is recording it")
    assert "warning: it: another process is recording it" in sync_screen([late], storage, "orch ui")


def test_a_database_of_several_experiments_is_named_once() -> None:
    """With the experiments behind it."""

    def one(run: str, file: str, experiment: str) -> SyncResult:
        return SyncResult(
            run=run,
            destination=Destination(
                tracker="mlflow", uri=f"sqlite:///{file}", experiment=experiment, artifacts=None
            ),
            run_id="1",
            recorded=SyncProgress(state="succeeded", attempts=1, steps=2),
            problem=None,
        )

    synced = [one("a", "/x.db", "orch"), one("b", "/x.db", "tiny"), one("c", "/y.db", "orch")]
    lines = sync_screen([*synced, one("d", "/x.db", "orch")], Path("/runs"), "orch ui").splitlines()
    assert lines[-2] == "Sync: 4 runs recorded in /x.db (orch, tiny), /y.db (orch)."


def test_sync_waits_for_what_records_in_the_background(storage: Path) -> None:
    """As an earlier command has it done: it says so, and ends well when that is done."""
    writer = start_tracked_run(storage)
    train_steps(writer, range(3))
    writer.end_attempt("finished")
    writer.end_run("succeeded")
    command = [sys.executable, "-m", "orchestrator", "sync", "--storage", str(storage)]
    with _only_one(writer.journal):
        syncing = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert syncing.stderr
        lines = [syncing.stderr.readline() for _ in range(2)]
    output, _ = syncing.communicate(timeout=120)
    assert "it: waiting for another process that records it\n" in lines
    assert (syncing.returncode, "Sync: 1 run recorded in " in output) == (0, True)


def test_sync_gives_up_on_a_run_that_is_held_for_ever(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After as long as a process in the background may take, and the exit status says so."""
    monkeypatch.setattr(records, "ONCE_LIMIT_S", 0.1)
    writer = start_tracked_run(storage)
    writer.end_run("failed", reason("out of luck"))
    with _only_one(writer.journal):
        done = CliRunner().invoke(sync_command, ["--storage", str(storage)])
    assert done.exit_code == 1
    assert "warning: it: another process is recording it" in done.output


def test_a_later_command_has_recorded_what_was_missed(orch_process: RunOrch, storage: Path) -> None:
    """`orch status` answers at once; what a killed recorder left is sent in the background."""
    writer = start_tracked_run(storage)
    train_steps(writer, range(3))
    writer.end_attempt("finished")
    writer.end_run("failed", reason("out of luck"))
    done = orch_process("status", "it", "--storage", str(storage))
    assert done.returncode == 0

    def is_recorded() -> bool:
        mark = read_sync_state(writer.journal)
        return mark is not None and mark.recorded is not None

    eventually(is_recorded, 120)
    assert rows(storage, "SELECT status FROM runs") == [("FAILED",)]
    assert json.loads(orch_process("status", "it", "--storage", str(storage), "--json").stdout)[
        "tracking"
    ]
