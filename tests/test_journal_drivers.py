"""One writer at a time: who may drive a run, who has lost it, and what others ask of the driver."""

import os
import subprocess
import sys
import threading
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
from orchestrator.journal import Writer, event_log, liveness
from orchestrator.types.run import ProcessIdentity
from tests.conftest import ROOT
from tests.journals import Clock, claimed_run, reason, run_request, tiny_plan, write_steps


def lose_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every driver's process is known to be gone."""
    monkeypatch.setattr(liveness, "is_gone", lambda _: True)


def test_a_live_driver_keeps_its_run(tmp_path: Path) -> None:
    """A second driver is refused and told who has the run, whether or not it would resume."""
    writer = claimed_run(tmp_path)
    for resumes in (False, True):
        with pytest.raises(RunIsLive, match=f"process {os.getpid()} on .* drives it"):
            journal.claim_run(writer.journal, resumes=resumes)


def test_a_run_whose_driver_has_not_come_is_not_resumed(tmp_path: Path) -> None:
    """Only the driver it was submitted for may take it."""
    found = journal.create_run(tmp_path, run_request()).journal
    with pytest.raises(RunIsLive, match="its driver is starting"):
        journal.claim_run(found, resumes=True)


def test_of_many_drivers_one_takes_the_run(tmp_path: Path) -> None:
    """At the same moment too."""
    found = journal.create_run(tmp_path, run_request()).journal
    drivers: list[Writer] = []
    refused: list[Exception] = []

    def drive() -> None:
        try:
            drivers.append(journal.claim_run(found))
        except RunIsLive as error:
            refused.append(error)

    threads = [threading.Thread(target=drive) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drivers) == 1
    assert len(refused) == 7
    assert found.run().problems == ()


def test_a_driver_that_was_taken_for_dead_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns of its successor at its next event and at its next sign; so does who submitted."""
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


def test_a_claim_that_loses_the_race_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wrote in between may live: the claim is made anew from what stands then."""
    submitter = journal.create_run(tmp_path, run_request())
    real = event_log.append

    def raced(folder: Path, number: int, content: bytes) -> None:
        monkeypatch.setattr(event_log, "append", real)
        submitter.record_pending(reason("a slice", "waiting_for_slices"))
        real(folder, number, content)

    monkeypatch.setattr(event_log, "append", raced)
    assert journal.claim_run(submitter.journal).number == 3


def test_threads_of_a_driver_share_its_right(tmp_path: Path) -> None:
    """Signs and events from several threads lose nothing and collide with nothing."""
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


def test_a_silent_driver_is_lost_and_may_come_back(tmp_path: Path) -> None:
    """Never RUNNING while dead: five missed signs and the run is lost, until the next sign."""
    clock = Clock(now_s=journal.create_run(tmp_path, run_request(), "it").journal.run().read_at_s)
    writer = journal.claim_run(journal.find_run(tmp_path, "it"), clock=clock)
    number = writer.start_attempt(tiny_plan())
    write_steps(writer.journal.path, number, range(3), clock=clock)
    sign = writer.journal.paths.driver_heartbeat(writer.number)
    writer.heartbeat()

    def state_after(silence_s: float) -> str:
        os.utime(sign, (clock() - silence_s,) * 2)
        return writer.journal.run(clock).state

    clock.now_s += 1000
    assert state_after(9.9) == "running"
    assert state_after(10.1) == "lost"
    lost = writer.journal.run(clock).reason
    assert lost is not None
    assert lost.code == "driver_silent"
    assert state_after(0.0) == "running"


def test_a_driver_that_was_killed_is_lost_at_once(tmp_path: Path) -> None:
    """On its own machine nobody waits for the silence: its process is gone, or a zombie."""
    found = journal.create_run(tmp_path, run_request(), "it").journal
    drive = f"""
import sys, time
from pathlib import Path
from orchestrator import journal
from tests.journals import tiny_plan
writer = journal.claim_run(journal.Journal(Path({str(found.path)!r})))
writer.start_attempt(tiny_plan())
print("ready", flush=True)
time.sleep(600)
"""
    driver = subprocess.Popen([sys.executable, "-c", drive], cwd=ROOT, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"ready\n"
    assert found.run().state == "starting"
    driver.kill()
    os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)  # a zombie, until it is waited for
    for _ in range(2):
        run = found.run()
        assert (run.state, run.attempts[0].reason) == ("lost", "lost")
        assert run.reason is not None
        assert run.reason.code == "driver_gone"
        driver.wait()
    driver.stdout.close()


def test_only_the_same_machine_can_tell_that_a_process_is_gone() -> None:
    """A pid of another machine, or of an earlier boot, says nothing here."""
    mine = liveness.this_process()
    elsewhere = ProcessIdentity(host="far", pid=2**22 - 7, machine="another", started_s=1.0)
    nowhere = ProcessIdentity(host="old", pid=2**22 - 7, machine=None, started_s=1.0)
    assert not any(liveness.is_gone(process) for process in (mine, elsewhere, nowhere))
    if mine.machine is not None:
        reused = ProcessIdentity(host=mine.host, pid=mine.pid, machine=mine.machine, started_s=1.0)
        absent = ProcessIdentity(host=mine.host, pid=2**22 - 7, machine=mine.machine, started_s=1.0)
        assert liveness.is_gone(reused)
        assert liveness.is_gone(absent)


def test_a_run_that_no_driver_takes_is_lost_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster may be slow, but not for ever; whoever submitted it and lives is at it."""
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


def test_a_rehearsal_ends_with_whoever_submitted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cluster went with that process; a real run still waits for its driver."""
    rehearsal = journal.create_run(tmp_path, run_request(rehearsal=True), "rehearsal").journal
    real = journal.create_run(tmp_path, run_request(), "real").journal
    lose_driver(monkeypatch)
    assert rehearsal.run().state == "lost"
    assert real.run().state == "submitted"


def test_signs_are_given_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as it is wanted, and whatever happens to the file."""
    monkeypatch.setattr("orchestrator.journal.ownership.HEARTBEAT_S", 0.01)
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


def test_a_removed_journal_stops_its_driver(tmp_path: Path) -> None:
    """A driver whose run was removed is told at its next sign, by an error that names the file."""
    writer = claimed_run(tmp_path)
    writer.journal.path.rename(tmp_path / "elsewhere")
    with pytest.raises(JournalUnwritable, match="heartbeats/000002: the journal cannot be written"):
        writer.heartbeat()
    with pytest.raises(JournalUnreadable):
        writer.record_pending(reason("a slice", "waiting_for_slices"))


def test_a_request_reaches_the_driver_with_its_next_sign(tmp_path: Path) -> None:
    """It counts until the run has ended; one to stop at once outdoes a patient one."""
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


def test_a_lost_run_that_was_asked_to_stop_counts_as_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing drives it, and nobody wants it to go on."""
    writer = claimed_run(tmp_path)
    journal.request_cancel(writer.journal)
    lose_driver(monkeypatch)
    run = writer.run()
    assert (run.state, run.ended_at_s) == ("cancelled", None)


def test_who_resumes_a_run_no_longer_wants_it_cancelled(tmp_path: Path) -> None:
    """A resumed run is not stopped by what was asked before; a new request counts."""
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


def test_a_driver_that_comes_late_still_learns_of_the_request(tmp_path: Path) -> None:
    """A run that is cancelled before its driver came is not forgotten."""
    found = journal.create_run(tmp_path, run_request()).journal
    journal.request_cancel(found)
    assert journal.claim_run(found).heartbeat() is not None


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_run_that_has_ended_is_not_driven(tmp_path: Path, state: str) -> None:
    """A job that its cluster starts twice does not run twice; a success is not resumed either."""
    writer = claimed_run(tmp_path)
    writer.end_run(state)  # type: ignore[arg-type]
    with pytest.raises(RunHasEnded, match=state):
        journal.claim_run(writer.journal)
    if state == "succeeded":
        with pytest.raises(RunHasEnded):
            journal.claim_run(writer.journal, resumes=True)
    else:
        assert journal.claim_run(writer.journal, resumes=True).run().state == "starting"
