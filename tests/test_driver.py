"""The driver's loop on plain processes: retries, preemptions, hangs, cancels. No Ray is there."""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import journal, tracking
from orchestrator.drive.driver import Driver, drive, run_to_end
from orchestrator.launch.backend import AttemptEvent, find_backend
from orchestrator.planning.planner import make_plan
from orchestrator.values.run import Run
from orchestrator.values.spec import Pods, RetryLimits, RunOptions, Spec
from tests.clusters import eventually
from tests.conftest import ROOT
from tests.example_specs import TINY, spec_of
from tests.fake_worker import FAILURES, WORKER
from tests.file_tracker import NAME, FileTracker, read_lines
from tests.journals import run_request
from tests.process_backend import ProcessBackend

STEPS = 6


def spec(pods: int = 2, at_least: int = 1) -> Spec:
    tiny = spec_of(TINY, chip="v5e", topology="2x2", pods=pods, sequences=16 * pods, length=64)
    options = RunOptions(hang_limit_s=2.0, retries=RetryLimits(failures=1, preemptions=2))
    resources = replace(tiny.resources, pods=Pods(min=at_least, max=pods))
    return replace(tiny, resources=resources, run=options)


def driver(storage: Path, steps: int = STEPS, **failures: str) -> Driver:
    """The driver of a new run. `failures` are called ATTEMPT.RANK.STEP, with _ for the dot."""
    tiny_spec = spec()
    request = journal.RunRequest(
        spec=tiny_spec, plan=make_plan(tiny_spec), steps=steps, rehearsal=True
    )
    writer = journal.claim_run(journal.create_run(storage, request, "it").journal)
    named = {name.strip("_").replace("_", "."): how for name, how in failures.items()}
    (writer.journal.path / FAILURES).write_text(json.dumps(named))
    return Driver(writer, ProcessBackend(), worker=WORKER)


def ends(run: Run) -> list[tuple[str | None, int]]:
    """How each attempt ended, and after how many steps of the run."""
    return [(attempt.reason, attempt.steps_done) for attempt in run.attempts]


def test_a_run_does_all_its_steps(tmp_path: Path) -> None:
    """On two processes, in one attempt."""
    first = driver(tmp_path)
    assert run_to_end(first) == 0
    run = first.writer.run()
    assert (run.state, ends(run)) == ("succeeded", [("finished", STEPS)])
    assert run.attempts[0].slices == ("pod-0", "pod-1")


def test_a_failure_is_tried_again_from_the_last_step(tmp_path: Path) -> None:
    """Rank 0 raises in the first attempt; the second does the other steps."""
    first = driver(tmp_path, _1_0_3="out of luck")
    assert run_to_end(first) == 0
    run = first.writer.run()
    assert (run.state, [attempt.reason for attempt in run.attempts]) == (
        "succeeded",
        ["failure", "finished"],
    )
    assert run.attempts[0].error == "ValueError: out of luck"
    assert run.attempts[0].first_dead_rank == 0
    assert run.attempts[1].restored_steps == 2


def test_the_same_error_at_the_same_step_ends_the_run(tmp_path: Path) -> None:
    """A third attempt would fail alike."""
    first = driver(tmp_path, _1_0_2="no such file", _2_0_2="no such file")
    assert run_to_end(first) == 1
    run = first.writer.run()
    assert run.state == "failed"
    assert [attempt.error for attempt in run.attempts] == ["ValueError: no such file"] * 2


def test_a_lost_slice_is_a_preemption_and_the_run_goes_on_without_it(tmp_path: Path) -> None:
    """One pod of two does the other steps, on a plan of its own."""
    first = driver(tmp_path, steps=20)
    backend = first.backend
    assert isinstance(backend, ProcessBackend)

    def lose() -> None:
        eventually(lambda: first.journal.run().steps_done >= 2, 60)
        backend.lost.add("pod-1")

    threading.Thread(target=lose).start()
    assert run_to_end(first) == 0
    run = first.writer.run()
    lost, after = run.attempts
    assert (lost.reason, lost.error) == ("preemption", "slice pod-1 is gone")
    assert (after.reason, after.pods, after.slices) == ("finished", 1, ("pod-0",))


@pytest.mark.parametrize("how", ["stop", "wait"])
def test_a_hang_is_found_and_tried_again(tmp_path: Path, how: str) -> None:
    """A stopped process gives no heartbeat; one that waits does no step."""
    first = driver(tmp_path, _1_0_2=how, _1_1_2=how)
    assert run_to_end(first) == 0
    run = first.writer.run()
    assert [attempt.reason for attempt in run.attempts] == ["hang", "finished"]
    assert run.state == "succeeded"


LOST = AttemptEvent(ended=True, error="the process that carries out the attempt has ended")


def test_a_loss_before_an_attempt_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No attempt has begun, so none is in the journal; what the run waits for is."""
    monkeypatch.setattr("orchestrator.drive.driver.FIRST_WAIT_S", 0.01)
    first = driver(tmp_path)
    assert isinstance(first.backend, ProcessBackend)
    first.backend.refusals.append(LOST)
    assert run_to_end(first) == 0
    assert ends(first.writer.run()) == [("finished", STEPS)]
    events = [path.read_text() for path in sorted(first.journal.paths.events.iterdir())]
    assert any('"joining_again"' in event for event in events)


def test_losses_before_an_attempt_have_the_budget_of_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails with the error of the last."""
    monkeypatch.setattr("orchestrator.drive.driver.FIRST_WAIT_S", 0.01)
    first = driver(tmp_path)
    assert isinstance(first.backend, ProcessBackend)
    first.backend.refusals += [LOST] * 5
    assert run_to_end(first) == 1
    assert len(first.backend.refusals) == 3  # the first try, and one more
    assert first.writer.run().state == "failed"


def test_an_error_that_every_attempt_would_meet_is_not_tried_again(tmp_path: Path) -> None:
    """The cause decides, not the moment."""
    first = driver(tmp_path)
    assert isinstance(first.backend, ProcessBackend)
    first.backend.refusals += [replace(LOST, repeats=True)] * 2
    assert run_to_end(first) == 1
    assert len(first.backend.refusals) == 1


def test_a_run_that_waits_to_join_again_can_be_cancelled(tmp_path: Path) -> None:
    """It waits with an ear for requests."""
    first = driver(tmp_path)
    assert isinstance(first.backend, ProcessBackend)
    first.backend.refusals.append(LOST)

    def cancel() -> None:
        eventually(lambda: first.journal.run().state == "pending", 60)
        journal.request_cancel(first.journal)

    threading.Thread(target=cancel).start()
    assert run_to_end(first) == 0
    assert (first.writer.run().state, first.writer.run().attempts) == ("cancelled", ())


def test_a_cancelled_run_stops_after_its_step(tmp_path: Path) -> None:
    """Its workers see the request, end well, and nothing more is tried."""
    first = driver(tmp_path, steps=600)

    def cancel() -> None:
        eventually(lambda: first.journal.run().steps_done >= 2, 60)
        journal.request_cancel(first.journal)

    threading.Thread(target=cancel).start()
    assert run_to_end(first) == 0
    run = first.writer.run()
    assert (run.state, run.attempts[0].reason) == ("cancelled", "cancelled")
    assert 2 <= run.steps_done < 600


def test_a_rehearsal_on_plain_processes_is_tracked_in_a_file(tmp_path: Path) -> None:
    """The whole path without Ray or MLflow: `orch submit`, the driver, a trainer, recording
    in the background, and a sync that finds nothing to add.
    """
    settings = {
        "run.storage": str(tmp_path),
        "resources.pods": "1",
        "experiment.batch.sequences": "16",
        "run.trainer": "mlp",
        "cluster.backend": "tests.process_backend:ProcessBackend",
        "tracking.tracker": NAME,
    }
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    more = ["--no-prove", "--no-calibrate", "--steps", "3", "--key", "it"]
    submit = [sys.executable, "-m", "orchestrator", "submit", "specs/tiny_2pod.yaml", *sets, *more]
    done = subprocess.run(submit, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    recorded = journal.find_run(tmp_path, "it")
    run, lines = recorded.run(), tmp_path / "runs.jsonl"
    assert (run.state, run.steps_done) == ("succeeded", 3)
    assert run.tracking
    assert (run.tracking.tracker, run.tracking.uri) == (NAME, str(lines))
    before = read_lines(lines)
    assert [entry["step"] for entry in before if "step" in entry] == [0, 1, 2]
    assert before[-1] == {"run": "it", "state": "succeeded"}
    result = tracking.Recorder({}).record(recorded)
    assert (result.problem, result.run_id) == (None, "it")
    assert read_lines(lines) == before


def test_what_a_driver_prints_is_in_the_log_of_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs: list[Path] = []
    monkeypatch.setattr("orchestrator.drive.driver.redirect_output", logs.append)
    monkeypatch.setattr("orchestrator.drive.driver.run_to_end", lambda _: 0)
    run = journal.create_run(tmp_path, run_request(), "it").journal
    assert drive(run, ProcessBackend(), resumes=False, pods=None) == 0
    assert logs == [run.paths.driver_log(run.state().writer)]


def test_backends_and_trackers_are_found_by_name() -> None:
    """Built in, or by a dotted name."""
    assert type(find_backend("ray")).__name__ == "RayBackend"
    assert isinstance(find_backend("tests.process_backend:ProcessBackend"), ProcessBackend)
    assert isinstance(tracking.find_tracker(NAME), FileTracker)
