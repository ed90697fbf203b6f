"""The record: MLflow has what the journal has, each point once, however often it is replayed."""

import json
import math
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.errors import SpecError
from orchestrator.journal import liveness
from orchestrator.journal.heartbeat import ClaimWatch, HeartbeatWriter
from orchestrator.journal.run_journal import noted_tracking
from orchestrator.journal.steps import StepLog
from orchestrator.tracking.destinations import NotRecorded, destination, is_behind, read_sync_state
from orchestrator.tracking.mlflow import metrics
from orchestrator.tracking.mlflow.export import _params as spec_params
from orchestrator.tracking.mlflow.metrics import MetricPoint, finite
from orchestrator.tracking.mlflow.store import Store, is_server
from orchestrator.tracking.recorder import Recorder, _only_one
from orchestrator.values.spec import TrackingOptions
from tests import records
from tests.clusters import eventually
from tests.journals import reason, step, tiny_plan, tiny_spec
from tests.records import (
    destination_in,
    duplicate_points,
    empty_database,
    finished_run,
    key_values,
    points,
    record_once,
    rows,
    start_tracked_run,
    storage,
    train_steps,
)
from tests.test_journal_studies import opened_study as study_journal

__all__ = ["empty_database", "storage"]

# --- what is there


def test_each_step_is_recorded_once(storage: Path) -> None:
    """Every step of both attempts, each name once a step; of what was redone, the first."""
    run = finished_run(storage)
    [tried] = record_once(run)
    assert tried.problem is None
    assert [at for at, _ in points(storage, metrics.LOSS)] == list(range(20))
    assert points(storage, metrics.LOSS)[7] == (7, 9.0 / 8)
    warm = [index for index in range(20) if index != 0]
    assert [at for at, _ in points(storage, metrics._MFU)] == warm
    assert [at for at, _ in points(storage, metrics._MFU_ROOFLINE)] == list(range(20))
    assert points(storage, metrics._MEASURED_HBM) == [(0, 3.0)]
    assert duplicate_points(storage) == []


def test_replaying_changes_nothing(storage: Path) -> None:
    """Any number of times, by anybody: not a row more, and not another one."""
    run = finished_run(storage)
    tables = ("runs", "metrics", "latest_metrics", "params", "tags")
    record_once(run)
    before = [rows(storage, f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in tables]
    for _ in range(3):
        assert records.problems_of(record_once(run)) == [None]
    assert before == [rows(storage, f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in tables]


def test_recording_as_it_goes_is_replaying(storage: Path) -> None:
    """A run that was recorded step by step, and one that was recorded at its end, are the same."""
    writer = start_tracked_run(storage, steps=8)
    recorder = Recorder({})
    number = writer.start_attempt(tiny_plan())
    with writer.background_heartbeat(), StepLog(writer.journal.path, number) as log:
        for index in range(8):
            log.append(step(index, restored=None if index else 0))
            assert recorder.record(writer.journal).problem is None
            assert len(points(storage, metrics.LOSS)) == index + 1
    assert rows(storage, "SELECT status FROM runs") == [("RUNNING",)]
    writer.end_attempt("finished")
    writer.end_run("succeeded")
    recorder.record(writer.journal)
    as_it_went = rows(storage, "SELECT key, step, value, timestamp FROM metrics ORDER BY 1, 2")
    (writer.journal.path / "tracking.json").unlink()
    rows_gone(storage)
    record_once(writer.journal)
    assert as_it_went == rows(
        storage, "SELECT key, step, value, timestamp FROM metrics ORDER BY 1, 2"
    )


def tracked_id(run: journal.Journal) -> str | None:
    tracked = run.run().tracking
    return tracked.run_id if tracked else None


def rows_gone(storage: Path) -> None:
    """Forget every run, as if the database were a new one."""
    with records._opened(storage / "mlflow.db") as connection:
        for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
            connection.execute(f"DELETE FROM {table}")
        connection.commit()


def test_a_database_that_was_lost_is_filled_again(storage: Path, empty_database: Path) -> None:
    """The journal is the truth: what MLflow forgot is sent anew, under a new id that is noted."""
    run = finished_run(storage)
    [first] = record_once(run)
    (storage / "mlflow.db").write_bytes(empty_database.read_bytes())
    [second] = record_once(run)
    assert second.problem is None
    assert second.run_id != first.run_id
    assert tracked_id(run) == second.run_id
    assert len(points(storage, metrics.LOSS)) == 20


def test_the_spec_is_there_flat(storage: Path) -> None:
    """Every value under its dotted key."""
    record_once(finished_run(storage))
    params = key_values(storage, "params")
    assert params["experiment.model.layers"] == "2"
    assert params["resources.pods.max"] == "2"
    assert params["run.checkpoint.every"] == "200"
    assert params == spec_params(tiny_spec())


def test_nothing_is_cut_silently(storage: Path) -> None:
    """A value that MLflow would cut says where it stands whole."""
    long: dict[str, bool | int | float | str] = {"xla_tpu_flags": "x" * 7_000}
    spec = tiny_spec()
    spec = replace(spec, experiment=replace(spec.experiment, compiler_options=long))
    record_once(finished_run(storage, spec=spec))
    params = key_values(storage, "params")
    value = params["experiment.compiler_options.xla_tpu_flags"]
    assert value == "in artifact spec.json: 7,000 characters are too many"
    [kept] = storage.glob("mlflow-artifacts/*/artifacts/spec.json")
    assert json.loads(kept.read_text())["experiment"]["compiler_options"] == long


def test_the_tags_say_what_the_numbers_mean(storage: Path) -> None:
    """Digests, chip, the definition of MFU, real or not, attempts, and a note."""
    run = finished_run(storage, environment={"git_commit": "0a1b", "jax": "0.10.2"})
    record_once(run)
    tags = key_values(storage, "tags")
    plan = tiny_plan()
    assert tags["orch.plan_digest"] == plan.digest
    assert tags["orch.mfu_definition"] == plan.forecast.mfu_definition
    assert (tags["orch.chip"], tags["orch.kind"], tags["orch.attempts"]) == ("v5e", "real", "2")
    assert tags["mlflow.source.git.commit"] == "0a1b"
    assert tags["orch.environment.jax"] == "0.10.2"
    assert tags["mlflow.note.content"].startswith("**it** succeeded: 20 of 20 steps.")


def test_files_are_kept_with_the_run(storage: Path) -> None:
    """Spec, plan, a later document, and logs; a long one says what is left out."""
    run = finished_run(storage)
    run.paths.rank_log(2, 0).write_text("hello\n" * 300_000)
    record_once(run)
    (run.path / "report.html").write_text("<p>later")
    record_once(run)
    [folder] = storage.glob("mlflow-artifacts/*/artifacts")
    stored = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    plan = run.paths.plan(tiny_plan().digest).name
    assert stored == {
        "spec.json", f"plans/{plan}", "report.html", "logs/attempt-2-rank-0.log",
    }  # fmt: skip
    log = (folder / "logs/attempt-2-rank-0.log").read_text()
    assert log.startswith("(the last 1,048,576 of 1,800,000 bytes; all of it: ")


# --- how it ended


@pytest.mark.parametrize(
    ("state", "status"),
    [("succeeded", "FINISHED"), ("failed", "FAILED"), ("cancelled", "KILLED")],
)
def test_an_ended_run_is_ended_there(storage: Path, state: str, status: str) -> None:
    """Each way to end has its own status, and its time."""
    writer = start_tracked_run(storage)
    train_steps(writer, range(3))
    writer.end_attempt("finished")
    writer.end_run(state)  # type: ignore[arg-type]
    record_once(writer.journal)
    ended_at_s = writer.run().ended_at_s
    assert ended_at_s is not None
    assert rows(storage, "SELECT status, end_time FROM runs") == [(status, round(ended_at_s * 1e3))]


def test_a_killed_run_does_not_stay_running(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that vanished could not say so; the journal does, and a replay passes it on."""
    writer = start_tracked_run(storage)
    train_steps(writer, range(3))
    with writer.background_heartbeat():
        record_once(writer.journal)
    assert rows(storage, "SELECT status FROM runs") == [("RUNNING",)]
    with monkeypatch.context() as patched:
        patched.setattr(liveness, "is_gone", lambda _: True)
        assert writer.journal.run().state == "lost"
        record_once(writer.journal)
        assert rows(storage, "SELECT status FROM runs") == [("FAILED",)]
        resumed = journal.claim_run(writer.journal, resumes=True)
    with resumed.background_heartbeat():
        record_once(resumed.journal)
    assert rows(storage, "SELECT status FROM runs") == [("RUNNING",)]


def test_an_ending_is_summed_up(storage: Path) -> None:
    """Medians without the steps that warm up, tokens a second, and where the time went."""
    run = finished_run(storage)
    record_once(run)
    assert points(storage, metrics._MEDIAN_MFU) == [(20, 0.4)]
    assert points(storage, metrics._TOKENS_PER_S) == [(20, 4096 / 0.25)]
    [(_, ratio)] = points(storage, metrics._OVER_PREDICTED["lower"])
    assert ratio == pytest.approx(0.25 / tiny_plan().forecast.step_s.lower)
    assert len(points(storage, metrics._GOODPUT)) == 1
    [(at, wasted_s)] = points(storage, metrics._BADPUT["wasted_progress_from_disruption"])
    assert (at, round(wasted_s, 6)) == (20, 5 * 0.25)


def test_a_rehearsal_is_not_held_against_chips(storage: Path) -> None:
    """What CPU devices did is no share of what chips should do, unless they were calibrated."""
    record_once(finished_run(storage, rehearsal=True))
    assert points(storage, metrics._OVER_PREDICTED["lower"]) == []
    assert len(points(storage, metrics._MEDIAN_MFU)) == 1
    assert key_values(storage, "tags")["orch.kind"] == "rehearsal"


def test_only_known_names_are_recorded(storage: Path) -> None:
    """Every metric that is sent is in the table of names, but for a trainer's own; a run without
    stages has all but theirs.
    """
    record_once(finished_run(storage))
    sent = {str(key) for [key] in rows(storage, "SELECT DISTINCT key FROM metrics")}
    assert sent <= set(metrics._ALL)
    assert sent >= {*metrics._OF_STEPS, *metrics._OF_PLANS, *metrics._OF_ENDINGS}


def test_no_infinity_is_sent() -> None:
    """Neither of the trainer's own, nor by a division."""
    assert finite({"a": math.inf, "b": math.nan, "c": None, "d": 0.0}, 1.0, 2) == [
        MetricPoint(name="d", value=0.0, at_s=1.0, step=2)
    ]


def test_a_trainers_own_metrics_keep_their_names(storage: Path) -> None:
    """As far as MLflow takes them; as many as there are."""
    writer = start_tracked_run(storage)
    number = writer.start_attempt(tiny_plan())
    many = {f"m{index}": float(index) for index in range(1_500)}
    with StepLog(writer.journal.path, number) as log:
        log.append(step(0, restored=0, trainer_metrics={"z=loss": 0.5, **many}))
        log.append(step(1, trainer_metrics=many))
    assert records.problems_of(record_once(writer.journal)) == [None]
    assert points(storage, "trainer/z_loss") == [(0, 0.5)]
    assert points(storage, "trainer/m1499") == [(0, 1499.0), (1, 1499.0)]


# --- one writer, one run


def test_files_are_sent_once(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished_run(storage)
    record_once(run)
    sent: list[Path] = []
    monkeypatch.setattr(Store, "log_file", lambda *words: sent.append(words[2]))
    record_once(run)
    assert sent == []


def test_a_ghost_is_removed(storage: Path) -> None:
    """A request to create a run whose answer was lost leaves one more, which is found by its id."""
    run = finished_run(storage)
    store = Store(destination_in(storage))
    ghosts = [store.create("it", 1e9 + n, {"orch.id": run.run().id}) for n in range(2)]
    [tried] = record_once(run)
    assert tried.run_id == ghosts[0].id
    active = rows(storage, "SELECT run_uuid FROM runs WHERE lifecycle_stage = 'active'")
    assert active == [(ghosts[0].id,)]


def test_a_run_that_was_deleted_is_left_alone(storage: Path) -> None:
    """Somebody did not want it there; the message says how it comes back."""
    run = finished_run(storage)
    [tried] = record_once(run)
    assert tried.run_id
    Store(destination_in(storage)).delete(tried.run_id)
    [again] = record_once(run)
    assert again.problem is not None
    assert "was deleted there; restore it, or remove" in again.problem
    assert len(rows(storage, "SELECT 1 FROM runs")) == 1


def test_one_process_records_a_run(storage: Path) -> None:
    """Another waits for it, and gives up in words."""
    run = finished_run(storage)
    with (
        _only_one(run),
        pytest.raises(NotRecorded, match="another process is recording it"),
        _only_one(run, limit_s=0.2),
    ):
        pass
    with _only_one(run):
        pass


def test_the_mark_tells_whether_to_look(storage: Path) -> None:
    """After a step, an attempt or an end, until it is recorded."""
    writer = start_tracked_run(storage)
    mark = read_sync_state(writer.journal)
    assert mark is not None
    assert is_behind(writer.run(), mark)
    train_steps(writer, range(3))
    with writer.background_heartbeat():
        record_once(writer.journal)
    assert not is_behind(writer.run(), read_sync_state(writer.journal) or mark)
    writer.end_attempt("finished")
    writer.end_run("succeeded")
    assert is_behind(writer.run(), read_sync_state(writer.journal) or mark)


def test_a_run_without_steps_is_recorded(storage: Path) -> None:
    """It failed before its first one: no summary, and a reason."""
    writer = start_tracked_run(storage)
    writer.end_run("failed", reason("no slice is free"))
    assert records.problems_of(record_once(writer.journal)) == [None]
    assert key_values(storage, "tags")["orch.why"] == "no slice is free"
    assert points(storage, metrics._GOODPUT) == []


def test_the_runs_of_a_study_have_one_parent(storage: Path) -> None:
    """It runs while one of them does, and has finished when every trial has."""
    study = study_journal(storage)
    for number in (1, 2):
        run = journal.start_trial(study, number, 1).run
        writer = start_tracked_run(storage, run, number, study=study.key, steps=3)
        train_steps(writer, range(3), number)
        with writer.background_heartbeat():
            record_once(writer.journal)
        assert parent_row(storage) == (study.key, "RUNNING")
        writer.end_attempt("finished")
        writer.end_run("succeeded")
        record_once(writer.journal)
        assert parent_row(storage) == (study.key, "FAILED" if number == 1 else "FINISHED")
    (study.path / "report.html").write_text("<p>later")
    record_once(writer.journal)
    assert len(list(storage.glob("mlflow-artifacts/*/artifacts/report.html"))) == 1
    noted = noted_tracking(study.path)
    assert noted is not None
    children = "SELECT COUNT(*) FROM tags WHERE key = 'mlflow.parentRunId' AND value = ?"
    assert rows(storage, children, noted.run_id) == [(2,)]
    assert len(rows(storage, "SELECT 1 FROM runs")) == 3
    # A trial is named by its settings, and then by the run.
    names = {str(name) for (name,) in rows(storage, "SELECT name FROM runs")} - {study.key}
    trials = study.submission().study.trials[:2]
    assert names == {
        f"pods {trial.settings['resources.pods']}: {study.key}-trial-{trial.number}.1"
        for trial in trials
    }


def parent_row(storage: Path) -> tuple[object, ...]:
    """Name and status of the MLflow run of a study."""
    kind = "SELECT run_uuid FROM tags WHERE key = 'orch.kind' AND value = 'study'"
    [row] = rows(storage, f"SELECT name, status FROM runs WHERE run_uuid IN ({kind})")
    return row


# --- where


@pytest.mark.parametrize(
    ("variable", "written", "uri"),
    [
        ("", "auto", "sqlite:////s/mlflow.db"),
        ("http://tracking:5000/", "auto", "http://tracking:5000"),
        ("", "https://tracking.example", "https://tracking.example"),
        ("http://mine:1", "http://other:2", "http://mine:1"),
        ("", "/data/all.db", "sqlite:////data/all.db"),
        ("sqlite:////data/x.db", "auto", "sqlite:////data/x.db"),
        ("", "postgresql://db/mlflow", "postgresql://db/mlflow"),
    ],
)
def test_where_runs_are_recorded(variable: str, written: str, uri: str) -> None:
    """MLFLOW_TRACKING_URI, else the spec, else a file with an absolute path beside the runs."""
    where = destination(TrackingOptions(uri=written), Path("/s"), {"MLFLOW_TRACKING_URI": variable})
    assert where.uri == uri
    assert (where.artifacts is None) == is_server(where)


def test_a_relative_file_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same file from every directory."""
    monkeypatch.chdir(tmp_path)
    for written in ("all.db", "sqlite:///all.db"):
        where = destination(TrackingOptions(uri=written), Path("runs"), {})
        assert where.uri == f"sqlite:///{tmp_path}/all.db"
        assert where.artifacts == f"file://{tmp_path}/runs/mlflow-artifacts"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("http://me:secret@tracking", "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        ("https://me@tracking", "holds a user or password"),
        ("postgresql://me:secret@db/mlflow", "holds a user or password"),
        ("./mlruns", "write sqlite:///"),
        ("file:///data/mlruns", "sqlite:////data/mlruns/mlflow.db"),
        ("sqlite://", "names no file"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(written: str, expected: str) -> None:
    """With what to write instead, and without the password in the message."""
    with pytest.raises(SpecError, match=expected) as met:
        destination(TrackingOptions(), Path("/s"), {"MLFLOW_TRACKING_URI": written})
    assert "secret" not in str(met.value)


def test_checkpoints_are_models_of_the_run(storage: Path) -> None:
    """Each once, however often the run is recorded, with step, checksum, folder and loss."""
    writer = start_tracked_run(storage, steps=20)
    train_steps(writer, range(10))
    writer.record_checkpoint(5, "ab" * 32)
    record_once(writer.journal)
    writer.record_checkpoint(10, "cd" * 32)
    for _ in range(2):
        [tried] = record_once(writer.journal)
        assert tried.problem is None
    assert rows(storage, "SELECT name, status FROM logged_models ORDER BY 1") == [
        ("step-10", 2), ("step-5", 2),
    ]  # fmt: skip
    query = "SELECT param_value FROM logged_model_params WHERE param_key = ? ORDER BY 1"
    assert rows(storage, query, "sha256") == [("ab" * 32,), ("cd" * 32,)]
    losses = "SELECT metric_step, metric_value FROM logged_model_metrics ORDER BY 1"
    assert rows(storage, losses) == [(4, 9.0 / 5), (9, 9.0 / 10)]
    assert duplicate_points(storage) == []


def test_an_experiment_opens_on_measured_and_predicted_mfu(storage: Path) -> None:
    """In the line that is always shown; a rehearsal is not compared with chips."""
    record_once(finished_run(storage, "real"))
    query = "SELECT value FROM experiment_tags WHERE key = 'mlflow.note.content'"
    [(text,)] = rows(storage, query)
    assert str(text).startswith("**MFU 40.0 %** (expected 3.4 %, roofline 9.2 %) of the newest")
    record_once(finished_run(storage, "small", rehearsal=True))
    [(text,)] = rows(storage, query)
    assert str(text).startswith("**MFU 40.0 %** (expected -, roofline -)")
    assert "/runs/" in str(text)
    Store(destination_in(storage)).set_experiment_tag("mlflow.note.content", "our own words")
    record_once(finished_run(storage, "later"))
    assert rows(storage, query) == [("our own words",)]


def test_what_hosts_are_busy_with_is_sent_while_they_run(storage: Path) -> None:
    """Of each host once, under the names of MLflow's own system metrics."""
    writer = start_tracked_run(storage)
    number = train_steps(writer, range(3))
    watch = ClaimWatch(writer.journal.path, writer.number, number)
    with HeartbeatWriter(
        writer.journal.path, number, 0, "slice-0", 0.05, watch, give_up=lambda: None
    ):
        beats = writer.journal.paths.heartbeat(number, 0)
        eventually(lambda: b"cpu" in beats.read_bytes(), 20)
        record_once(writer.journal)
    names = {str(name) for (name,) in rows(storage, "SELECT DISTINCT key FROM metrics")}
    host = socket.gethostname()
    assert f"system/{host}/cpu_utilization_percentage" in names
    assert f"system/{host}/system_memory_usage_megabytes" in names
