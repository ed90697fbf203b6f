"""One fence: ranks, checkpoints and slices belong to a claim, and nothing counts without it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from orchestrator import journal
from orchestrator.drive import driver
from orchestrator.drive.driver import Driver, run_to_end
from orchestrator.errors import JournalUnreadable, Superseded
from orchestrator.journal import files, heartbeat, liveness
from orchestrator.journal.events import CheckpointSaved
from orchestrator.journal.heartbeat import RENEWAL_LIMIT_S, ClaimWatch
from orchestrator.journal.ownership import Writer
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.run_state import apply, violation
from orchestrator.planning.planner import make_plan
from orchestrator.values.run import SavedCheckpoint
from tests.clusters import eventually
from tests.conftest import ROOT
from tests.fake_worker import FAILURES, WORKER
from tests.journals import Clock, claimed_run, reason, run_request, step, tiny_plan, write_steps
from tests.process_backend import ProcessBackend
from tests.test_driver import spec
from tests.test_journal_heartbeat import beat

STEPS = 60
SUMS = "5" * 64


def supersede(old: Writer) -> Writer:
    """The next claim: the driver before it counts as gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(liveness, "is_gone", lambda _: True)
        return journal.claim_run(old.journal, resumes=True)


# --- what a rank sees


def test_a_rank_sees_that_its_claim_is_superseded(tmp_path: Path) -> None:
    """By the event, and by the heartbeat of its driver, which is withdrawn."""
    old = claimed_run(tmp_path)
    old.start_attempt(tiny_plan())
    watch = ClaimWatch(old.journal.path, old.number, 1)
    assert watch.lapse() is None
    new = supersede(old)
    assert watch.lapse() == f"claim {old.number} is superseded by claim {new.number}"
    assert not old.journal.paths.driver_heartbeat(old.number).exists()
    assert ClaimWatch(new.journal.path, new.number).lapse() is None


def test_a_rank_sees_it_where_the_event_is_not_shown_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was there and is gone is seen at once, unlike one that was not there."""
    old = claimed_run(tmp_path)
    watch = ClaimWatch(old.journal.path, old.number, 1)
    supersede(old)
    monkeypatch.setattr("orchestrator.journal.events.read_one", lambda *_: {})
    assert watch.lapse() == f"claim {old.number} was withdrawn"


def test_a_claim_that_is_not_renewed_lapses(tmp_path: Path) -> None:
    """By the clock of the rank, whatever others say; one heartbeat renews it."""
    writer, clock = claimed_run(tmp_path), Clock(now_s=0.0)
    watch = ClaimWatch(writer.journal.path, writer.number, 1, clock=clock)
    for _ in range(3):
        assert watch.lapse() is None
        clock.now_s += RENEWAL_LIMIT_S
        assert watch.lapse() is None
        writer.heartbeat()
    assert watch.lapse() is None
    clock.now_s += RENEWAL_LIMIT_S + 1
    assert watch.lapse() == f"the driver has not renewed claim 2 for {RENEWAL_LIMIT_S + 1:.0f} s"


def test_a_rank_that_was_stopped_itself_looks_before_it_gives_up(tmp_path: Path) -> None:
    """An hour later the driver still renews: its last heartbeat is another than the rank knew."""
    writer, clock = claimed_run(tmp_path), Clock(now_s=0.0)
    watch = ClaimWatch(writer.journal.path, writer.number, 1, clock=clock)
    assert watch.lapse() is None
    writer.heartbeat()
    clock.now_s += 3600
    assert watch.lapse() is None


def test_a_storage_that_does_not_answer_renews_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends nothing either, for a while."""
    writer, clock = claimed_run(tmp_path), Clock(now_s=0.0)
    watch = ClaimWatch(writer.journal.path, writer.number, 1, clock=clock)
    assert watch.lapse() is None

    def stale(_: Path) -> None:
        raise JournalUnreadable("driver.json", "stale file handle")

    monkeypatch.setattr("orchestrator.journal.liveness.read", stale)
    assert watch.lapse() is None
    clock.now_s += RENEWAL_LIMIT_S + 1
    assert "has not renewed" in (watch.lapse() or "")


def test_a_damaged_event_does_not_hide_a_claim(tmp_path: Path) -> None:
    """The watch goes on behind it."""
    old = claimed_run(tmp_path)
    old.record_pending(reason("a slice", "waiting_for_slices"))
    watch = ClaimWatch(old.journal.path, old.number, 1)
    (old.journal.paths.events / "000003.json").write_bytes(b"{")
    (old.journal.paths.events / "000004.json").write_bytes(
        (old.journal.paths.events / "000002.json").read_bytes()
    )
    assert watch.lapse() == "claim 2 is superseded by claim 4"


# --- which checkpoints count


def saved(writer: Writer, attempt: int, steps: int) -> SavedCheckpoint:
    return SavedCheckpoint(claim=writer.number, attempt=attempt, step=steps, sha256=SUMS)


def report(writer: Writer, attempt: int, steps: int) -> None:
    """The last heartbeat of a rank that has saved, and has gone."""
    last = beat(0, ended=True, saved=saved(writer, attempt, steps))
    files.replace(writer.journal.paths.heartbeat(attempt, 0), msgspec.json.encode(last))


def test_a_superseded_claim_commits_no_checkpoint(tmp_path: Path) -> None:
    """Its driver cannot write the event, and an event of it would not count."""
    old = claimed_run(tmp_path)
    number = old.start_attempt(tiny_plan())
    write_steps(old.journal.path, number, range(10))
    old.record_checkpoint(5, SUMS)
    new = supersede(old)
    with pytest.raises(Superseded):
        old.record_checkpoint(10, SUMS)
    report(old, number, 10)
    assert new.newest_saves(3) == (saved(old, 1, 5),)
    state = new.journal.state()
    forged = CheckpointSaved(at_s=0.0, checkpoint=saved(old, 1, 10))
    assert violation(state, forged) == f"claim {old.number} is superseded by claim {new.number}"
    after = apply(state, state.last + 1, forged)
    assert after.saves == state.saves
    assert after.problems


def test_a_claim_adopts_what_was_reported_before_it(tmp_path: Path) -> None:
    """Its driver died before it recorded that. What is reported after the claim does not count."""
    old = claimed_run(tmp_path)
    old.start_attempt(tiny_plan())
    old.record_checkpoint(5, SUMS)
    report(old, 1, 10)
    new = supersede(old)
    report(old, 1, 15)
    assert new.newest_saves(3) == (saved(old, 1, 5), saved(old, 1, 10))
    assert new.run().attempts[0].saved_steps == 10
    newer = supersede(new)
    assert newer.newest_saves(3) == new.newest_saves(3)
    assert newer.newest_saves(1) == (saved(old, 1, 10),)


def test_a_rank_learns_which_of_its_checkpoints_count(tmp_path: Path) -> None:
    writer = claimed_run(tmp_path)
    writer.start_attempt(tiny_plan())
    watch = ClaimWatch(writer.journal.path, writer.number, 1)
    writer.record_checkpoint(5, SUMS)
    writer.record_checkpoint(5, SUMS)
    assert watch.lapse() is None
    assert watch.saved == (saved(writer, 1, 5),)


def test_steps_that_a_later_attempt_undid_do_not_count(tmp_path: Path) -> None:
    """A superseded attempt may write on: its steps from where the next began are none."""
    old = claimed_run(tmp_path)
    first = old.start_attempt(tiny_plan())
    new = supersede(old)
    second = new.start_attempt(tiny_plan())
    with journal.StepLog(old.journal.path, first) as zombie:
        for index in range(33):
            zombie.append(step(index, restored=0 if index == 0 else None))
        write_steps(new.journal.path, second, range(30, 35))
        for index in range(33, 48):
            zombie.append(step(index))
    run = new.run()
    assert run.steps_done == 35
    assert [timed.step.index for timed in new.journal.steps(run)] == list(range(35))


# --- with a directory that is shown as it was a minute ago


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every folder is listed as it was when it was first listed."""
    seen: dict[Path, list[str]] = {}
    real = files.names

    def names(folder: Path) -> list[str]:
        return list(seen.setdefault(folder, real(folder)))

    monkeypatch.setattr(files, "names", names)


@pytest.mark.usefixtures("stale")
def test_claims_do_not_depend_on_listings(tmp_path: Path) -> None:
    """Events are read by their names: the second claim sees the first, and the first the second."""
    submitted = journal.create_run(tmp_path, run_request(), "it").journal
    assert submitted.run().state == "submitted"
    old = journal.claim_run(submitted)
    write_steps(old.journal.path, old.start_attempt(tiny_plan()), range(5))
    old.record_checkpoint(5, SUMS)
    watch = ClaimWatch(old.journal.path, old.number, 1)
    assert (submitted.run().state, submitted.run().problems) == ("running", ())
    new = supersede(old)
    assert new.number == 5
    assert new.newest_saves(1) == (saved(old, 1, 5),)
    with pytest.raises(Superseded):
        old.heartbeat()
    with pytest.raises(Superseded):
        old.record_checkpoint(10, SUMS)
    assert watch.lapse() is not None
    journal.request_cancel(submitted)
    journal.request_cancel(submitted, at_once=True)
    request = new.heartbeat()
    assert request is not None
    assert request.at_once


# --- a driver that is stopped


@dataclass(frozen=True)
class Stalled:
    """A run whose driver, another process, was stopped while its ranks train on."""

    recorded: Journal
    driver: subprocess.Popen[bytes]

    def ranks(self) -> dict[int, heartbeat.Heartbeat]:
        return heartbeat.read_heartbeats(self.recorded.path, 1)

    def ranks_left(self) -> list[int]:
        return [rank for rank, one in self.ranks().items() if liveness.is_alive(one.process)]


DRIVE = """
import sys
from pathlib import Path
from orchestrator import journal
from orchestrator.drive.driver import Driver, run_to_end
from tests.fake_worker import WORKER
from tests.process_backend import ProcessBackend
journal.run_state.HEARTBEAT_S = 0.2
writer = journal.claim_run(journal.Journal(Path(sys.argv[1])))
sys.exit(run_to_end(Driver(writer, ProcessBackend(), worker=WORKER)))
"""


@contextmanager
def stalled(storage: Path, steps: int = STEPS) -> Iterator[Stalled]:
    """Stop the driver of a run that has done some steps, and wait until the run counts as lost."""
    request = journal.RunRequest(
        spec=spec(at_least=2), plan=make_plan(spec()), steps=steps, rehearsal=True
    )
    recorded = journal.create_run(storage, request, "it").journal
    (recorded.path / FAILURES).write_text(json.dumps({}))
    driver = subprocess.Popen([sys.executable, "-c", DRIVE, str(recorded.path)], cwd=ROOT)
    try:
        run = Stalled(recorded, driver)
        eventually(lambda: run.recorded.run().steps_done >= 4 and len(run.ranks()) == 2, 60)
        os.kill(driver.pid, signal.SIGSTOP)
        eventually(lambda: recorded.run().state == "lost", 60)
        yield run
    finally:
        driver.kill()
        driver.wait()


def test_a_new_driver_evicts_the_ranks_of_a_stopped_one(tmp_path: Path) -> None:
    """Old ranks hold the slices that the new driver needs: it gets them, and the old driver is
    gone. No step was done by both at a time.
    """
    with stalled(tmp_path) as run:
        writer = journal.claim_run(run.recorded, resumes=True)
        assert run_to_end(Driver(writer, ProcessBackend(), worker=WORKER)) == 0
        assert run.driver.wait(10) == -signal.SIGKILL
        assert run.ranks_left() == []
    after = run.recorded.run()
    assert (after.state, [attempt.reason for attempt in after.attempts]) == (
        "succeeded",
        ["lost", "finished"],
    )
    steps = journal.StepReader(run.recorded.path, 1).read()
    assert steps[-1].at_s <= after.attempts[1].started_at_s
    assert [timed.step.index for timed in run.recorded.steps(after)] == list(range(STEPS))


def test_ranks_end_by_themselves_when_their_claim_is_superseded(tmp_path: Path) -> None:
    """Nobody comes to end them: a claim is enough. The old driver, let go on, ends too."""
    with stalled(tmp_path, steps=2000) as run:
        assert run.ranks_left() == [0, 1]
        journal.claim_run(run.recorded, resumes=True)
        eventually(lambda: run.ranks_left() == [], 10)
        os.kill(run.driver.pid, signal.SIGCONT)
        assert run.driver.wait(30) == Superseded.exit_code
    assert run.recorded.run().attempts[0].reason == "lost"


def test_ranks_that_are_stopped_too_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They look at nothing, and hold their slices."""
    monkeypatch.setattr(driver, "_EXIT_LIMIT_S", 0.5)
    with stalled(tmp_path) as run:
        for rank in run.ranks().values():
            os.kill(rank.process.pid, signal.SIGSTOP)
        writer = journal.claim_run(run.recorded, resumes=True)
        assert run_to_end(Driver(writer, ProcessBackend(), worker=WORKER)) == 0
        assert run.ranks_left() == []
    assert run.recorded.run().state == "succeeded"


def test_a_driver_records_the_last_checkpoint_of_an_attempt(tmp_path: Path) -> None:
    """Also the one that became whole as the ranks ended."""
    request = journal.RunRequest(spec=spec(), plan=make_plan(spec()), steps=6, rehearsal=True)
    writer = journal.claim_run(journal.create_run(tmp_path, request, "it").journal)
    (writer.journal.path / FAILURES).write_text(json.dumps({}))
    assert run_to_end(Driver(writer, ProcessBackend(), worker=WORKER)) == 0
    assert writer.run().attempts[0].saved_steps == 6


def test_the_process_that_claims_again_does_not_end_itself(tmp_path: Path) -> None:
    """It is its own predecessor."""
    old = claimed_run(tmp_path)
    new = supersede(old)
    assert new.before
    driver._evict(new.journal, new.before)
