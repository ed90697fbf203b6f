"""One writer at a time: claiming a run, losing it, and requests to its driver."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.errors import (
    JournalUnreadable,
    JournalUnwritable,
    RunHasEnded,
    RunIsLive,
    Superseded,
)
from orchestrator.journal import events, liveness
from orchestrator.journal.ownership import Writer
from orchestrator.values.run import ProcessIdentity
from tests.conftest import ROOT, RunOrch
from tests.journals import Clock, claimed_run, reason, run_request, tiny_plan, write_steps


def lose_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every process count as gone."""
    monkeypatch.setattr(liveness, "is_gone", lambda _: True)


def test_a_run_with_a_live_driver_cannot_be_claimed(tmp_path: Path) -> None:
    """The error names the driver."""
    writer = claimed_run(tmp_path)
    for resumes in (False, True):
        with pytest.raises(RunIsLive, match=f"process {os.getpid()} on .* drives it"):
            journal.claim_run(writer.journal, resumes=resumes)


def test_a_run_whose_driver_is_starting_cannot_be_resumed(tmp_path: Path) -> None:
    run_journal = journal.create_run(tmp_path, run_request()).journal
    with pytest.raises(RunIsLive, match="its driver is starting"):
        journal.claim_run(run_journal, resumes=True)


def test_of_many_drivers_one_claims_the_run(tmp_path: Path) -> None:
    run_journal = journal.create_run(tmp_path, run_request()).journal
    drivers: list[Writer] = []
    refused: list[Exception] = []

    def drive() -> None:
        try:
            drivers.append(journal.claim_run(run_journal))
        except RunIsLive as error:
            refused.append(error)

    threads = [threading.Thread(target=drive) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drivers) == 1
    assert len(refused) == 7
    assert run_journal.run().problems == ()


def test_a_superseded_driver_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next event and its next heartbeat fail; so do the submitter's."""
    submitter = journal.create_run(tmp_path, run_request(), "it")
    old = journal.claim_run(submitter.journal)
    old.start_attempt(tiny_plan())
    lose_driver(monkeypatch)
    new = journal.claim_run(old.journal)
    monkeypatch.undo()
    attempts: list[Callable[[], object]] = [
        lambda: old.end_attempt("finished"),
        lambda: old.end_run("succeeded"),
        old.heartbeat,
        lambda: submitter.record_pending(reason("a slice", "waiting_for_slices")),
    ]
    for write in attempts:
        with pytest.raises(Superseded, match=f"process {os.getpid()} on .* has claimed the run"):
            write()
    run = new.run()
    assert (run.state, run.attempts[0].reason) == ("starting", "lost")
    assert run.reason == reason("attempt 1 was lost with its driver", "after_attempt")
    assert new.start_attempt(tiny_plan()) == 2


def test_a_claim_that_loses_a_race_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state may be another by then."""
    submitter = journal.create_run(tmp_path, run_request())
    real = events.append

    def raced(folder: Path, number: int, content: bytes) -> None:
        monkeypatch.setattr(events, "append", real)
        submitter.record_pending(reason("a slice", "waiting_for_slices"))
        real(folder, number, content)

    monkeypatch.setattr(events, "append", raced)
    assert journal.claim_run(submitter.journal).number == 3


def test_threads_share_a_writer(tmp_path: Path) -> None:
    writer = claimed_run(tmp_path)

    def wait(slot: int) -> None:
        for round_ in range(5):
            writer.record_pending(reason(f"slot {slot}, round {round_}", "waiting_for_slices"))
            writer.heartbeat()

    threads = [threading.Thread(target=wait, args=(slot,)) for slot in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(writer.journal.paths.events.iterdir())) == 2 + 20
    assert writer.run().problems == ()


def test_a_silent_driver_is_lost_until_its_next_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run counts as lost after five missing heartbeats."""
    now_s = 1000.0
    monkeypatch.setattr(liveness, "uptime_s", lambda: now_s)
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, number, range(3))
    writer.heartbeat()
    now_s += 9.9
    assert writer.run().state == "running"
    now_s += 0.2
    lost = writer.run()
    assert lost.state == "lost"
    assert lost.reason is not None
    assert lost.reason.code == "driver_silent"
    writer.heartbeat()
    assert writer.run().state == "running"


# --- clocks


@pytest.mark.parametrize("jump_s", [60.0, 1e6, -60.0, -1e6])
def test_a_jump_of_the_clock_is_no_silence(
    tmp_path: Path, orch: RunOrch, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """The time since the machine started is compared, which no clock changes. The run is live, and
    is neither claimed nor removed.
    """
    writer = claimed_run(tmp_path)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    clock = Clock(now_s=real() + jump_s)
    assert writer.journal.run(clock).state == "starting"
    with pytest.raises(RunIsLive):
        journal.claim_run(writer.journal, resumes=True, clock=clock)
    with pytest.raises(RunIsLive):
        journal.remove_run(writer.journal, clock)
    done = orch("rm", "it", "--yes", "--storage", str(tmp_path))
    assert done.returncode == 1
    assert writer.run().state == "starting"


def test_a_silent_driver_that_exists_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been stopped for a while; the run can be resumed, which supersedes it."""
    writer = claimed_run(tmp_path)
    real = liveness.uptime_s
    monkeypatch.setattr(liveness, "uptime_s", lambda: real() + 60)
    assert writer.run().state == "lost"
    with pytest.raises(RunIsLive, match=rf"process {os.getpid()} on .* exists"):
        journal.remove_run(writer.journal)
    assert writer.run().state == "lost"
    assert journal.claim_run(writer.journal, resumes=True).number == 3


def test_a_run_whose_submitter_exists_is_not_removed(tmp_path: Path) -> None:
    """Its driver may yet come, however late it is by the clock."""
    waiting = journal.create_run(tmp_path, run_request(), "it").journal
    late = Clock(now_s=waiting.run().submitted_at_s + 1e6)
    assert waiting.run(late).state == "lost"
    with pytest.raises(RunIsLive, match=r"orch submit .* exists"):
        journal.remove_run(waiting, late)


def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """The driver of a run on another machine, which counts as silent after a quarter second."""
    monkeypatch.setattr("orchestrator.journal.run_state.HEARTBEAT_S", 0.1)
    monkeypatch.setattr("orchestrator.journal.listing.POLL_S", 0.02)
    with monkeypatch.context() as there:
        there.setattr(liveness, "_this_machine", lambda: "another boot")
        return claimed_run(tmp_path)


@pytest.mark.parametrize("resumes", [True, False])
def test_a_driver_elsewhere_is_watched_before_it_counts_as_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumes: bool
) -> None:
    """By the clock here it is silent for an hour, and yet it sends heartbeats."""
    writer = elsewhere(tmp_path, monkeypatch)
    ahead = Clock(now_s=writer.run().read_at_s + 3600)
    assert writer.journal.run(ahead).state == "lost"
    with writer.background_heartbeat():
        with pytest.raises(RunIsLive, match="clocks"):
            journal.remove_run(writer.journal, ahead)
        with pytest.raises(RunIsLive, match="clocks"):
            journal.claim_run(writer.journal, resumes=resumes, clock=ahead)
    assert journal.claim_run(writer.journal, resumes=resumes, clock=ahead).number == 3


def test_a_driver_elsewhere_that_stays_silent_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run is removed after the watch."""
    writer = elsewhere(tmp_path, monkeypatch)
    journal.remove_run(writer.journal, Clock(now_s=writer.run().read_at_s + 3600))
    assert not writer.journal.path.exists()


def test_a_full_disk_leaves_the_time_of_a_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat without a content counts by the clock; one with an old content would not."""
    writer = claimed_run(tmp_path)
    with monkeypatch.context() as full:

        def no_space(_: int, __: bytes) -> int:
            raise OSError(errno.ENOSPC, "no space")

        full.setattr(os, "write", no_space)
        full.setattr(liveness, "uptime_s", lambda: 1e9)
        writer.heartbeat()
        assert writer.run().state == "starting"
    writer.heartbeat()
    assert writer.run().state == "starting"


def test_a_heartbeat_follows_no_link(tmp_path: Path) -> None:
    """A storage may hold what others wrote."""
    writer, mine = claimed_run(tmp_path), tmp_path / "mine.txt"
    mine.write_text("precious")
    sign = writer.journal.paths.driver_heartbeat(writer.number)
    sign.unlink()
    sign.symlink_to(mine)
    with pytest.raises(JournalUnwritable, match="link"):
        writer.heartbeat()
    assert mine.read_text() == "precious"


def test_a_killed_driver_is_lost_at_once(tmp_path: Path) -> None:
    """Its own machine sees that the process is gone, or a zombie."""
    run_journal = journal.create_run(tmp_path, run_request(), "it").journal
    drive = f"""
import sys, time
from pathlib import Path
from orchestrator import journal
from tests.journals import tiny_plan
writer = journal.claim_run(journal.Journal(Path({str(run_journal.path)!r})))
writer.start_attempt(tiny_plan())
print("ready", flush=True)
time.sleep(600)
"""
    driver = subprocess.Popen([sys.executable, "-c", drive], cwd=ROOT, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"ready\n"
    assert run_journal.run().state == "starting"
    driver.kill()
    os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)  # a zombie, until it is waited for
    for _ in range(2):
        run = run_journal.run()
        assert (run.state, run.attempts[0].reason) == ("lost", "lost")
        assert run.reason is not None
        assert run.reason.code == "driver_gone"
        driver.wait()
    driver.stdout.close()


def test_only_its_own_machine_knows_that_a_process_is_gone() -> None:
    mine = liveness.this_process()
    elsewhere = ProcessIdentity(host="far", pid=2**22 - 7, machine="another", started_s=1.0)
    nowhere = ProcessIdentity(host="old", pid=2**22 - 7, machine=None, started_s=1.0)
    assert not any(liveness.is_gone(process) for process in (mine, elsewhere, nowhere))
    if mine.machine is not None:
        reused = ProcessIdentity(host=mine.host, pid=mine.pid, machine=mine.machine, started_s=1.0)
        absent = ProcessIdentity(host=mine.host, pid=2**22 - 7, machine=mine.machine, started_s=1.0)
        assert liveness.is_gone(reused)
        assert liveness.is_gone(absent)


def test_an_unclaimed_run_is_lost_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = journal.create_run(tmp_path, run_request(), "real").journal
    clock = Clock(now_s=real.run().submitted_at_s)
    clock.now_s += 40
    run = real.run(clock)
    assert run.state == "submitted"
    assert run.reason is not None
    assert run.reason.code == "driver_starting"
    monkeypatch.setattr(liveness, "is_alive", lambda _: False)
    assert real.run(clock).reason == reason("no driver has claimed it for 40 s", "unclaimed")
    clock.now_s += 600
    assert real.run(clock).state == "lost"


def test_a_rehearsal_is_lost_with_its_submitter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cluster belongs to that process; a real run waits for its driver."""
    rehearsal = journal.create_run(tmp_path, run_request(rehearsal=True), "rehearsal").journal
    real = journal.create_run(tmp_path, run_request(), "real").journal
    lose_driver(monkeypatch)
    assert rehearsal.run().state == "lost"
    assert real.run().state == "submitted"


def test_heartbeats_are_sent_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the file was removed."""
    monkeypatch.setattr("orchestrator.journal.run_state.HEARTBEAT_S", 0.01)
    writer = claimed_run(tmp_path)
    sign = writer.journal.paths.driver_heartbeat(writer.number)
    writer.heartbeat()
    beats = threading.Semaphore(0)
    real = writer.heartbeat

    def counted() -> None:
        real()
        beats.release()

    monkeypatch.setattr(writer, "heartbeat", counted)
    os.utime(sign, (1.0, 1.0))
    with writer.background_heartbeat():
        for _ in range(3):
            assert beats.acquire(timeout=30)
        sign.unlink()
        for _ in range(3):
            assert beats.acquire(timeout=30)
    assert sign.stat().st_mtime > 1.0
    assert threading.active_count() == 1 or "journal heartbeat" not in {
        thread.name for thread in threading.enumerate()
    }


def test_the_driver_of_a_removed_run_gets_an_error(tmp_path: Path) -> None:
    writer = claimed_run(tmp_path)
    writer.journal.path.rename(tmp_path / "elsewhere")
    with pytest.raises(JournalUnwritable, match="heartbeats/000002: the journal cannot be written"):
        writer.heartbeat()
    with pytest.raises(JournalUnreadable):
        writer.record_pending(reason("a slice", "waiting_for_slices"))


def test_a_heartbeat_returns_the_cancel_request(tmp_path: Path) -> None:
    """A request to stop at once counts before a patient one."""
    writer = claimed_run(tmp_path)
    assert writer.heartbeat() is None
    journal.request_cancel(writer.journal)
    journal.request_cancel(writer.journal, at_once=True)
    journal.request_cancel(writer.journal)
    request = writer.heartbeat()
    assert request is not None
    assert request.at_once
    run = writer.run()
    assert run.cancel_requested_at_s == request.at_s
    assert run.state == "starting"
    writer.record_stopping(reason("cancel was asked", "cancel_requested"))
    assert writer.run().state == "stopping"
    writer.end_run("cancelled", reason("cancel was asked", "cancel_requested"))
    assert writer.run().state == "cancelled"


def test_a_lost_run_with_a_cancel_request_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = claimed_run(tmp_path)
    journal.request_cancel(writer.journal)
    lose_driver(monkeypatch)
    run = writer.run()
    assert (run.state, run.ended_at_s) == ("cancelled", None)


def test_resuming_settles_earlier_cancel_requests(tmp_path: Path) -> None:
    """Later requests count."""
    writer = claimed_run(tmp_path)
    writer.start_attempt(tiny_plan())
    journal.request_cancel(writer.journal)
    writer.end_attempt("cancelled")
    writer.end_run("cancelled")
    resumed = journal.claim_run(writer.journal, resumes=True)
    run = resumed.run()
    assert (run.state, run.cancel_requested_at_s, run.resumed_at) == ("starting", None, 2)
    assert resumed.heartbeat() is None
    journal.request_cancel(writer.journal)
    assert resumed.heartbeat() is not None


def test_a_request_waits_for_the_driver(tmp_path: Path) -> None:
    run_journal = journal.create_run(tmp_path, run_request()).journal
    journal.request_cancel(run_journal)
    assert journal.claim_run(run_journal).heartbeat() is not None


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_an_ended_run_cannot_be_claimed(tmp_path: Path, state: str) -> None:
    """A cluster may start a job twice; a successful run cannot be resumed either."""
    writer = claimed_run(tmp_path)
    writer.end_run(state)  # type: ignore[arg-type]
    with pytest.raises(RunHasEnded, match=state):
        journal.claim_run(writer.journal)
    if state == "succeeded":
        with pytest.raises(RunHasEnded):
            journal.claim_run(writer.journal, resumes=True)
    else:
        assert journal.claim_run(writer.journal, resumes=True).run().state == "starting"
