"""An attempt as its driver watches it, with events that the test gives."""

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from orchestrator import journal
from orchestrator.drive import monitor
from orchestrator.drive.driver import Driver
from orchestrator.drive.monitor import AttemptEnd, Monitor
from orchestrator.journal import liveness
from orchestrator.journal.heartbeat import HeartbeatWriter
from orchestrator.launch.backend import AttemptEvent, DeadRank, Slice, WorkerArgs, describe_exit
from orchestrator.values import goodput
from orchestrator.values.run import SavedCheckpoint, StateReason
from tests.journals import claimed_run, tiny_plan, write_steps
from tests.process_backend import ProcessBackend

BEAT_S = 0.02
SLICES = ("pod-0", "pod-1")
WHOLE = tuple(Slice(name=name, hosts=1, size=1, free=False) for name in SLICES)


class ScriptedAttempt:
    """An attempt without processes: its events are given, and so are its slices."""

    def __init__(self, *events: AttemptEvent, slices: tuple[Slice, ...] | None = WHOLE) -> None:
        self.events: queue.SimpleQueue[AttemptEvent] = queue.SimpleQueue()
        self._slices = slices
        for event in events:
            self.events.put(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs."""

    def next_event(self, timeout_s: float) -> AttemptEvent | None:
        try:
            return self.events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def start(self, args: WorkerArgs, slices: Sequence[str]) -> None:
        raise AssertionError(args, slices)

    def slices(self) -> tuple[Slice, ...] | None:
        return self._slices


@contextmanager
def watched(
    tmp_path: Path, attempt: ScriptedAttempt, hang_limit_s: float = 60.0
) -> Iterator[tuple[journal.Writer, Monitor]]:
    """The first attempt of a run, about to be watched."""
    writer = claimed_run(tmp_path)
    number = writer.start_attempt(tiny_plan(), SLICES)
    path = str(writer.journal.path)
    args = WorkerArgs(
        run=path,
        claim=writer.number,
        attempt=number,
        plan_digest=tiny_plan().digest,
        heartbeat_s=BEAT_S,
    )
    yield writer, Monitor(writer, attempt, args, SLICES, hang_limit_s)


def beating(writer: journal.Writer, rank: int, every_s: float = BEAT_S) -> HeartbeatWriter:
    """A rank of the first attempt."""
    path = writer.journal.path
    watch = journal.ClaimWatch(path, writer.number, 1)
    return HeartbeatWriter(path, 1, rank, f"pod-{rank}", every_s, watch, give_up=lambda: None)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks run on other machines: nobody here can know whether they live."""
    monkeypatch.setattr(liveness, "is_alive", lambda _: False)
    monkeypatch.setattr(goodput, "_SETTLED_S", 0.2)


def raises(writer: journal.Writer, rank: int, error: Exception) -> None:
    """A rank that dies of an error."""
    with pytest.raises(type(error)), beating(writer, rank):
        raise error


def test_an_attempt_that_does_all_its_steps_is_finished(tmp_path: Path) -> None:
    """Its ranks have ended well, and the backend says that it has ended."""
    with watched(tmp_path, ScriptedAttempt(AttemptEvent(ended=True))) as (writer, watch):
        with beating(writer, 0):
            pass
        assert watch.wait_for_end() == AttemptEnd(reason="finished")


def test_an_attempt_whose_ranks_did_their_work_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A while later, where what carries it out is stopped; not while one of two goes on."""
    monkeypatch.setattr(monitor, "_DONE_LIMIT_S", 0.2)
    with watched(tmp_path, ScriptedAttempt(), hang_limit_s=1.0) as (writer, watch):
        with beating(writer, 0):
            pass
        with beating(writer, 1, every_s=60.0):  # it falls silent
            hang = watch.wait_for_end()
            assert (hang.reason, hang.first_dead_rank) == ("hang", 1)
        began_s = time.monotonic()
        assert watch.wait_for_end() == AttemptEnd(reason="finished")
        assert time.monotonic() - began_s > 0.2


def test_an_error_is_found_before_the_launcher_tells(tmp_path: Path) -> None:
    """The rank that raised is named, and its error shown; those that live still are not blamed."""
    with watched(tmp_path, ScriptedAttempt()) as (writer, watch), beating(writer, 0):
        raises(writer, 1, ValueError("out of luck"))
        assert watch.wait_for_end() == AttemptEnd(
            reason="failure", error="ValueError: out of luck", first_dead_rank=1
        )


@pytest.mark.usefixtures("elsewhere")
def test_of_two_dead_ranks_the_first_is_named(tmp_path: Path) -> None:
    """One falls silent; the other dies of that, and says so."""
    with watched(tmp_path, ScriptedAttempt()) as (writer, watch), beating(writer, 0, every_s=600.0):
        raises(writer, 1, RuntimeError("connection closed by peer"))
        assert watch.wait_for_end() == AttemptEnd(reason="failure", first_dead_rank=0)


def test_a_slow_rank_is_not_taken_for_dead(tmp_path: Path) -> None:
    """Its process is seen to live, however late its next sign is."""
    with watched(tmp_path, ScriptedAttempt()) as (writer, watch), beating(writer, 0, every_s=600.0):
        raises(writer, 1, ValueError("out of luck"))
        assert watch.wait_for_end().first_dead_rank == 1


@pytest.mark.usefixtures("elsewhere")
def test_a_lost_host_is_no_failure(tmp_path: Path) -> None:
    """The slice is named, and the rank that died with it."""
    attempt = ScriptedAttempt(AttemptEvent(ended=True, error="Ray's words"), slices=WHOLE[:1])
    with watched(tmp_path, attempt) as (writer, watch), beating(writer, 0):
        with beating(writer, 1, every_s=600.0):
            ending = watch.wait_for_end()
        assert ending == AttemptEnd(
            reason="preemption", error="slice pod-1 is gone", first_dead_rank=1
        )


def test_the_backends_error_counts_where_no_rank_has_one(tmp_path: Path) -> None:
    """No process had come up."""
    with watched(tmp_path, ScriptedAttempt(AttemptEvent(ended=True, error="no controller"))) as (
        _,
        watch,
    ):
        assert watch.wait_for_end() == AttemptEnd(reason="failure", error="no controller")


DEAD = DeadRank(rank=1, host="h", slice_name="pod-1", how=describe_exit(-9))
DEATH = AttemptEvent(ended=True, error=DEAD.error, dead=(DEAD,))
UNSEEN = "rank 1 was killed (signal 9) (host h, slice pod-1), before its first heartbeat"


@pytest.mark.usefixtures("elsewhere")
def test_a_rank_that_died_before_its_first_heartbeat_is_named(tmp_path: Path) -> None:
    """It had not joined the others: they end because of it, and say so later."""
    with watched(tmp_path, ScriptedAttempt(DEATH)) as (writer, watch), beating(writer, 0):
        assert watch.wait_for_end() == AttemptEnd(reason="failure", error=UNSEEN, first_dead_rank=1)


@pytest.mark.usefixtures("elsewhere")
def test_a_rank_that_told_its_error_before_is_to_blame(tmp_path: Path) -> None:
    """So is one with heartbeats, whatever the backend saw."""
    with watched(tmp_path, ScriptedAttempt(DEATH)) as (writer, watch):
        raises(writer, 0, ValueError("out of luck"))
        ending = watch.wait_for_end()
        assert (ending.first_dead_rank, ending.error) == (0, "ValueError: out of luck")
    seen = ScriptedAttempt(DEATH)
    with watched(tmp_path / "seen", seen) as (writer, watch), beating(writer, 1, every_s=600.0):
        ending = watch.wait_for_end()
        assert (ending.first_dead_rank, ending.error) == (1, None)


def test_a_rank_that_died_unseen_with_its_slice_is_named(tmp_path: Path) -> None:
    """The loss of the slice is a preemption."""
    attempt = ScriptedAttempt(DEATH, slices=WHOLE[:1])
    with watched(tmp_path, attempt) as (_, watch):
        assert watch.wait_for_end() == AttemptEnd(
            reason="preemption", error="slice pod-1 is gone", first_dead_rank=1
        )


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (3, "ended with exit code 3"),
        (-11, "was killed (signal 11)"),
        (-70, "was killed (signal 70)"),
    ],
)
def test_how_a_process_ended_is_said_in_words(code: int, how: str) -> None:
    assert describe_exit(code) == how


def test_a_silent_rank_ends_the_attempt(tmp_path: Path) -> None:
    """After the limit, and not before."""
    with (
        watched(tmp_path, ScriptedAttempt(), hang_limit_s=0.5) as (writer, watch),
        beating(writer, 0),
    ):
        with beating(writer, 1, every_s=600.0):
            ending = watch.wait_for_end()
        assert (ending.reason, ending.first_dead_rank) == ("hang", 1)
        assert ending.error is not None
        assert "slice pod-1" in ending.error


def test_a_stop_during_start_up_waits_for_nothing(tmp_path: Path) -> None:
    """No step is done, so nothing would be saved."""
    with watched(tmp_path, ScriptedAttempt()) as (writer, watch), beating(writer, 0):
        journal.request_cancel(writer.journal)
        assert watch.wait_for_end() == AttemptEnd(reason="cancelled")


def test_a_stop_later_waits_for_the_last_checkpoint(tmp_path: Path) -> None:
    """The ranks see the wish too; the run says that it is stopping, until the attempt has ended."""
    attempt = ScriptedAttempt()
    with watched(tmp_path, attempt) as (writer, watch), beating(writer, 0):
        write_steps(writer.journal.path, 1, range(3))
        journal.request_cancel(writer.journal)
        assert not watch._must_stop()
        assert writer.run().state == "stopping"
        attempt.events.put(AttemptEvent(ended=True))
        assert watch.wait_for_end() == AttemptEnd(reason="cancelled")


def test_a_stop_at_once_waits_for_nothing(tmp_path: Path) -> None:
    """Whatever is lost by it."""
    with watched(tmp_path, ScriptedAttempt()) as (writer, watch), beating(writer, 0):
        write_steps(writer.journal.path, 1, range(3))
        journal.request_cancel(writer.journal, at_once=True)
        assert watch.wait_for_end() == AttemptEnd(reason="cancelled")


@pytest.mark.parametrize(
    ("steps", "at_once", "why"),
    [
        (3, False, "interrupted (Ctrl-C), after step 3; its checkpoint is saved"),
        (3, True, "interrupted (Ctrl-C), at once, after step 3"),
        (0, True, "interrupted (Ctrl-C), before its first step"),
    ],
)
def test_a_stopped_run_notes_who_stopped_it_and_what_is_saved(
    tmp_path: Path, steps: int, at_once: bool, why: str
) -> None:
    """A checkpoint of the last step is kept where its ranks were let end by themselves."""
    with watched(tmp_path, ScriptedAttempt()) as (writer, _):
        write_steps(writer.journal.path, 1, range(steps))
        journal.request_cancel(writer.journal, at_once=at_once, source="interrupted (Ctrl-C)")
        writer.end_attempt("cancelled")
        assert (
            Driver(writer, ProcessBackend())._end_run(StateReason(code="error", detail="unused"))
            == 0
        )
    run = writer.run()
    assert (run.state, run.detail) == ("cancelled", why)


def test_a_checkpoint_of_this_claim_and_attempt_is_recorded_once(tmp_path: Path) -> None:
    """And none that a superseded claim, or an attempt before, reports."""
    with watched(tmp_path, ScriptedAttempt()) as (writer, watch), beating(writer, 0) as rank:

        def is_new() -> bool:
            watch.read_heartbeats()
            return watch.new_save

        mine = SavedCheckpoint(claim=writer.number, attempt=1, step=5, sha256="0" * 64)
        for other in (replace(mine, claim=writer.number - 1), replace(mine, attempt=2)):
            rank.report_saved(other)
            assert not is_new()
        rank.report_saved(mine)
        assert [is_new(), is_new()] == [True, False]
    assert writer.newest_saves(3) == (mine,)


@pytest.mark.parametrize(
    ("change", "grows"),
    [
        ({"free": True}, True),
        ({"free": False}, False),  # another run has it
        ({"free": True, "settled": False}, False),
        ({"free": True, "hosts": 0}, False),
    ],
    ids=["free", "taken", "not settled", "not whole"],
)
def test_a_run_grows_by_a_slice_that_it_could_use(
    change: dict[str, Any], grows: bool, tmp_path: Path
) -> None:
    used, other = WHOLE
    attempt = ScriptedAttempt(slices=(used, replace(other, **change)))
    with watched(tmp_path, attempt) as (_, watch):
        assert not watch._can_grow()
        watch.most_pods = 2
        assert not watch._can_grow()  # it has all that it wants
        watch.slices = SLICES[:1]
        assert watch._can_grow() == grows
        attempt._slices = None
        assert not watch._can_grow()
