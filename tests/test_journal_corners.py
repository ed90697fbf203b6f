"""Corners of the journal that no other test comes to: found by removing their code."""

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.errors import (
    JournalUnreadable,
    JournalUnwritable,
    RunIsLive,
    Superseded,
    UnknownRun,
)
from orchestrator.journal import events, files, listing, liveness
from orchestrator.journal import steps as step_log
from orchestrator.journal.events import AttemptStarted
from orchestrator.journal.heartbeat import HeartbeatWriter, read_heartbeats
from orchestrator.journal.run_state import apply, initial
from tests.clusters import eventually
from tests.journals import CLAIM, SUBMITTED, claimed_run, step, tiny_plan, write_steps
from tests.test_journal_drivers import lose_driver
from tests.test_journal_heartbeat import beat, watched
from tests.test_journal_studies import opened_study


def test_a_claim_removes_the_heartbeat_of_the_claim_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its driver notices even where the new event is not shown yet."""
    old = claimed_run(tmp_path)
    old.heartbeat()
    path = old.journal.paths.driver_heartbeat(old.number)
    assert path.exists()
    lose_driver(monkeypatch)
    journal.claim_run(old.journal)
    assert not path.exists()
    monkeypatch.setattr(events, "exists", lambda *_: False)
    with pytest.raises(Superseded):
        old.heartbeat()
    assert not path.exists()


def test_the_background_heartbeat_ends_with_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the middle of a heartbeat: later, it would write to a run that others have."""
    monkeypatch.setattr("orchestrator.journal.run_state.HEARTBEAT_S", 0.01)
    writer, begun, go_on = claimed_run(tmp_path), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait(0.3)

    monkeypatch.setattr(writer, "heartbeat", slow)
    with writer.background_heartbeat():
        assert begun.wait(30)
    assert "journal heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_the_running_attempt_of_a_lost_run_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the attempts before it ended as they did."""
    writer = claimed_run(tmp_path)
    writer.start_attempt(tiny_plan())
    writer.end_attempt("hang")
    writer.start_attempt(tiny_plan())
    assert [attempt.reason for attempt in writer.run().attempts] == ["hang", None]
    lose_driver(monkeypatch)
    assert [attempt.reason for attempt in writer.run().attempts] == ["hang", "lost"]


def test_of_two_ranks_the_one_behind_is_to_blame() -> None:
    early = [beat(0, 1.0, steps=4), beat(1, 1.0, steps=4)]
    late = [beat(0, 9.0, steps=5), beat(1, 9.0, steps=4)]
    alive = [beat(0, 39.5, steps=5), beat(1, 39.5, steps=4)]
    hang = watched((1.0, early), (9.0, late), (39.5, alive)).find_hang(30.0, 39.9)
    assert hang is not None
    assert hang[1] == 1


def test_a_file_of_steps_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, number, range(3))
    monkeypatch.setattr(files, "_MAX_LINES_BYTES", 100)
    with pytest.raises(JournalUnreadable, match="larger than 100 bytes"):
        journal.StepReader(writer.journal.path, number).read()


def test_removing_a_study_removes_its_runs_and_no_other(tmp_path: Path) -> None:
    study = opened_study(tmp_path)
    trial = claimed_run(tmp_path, key=journal.start_trial(study, 1, 1).run, study=study.key)
    trial.end_run("failed")
    claimed_run(tmp_path, key="another")
    journal.remove_study(study)
    assert [path.name for path in tmp_path.iterdir()] == ["another"]


def test_a_study_with_an_active_run_is_not_removed(tmp_path: Path) -> None:
    """Nothing of it is."""
    study = opened_study(tmp_path)
    first = claimed_run(tmp_path, key=journal.start_trial(study, 1, 1).run, study=study.key)
    first.end_run("failed")
    second = claimed_run(tmp_path, key=journal.start_trial(study, 2, 1).run, study=study.key)
    with pytest.raises(RunIsLive):
        journal.remove_study(study)
    assert study.path.exists()
    assert [journal.run().state for journal in (first, second)] == ["failed", "starting"]


def test_steps_in_another_order_have_another_sum(tmp_path: Path) -> None:
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, number, range(3))
    before = step_log.written_steps(writer.journal.path, number)
    path = writer.journal.paths.steps(number)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[1], lines[0], lines[2]]))
    after = step_log.written_steps(writer.journal.path, number)
    assert (after.lines, after.bytes) == (before.lines, before.bytes)
    assert after.sha256 != before.sha256


@pytest.mark.parametrize(("more", "told"), [(0, None), (1, "and 1 more")])
def test_an_unknown_run_lists_only_some_of_the_known(
    more: int, told: str | None, tmp_path: Path
) -> None:
    for number in range(listing._MAX_KEYS + more):
        (tmp_path / f"run-{number:03d}" / "events").mkdir(parents=True)
        (tmp_path / f"run-{number:03d}" / "events" / "000001.json").touch()
    with pytest.raises(UnknownRun) as refused:
        journal.find_run(tmp_path, "nothing")
    assert ("and 1 more" in str(refused.value)) == (told is not None)
    assert "and 0 more" not in str(refused.value)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_file_stays_open(tmp_path: Path) -> None:
    """A driver lives for weeks."""
    writer = claimed_run(tmp_path)  # what is imported now is not imported between the counts
    before = open_files()
    for _ in range(3):
        number = writer.start_attempt(tiny_plan())
        write_steps(writer.journal.path, number, range(3))
        writer.heartbeat()
        writer.end_attempt("failure", error=str(number))
        writer.run()
        journal.StepReader(writer.journal.path, number).read()
    assert open_files() == before


@pytest.mark.parametrize("fails", [False, True], ids=["no error", "an error"])
def test_steps_that_cannot_be_synced_at_the_end_are_an_error(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a block that failed: its own error is the cause."""
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan())

    def full(_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    def write() -> None:
        with journal.StepLog(writer.journal.path, number) as steps:
            steps.append(step(0))
            monkeypatch.setattr(os, "fsync", full)
            if fails:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError if fails else JournalUnwritable):
        write()


@pytest.mark.parametrize(("later_s", "gone"), [(2.0, False), (2.01, True)])
def test_a_process_that_started_at_another_time_is_another(
    later_s: float, gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = liveness.this_process()
    monkeypatch.setattr(liveness, "_started_s", lambda _: later_s)
    assert liveness.is_gone(replace(me, started_s=0.0)) == gone


def test_a_study_is_read_through_a_link_of_the_users_own(tmp_path: Path) -> None:
    """Above the storage; one inside it is not followed."""
    study = opened_study(tmp_path / "storage")
    (tmp_path / "link").symlink_to(tmp_path / "storage")
    linked = journal.StudyJournal(tmp_path / "link" / study.key)
    assert linked.submission() == study.submission()
    (tmp_path / "storage" / "other").symlink_to(study.path)
    with pytest.raises(JournalUnreadable):
        journal.StudyJournal(tmp_path / "storage" / "other").submission()


def test_a_study_sweeps_what_killed_processes_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not what is young."""
    left = tmp_path / ".0123.partial"
    left.mkdir(parents=True)
    opened_study(tmp_path)
    assert left.exists()
    monkeypatch.setattr(files, "_LEFT_OVER_S", -1.0)
    opened_study(tmp_path)
    assert not left.exists()


def test_the_first_attempt_with_a_plan_says_what_its_file_is() -> None:
    """A damaged later event changes nothing of that."""

    def start(number: int, plan: str, sha256: str) -> AttemptStarted:
        return AttemptStarted(
            at_s=2.0, attempt=number, plan_digest=plan, pods=1, slices=(), plan_sha256=sha256
        )

    state = apply(apply(initial(SUBMITTED), 2, CLAIM), 3, start(1, "a", "1"))
    assert state.plan_sums == {"a": "1"}
    state = apply(apply(state, 4, start(2, "a", "2")), 5, start(3, "b", "3"))
    assert state.plan_sums == {"a": "1", "b": "3"}


def test_heartbeats_are_repeated(tmp_path: Path) -> None:
    """And end with the block."""
    writer = claimed_run(tmp_path)
    number, seen = writer.start_attempt(tiny_plan()), set[float]()
    watch = journal.ClaimWatch(writer.journal.path, writer.number, number)

    def looked() -> int:
        seen.update(
            heartbeat.at_s for heartbeat in read_heartbeats(writer.journal.path, number).values()
        )
        return len(seen)

    with HeartbeatWriter(writer.journal.path, number, 0, "pod-0", 0.01, watch, lambda: None):
        eventually(lambda: looked() > 3, 30)
    eventually(lambda: "heartbeat" not in {thread.name for thread in threading.enumerate()}, 30)
    [last] = read_heartbeats(writer.journal.path, number).values()
    assert last.ended


def test_what_was_set_aside_stays_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    files.set_aside(path, ".damaged-1")
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"damaged")
    files.set_aside(path, ".damaged-1")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [
        (".plan.json.damaged-1", b"damaged")
    ]
