"""The journal on disk: how a run is created, what its driver writes, and what others read."""

import threading
from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.errors import RunExists, SpecError, Superseded
from orchestrator.journal.steps import StepLog
from orchestrator.values import codec
from orchestrator.values.run import Run, Status, TrackedRun
from tests.journals import (
    claimed_run,
    failed_once,
    reason,
    run_request,
    step,
    tiny_plan,
    tiny_spec,
    write_steps,
)


def test_a_new_run_stores_its_spec_plan_and_documents(tmp_path: Path) -> None:
    request = run_request(
        rehearsal=True,
        rehearses=tiny_plan(4),
        environment={"git": "0123abc"},
        documents={"spec.yaml": b"name: asked # as written\n"},
    )
    run_journal = journal.create_run(tmp_path, request).journal
    run = run_journal.run()
    assert run.state == "submitted"
    assert run.rehearsal
    assert run.rehearses == tiny_plan(4).digest
    assert run.environment == {"git": "0123abc"}
    assert run_journal.spec() == tiny_spec()
    assert run_journal.plan(run.plan_digest) == tiny_plan()
    assert run_journal.plan(tiny_plan(4).digest) == tiny_plan(4)
    assert (run_journal.paths.documents / "spec.yaml").read_bytes() == b"name: asked # as written\n"


def test_a_default_key_names_spec_plan_and_number(tmp_path: Path) -> None:
    keys = [journal.create_run(tmp_path, run_request()).journal.key for _ in range(3)]
    plan = codec.short(tiny_plan().digest)
    assert keys == [f"asked-{plan}-1", f"asked-{plan}-2", f"asked-{plan}-3"]


def test_an_existing_key_is_refused(tmp_path: Path) -> None:
    """The first run is unchanged, and the error says where it is."""
    first = journal.create_run(tmp_path, run_request(), "mine").journal.run()
    with pytest.raises(RunExists, match="mine exists already") as refused:
        journal.create_run(tmp_path, run_request(steps=7), "mine")
    assert refused.value.key == "mine"
    [only], problems = journal.list_runs(tmp_path)
    assert (only.id, only.steps) == (first.id, 100)
    assert problems == []
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_of_many_submissions_with_one_key_one_succeeds(tmp_path: Path) -> None:
    outcomes: list[str] = []

    def submit(key: str | None) -> None:
        try:
            outcomes.append(journal.create_run(tmp_path / str(key), run_request(), key).journal.key)
        except RunExists:
            outcomes.append("taken")

    threads = [threading.Thread(target=submit, args=(key,)) for key in ["k", None] * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("taken") == 7
    assert len(set(outcomes)) == 1 + 1 + 8


@pytest.mark.parametrize("key", ["", ".hidden", "a/b", "..", "a b", "x" * 101, "ключ", "-f", "a\n"])
def test_an_illegal_key_is_refused(tmp_path: Path, key: str) -> None:
    """A key must not leave the storage or look like an option."""
    with pytest.raises(SpecError, match="letters, digits"):
        journal.create_run(tmp_path, run_request(), key)
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_with_the_name_of_a_key_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("a note")
    with pytest.raises(RunExists):
        journal.create_run(tmp_path, run_request(), "mine")
    assert (tmp_path / "mine").read_text() == "a note"


def test_readers_see_what_the_driver_wrote(tmp_path: Path) -> None:
    """Attempts with their ends, the last step, and the state."""
    run_journal = failed_once(tmp_path)
    run = run_journal.run()
    first, second = run.attempts
    assert run.state == "running"
    assert (first.reason, first.error) == ("failure", "ValueError: out of luck")
    assert (first.first_dead_rank, first.steps_done, first.slices) == (
        1,
        10,
        ("slice-0", "slice-1"),
    )
    assert (second.reason, second.restored_steps, second.steps_done) == (None, 5, 20)
    assert run.steps_done == 20
    assert run.recent is not None
    assert (run.recent.steps, run.recent.step_s, run.recent.mfu) == (14, 0.25, 0.4)
    assert run.problems == ()


def test_a_run_survives_json(tmp_path: Path) -> None:
    run_journal = failed_once(tmp_path)
    run, status = run_journal.run(), run_journal.status()
    assert codec.from_json(codec.to_json(run), Run) == run
    assert codec.from_json(codec.to_json(status), Status) == status
    promised = {"run", "state", "rehearsal", "plan_digest", "journal"}
    promised |= {"tracking"}
    assert set(Run.__dataclass_fields__) >= promised
    assert status.forecast is not None
    assert status.forecast.step_s == tiny_plan().forecast.step_s


def test_an_event_out_of_order_is_an_error(tmp_path: Path) -> None:
    """Nothing is written."""
    writer = claimed_run(tmp_path)
    with pytest.raises(ValueError, match="attempt 0 is not running"):
        writer.end_attempt("finished")
    writer.start_attempt(tiny_plan())
    with pytest.raises(ValueError, match="attempt 1 is running"):
        writer.end_run("succeeded")
    assert writer.run().problems == ()


def test_a_second_process_cannot_write_steps(tmp_path: Path) -> None:
    """Its lines would mix with those of the first."""
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan())
    with StepLog(writer.journal.path, number), pytest.raises(Superseded, match="another process"):
        StepLog(writer.journal.path, number)


def test_the_same_pending_reason_is_recorded_once(tmp_path: Path) -> None:
    writer = claimed_run(tmp_path)
    for _ in range(3):
        writer.record_pending(reason("4 slices of 2x2 asked, 3 free", "waiting_for_slices"))
    run = writer.run()
    assert (run.state, run.detail) == ("pending", "4 slices of 2x2 asked, 3 free")
    assert len(list(writer.journal.paths.events.iterdir())) == 3


def test_each_attempt_names_its_own_plan(tmp_path: Path) -> None:
    """A run that continues with fewer pods has another plan."""
    writer = claimed_run(tmp_path, plan=tiny_plan(4), spec=tiny_spec(4))
    writer.start_attempt(tiny_plan(4))
    writer.end_attempt("preemption")
    writer.start_attempt(tiny_plan(2))
    run = writer.run()
    assert [attempt.pods for attempt in run.attempts] == [4, 2]
    assert (run.pods, run.requested_pods, run.plan_digest) == (2, 4, tiny_plan(2).digest)
    assert writer.journal.plan(run.plan_digest) == tiny_plan(2)


def test_the_first_tracked_run_stays(tmp_path: Path) -> None:
    """Two recorders agree on one record."""
    run_journal = journal.create_run(tmp_path, run_request()).journal
    first = TrackedRun(tracker="mlflow", uri="sqlite:////a.db", run_id="1")
    second = TrackedRun(tracker="mlflow", uri="sqlite:////a.db", run_id="2")
    assert journal.track(run_journal, first) == first
    assert journal.track(run_journal, second) == first
    assert run_journal.run().tracking == first


def test_reading_changes_nothing(tmp_path: Path) -> None:
    """It needs no permission to write."""
    run_journal = failed_once(tmp_path)
    before = sorted((str(p), p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
    run_journal.status()
    run_journal.steps(run_journal.run())
    journal.list_runs(tmp_path)
    assert sorted((str(p), p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before


def test_a_step_reader_returns_new_steps(tmp_path: Path) -> None:
    """An incomplete line waits for the next call."""
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan())
    reader = journal.StepReader(writer.journal.path, number)
    assert reader.read() == []
    with StepLog(writer.journal.path, number) as log:
        log.append(step(0, restored=0))
        assert [timed.step.index for timed in reader.read()] == [0]
        log.append(step(1))
        log.append(step(2))
        assert [timed.step.index for timed in reader.read()] == [1, 2]
    path = writer.journal.paths.steps(number)
    content = path.read_bytes()
    with path.open("ab") as file:
        file.write(content.splitlines(keepends=True)[-1][:-5])
    assert reader.read() == []
    assert writer.run().steps_done == 3
    assert writer.run().problems == ()


def test_the_steps_of_a_run_are_merged(tmp_path: Path) -> None:
    """The last attempt at a step counts."""
    run_journal = failed_once(tmp_path)
    history = run_journal.steps(run_journal.run())
    assert [timed.step.index for timed in history] == list(range(20))
    assert history[5].step.startup is not None
    assert history[4].step.startup is None


def test_steps_after_the_checkpoint_that_an_attempt_began_from_no_longer_count(
    tmp_path: Path,
) -> None:
    """A run that is resumed and ends early is as long as it says, whatever was done before."""
    writer = claimed_run(tmp_path)
    first = writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, first, range(48))
    writer.end_attempt("failure")
    second = writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, second, range(33, 40))
    writer.end_attempt("cancelled")
    run = writer.run()
    steps = writer.journal.steps(run)
    assert [timed.step.index for timed in steps] == list(range(40))
    assert run.steps_done == 40
    third = writer.start_attempt(tiny_plan())
    assert writer.journal.steps(writer.run()) == steps  # it has done none yet
    write_steps(writer.journal.path, third, range(1))
    assert len(writer.journal.steps(writer.run())) == 1
