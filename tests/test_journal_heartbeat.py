"""Heartbeats: which rank died first, which one hangs, and what a rank writes."""

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import JournalUnwritable, ProgramFailed, Superseded
from orchestrator.journal import files, liveness
from orchestrator.journal.files import RunPaths
from orchestrator.journal.heartbeat import (
    _STARTUP_LIMIT_S,
    ClaimWatch,
    Heartbeat,
    HeartbeatMonitor,
    HeartbeatWriter,
    read_heartbeats,
)
from orchestrator.values.goodput import heartbeat_interval_s
from tests.clusters import eventually
from tests.journals import ME, claimed_run, tiny_plan

LIMIT_S = 30.0


def beat(rank: int, at_s: float = 0.0, **changes: object) -> Heartbeat:
    """A heartbeat of a rank in its own slice."""
    heartbeat = Heartbeat(rank=rank, slice_name=f"pod-{rank}", process=ME, at_s=at_s)
    return replace(heartbeat, **changes)  # type: ignore[arg-type]


def watched(*looks: tuple[float, list[Heartbeat]]) -> HeartbeatMonitor:
    """A monitor that has seen these heartbeats at these times."""
    monitor = HeartbeatMonitor(0.0)
    for now_s, seen in looks:
        monitor.update({heartbeat.rank: heartbeat for heartbeat in seen}, now_s)
    return monitor


def started_run(tmp_path: Path) -> Path:
    """The folder of a run whose first attempt is running."""
    writer = claimed_run(tmp_path)
    writer.start_attempt(tiny_plan())
    return writer.journal.path


def beating(
    path: Path, rank: int, every_s: float = 0.01, give_up: Callable[[], None] = lambda: None
) -> HeartbeatWriter:
    """A rank of the first attempt of the first claim."""
    watch = ClaimWatch(path, 2, 1)
    return HeartbeatWriter(path, 1, rank, f"pod-{rank}", every_s, watch, give_up)


# --- who died first


def test_the_rank_with_the_oldest_heartbeat_died_first() -> None:
    """One is killed; the others die because of it, and say so."""
    monitor = watched(
        (1.0, [beat(0, 1.0), beat(1, 0.9), beat(2, 1.0)]),
        (2.0, [beat(0, 1.1, error="peer is gone"), beat(1, 0.9), beat(2, 2.0)]),
        (3.0, [beat(0, 1.1, error="peer is gone"), beat(1, 0.9), beat(2, 3.0)]),
    )
    assert monitor.has_error()
    first = monitor.first_dead(silent_since_s=2.0)
    assert first is not None
    assert (first.rank, first.error) == (1, None)


def test_the_rank_that_raised_died_before_those_that_were_aborted() -> None:
    """It waits until the others have sent a later heartbeat."""
    raised = beat(1, 2.0, ended=True, error="ValueError: no")
    monitor = watched(
        (1.0, [beat(0, 1.0), beat(1, 1.0)]),
        (2.1, [beat(0, 1.9), raised]),
        (2.4, [beat(0, 2.3), raised]),
        (9.0, [beat(0, 2.3), raised]),
    )
    first = monitor.first_dead(silent_since_s=2.1)
    assert first == raised


def test_a_rank_that_finished_is_not_dead() -> None:
    monitor = watched((1.0, [beat(0, 1.0, ended=True), beat(1, 1.0)]))
    monitor.update({1: beat(1, 5.0)}, 5.0)
    assert monitor.first_dead(silent_since_s=4.0) is None
    assert not monitor.has_error()


# --- who hangs


def test_a_silent_rank_hangs() -> None:
    """By the monitor's clock, whatever the rank's clock says."""
    monitor = watched((0.0, [beat(0, 500.0), beat(1, 500.0)]), (40.0, [beat(0, 540.0)]))
    assert monitor.find_hang(LIMIT_S, 29.0) is None
    hang = monitor.find_hang(LIMIT_S, 41.0)
    assert hang is not None
    assert hang[1] == 1
    assert "41 s (process 7 on here, slice pod-1)" in hang[0]


def test_a_silent_rank_is_blamed_for_missing_steps() -> None:
    """The next step is overdue before the silence is."""
    done = [beat(0, 9.0, steps=5), beat(1, 9.0, steps=5)]
    last = [beat(0, 9.5, steps=5), beat(1, 9.5, steps=5)]
    monitor = watched((9.0, done), (9.5, last), (39.0, [beat(0, 39.0, steps=5)]))
    hang = monitor.find_hang(LIMIT_S, 39.25)
    assert hang is not None
    assert hang[1] == 1


def test_ranks_without_progress_hang() -> None:
    """The rank behind all others is blamed."""
    early = [beat(0, 1.0, steps=4), beat(1, 1.0, steps=4), beat(2, 1.0, steps=4)]
    late = [beat(0, 9.0, steps=5), beat(1, 9.0, steps=4), beat(2, 9.0, steps=5)]
    beating = [replace(heartbeat, at_s=39.5) for heartbeat in late]
    hang = watched((1.0, early), (9.0, late), (39.5, beating)).find_hang(LIMIT_S, 39.9)
    assert hang is not None
    assert hang[1] == 1
    together = [replace(heartbeat, steps=5, at_s=45.0) for heartbeat in late]
    hang = watched((9.0, late), (10.0, together), (45.0, together)).find_hang(LIMIT_S, 45.0)
    assert hang is not None
    assert hang[1] in (0, None)


def test_startup_has_a_limit_of_its_own() -> None:
    """Compiling is no hang; silence is."""
    starting = watched((1.0, [beat(0, 1.0)]), (40.0, [beat(0, 40.0)]))
    assert starting.find_hang(LIMIT_S, 50.0) is None
    assert starting.find_hang(LIMIT_S, 75.0) is not None
    assert HeartbeatMonitor(0.0).find_hang(LIMIT_S, _STARTUP_LIMIT_S - 1) is None
    assert HeartbeatMonitor(0.0).find_hang(LIMIT_S, _STARTUP_LIMIT_S + 1) is not None


def test_a_rank_that_ended_does_not_hang() -> None:
    monitor = watched((1.0, [beat(0, 1.0, ended=True), beat(1, 1.0, steps=1)]))
    monitor.update({1: beat(1, 40.0, steps=2)}, 40.0)
    assert monitor.find_hang(LIMIT_S, 41.0) is None


@pytest.mark.parametrize(
    ("ranks", "limit_s", "every_s"),
    [(2, 600.0, 0.25), (400, 600.0, 1.0), (8_960, 600.0, 22.4), (8_960, 20.0, 5.0), (4, 0.4, 0.1)],
)
def test_the_interval_grows_with_the_ranks(ranks: int, limit_s: float, every_s: float) -> None:
    """Four heartbeats fit into the hang limit."""
    assert heartbeat_interval_s(ranks, limit_s) == pytest.approx(every_s)


# --- what a rank leaves


def test_a_rank_that_raises_writes_its_error(tmp_path: Path) -> None:
    path = started_run(tmp_path)

    def fail() -> None:
        with beating(path, 3) as writer:
            writer.count_step()
            writer.count_step()
            raise ValueError("out of luck")

    with pytest.raises(ValueError, match="out of luck"):
        fail()
    [left] = read_heartbeats(path, 1).values()
    assert (left.rank, left.slice_name, left.steps) == (3, "pod-3", 2)
    assert (left.ended, left.error) == (True, "ValueError: out of luck")
    assert left.process.pid == os.getpid()


def test_a_rank_that_finishes_writes_a_last_heartbeat(tmp_path: Path) -> None:
    path = started_run(tmp_path)
    with beating(path, 0):
        assert not read_heartbeats(path, 1)[0].ended
    left = read_heartbeats(path, 1)[0]
    assert (left.ended, left.error) == (True, None)


@pytest.mark.parametrize("damage", [b"{", b"\xff"])
def test_a_damaged_heartbeat_is_left_out(tmp_path: Path, damage: bytes) -> None:
    path = started_run(tmp_path)
    with beating(path, 0, 60.0):
        RunPaths(path).heartbeat(1, 0).write_bytes(damage)
        assert read_heartbeats(path, 1) == {}
    assert read_heartbeats(path, 1)[0].ended


def test_a_rank_gives_up_when_its_attempt_has_ended(tmp_path: Path) -> None:
    """Its last heartbeat says why."""
    writer, given_up = claimed_run(tmp_path), threading.Event()
    writer.start_attempt(tiny_plan())
    with beating(writer.journal.path, 0, give_up=given_up.set):
        assert not given_up.wait(0.1)
        writer.end_attempt("failure")
        assert given_up.wait(30)
    assert read_heartbeats(writer.journal.path, 1)[0].error == "Superseded: attempt 1 has ended"


def test_a_rank_that_starts_after_the_end_of_its_attempt_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends a heartbeat before it looks: the driver sees it, or it sees the end."""
    writer, given_up = claimed_run(tmp_path), list[bool]()
    writer.start_attempt(tiny_plan())
    path, seen = writer.journal.path, list[int]()
    lapse = ClaimWatch.lapse

    def looked(watch: ClaimWatch) -> str | None:
        seen.append(len(read_heartbeats(path, 1)))
        return lapse(watch)

    monkeypatch.setattr(ClaimWatch, "lapse", looked)
    writer.end_attempt("failure")
    rank = beating(path, 0, give_up=lambda: given_up.append(True))
    with pytest.raises(Superseded, match="attempt 1 has ended"):
        rank.__enter__()
    assert (seen, given_up) == ([1], [True])
    last = read_heartbeats(path, 1)[0]
    assert (last.ended, last.error) == (True, "Superseded: attempt 1 has ended")


@pytest.mark.parametrize(("error", "repeats"), [(ProgramFailed("x"), True), (ValueError(), False)])
def test_a_rank_says_whether_its_error_repeats(
    error: Exception, repeats: bool, tmp_path: Path
) -> None:
    """A trainer that cannot make its program never will."""
    path = started_run(tmp_path)
    with (
        pytest.raises(type(error)),
        beating(path, 0),
    ):
        raise error
    assert read_heartbeats(path, 1)[0].error_repeats is repeats


def test_the_work_is_done_when_the_last_rank_has_ended() -> None:
    """Each without an error."""
    first, second = beat(0, 1.0, ended=True), beat(1, 4.0, ended=True)
    assert watched((1.0, [first])).done_since_s(1) == 1.0
    assert watched((1.0, [first])).done_since_s(2) is None
    assert watched((1.0, [first, beat(1, 1.0)])).done_since_s(2) is None
    assert watched((1.0, [first, beat(1, 1.0)]), (4.0, [first, second])).done_since_s(2) == 4.0
    failed = beat(1, 4.0, ended=True, error="ValueError")
    assert watched((4.0, [first, failed])).done_since_s(2) is None


def test_an_error_is_written_when_the_disk_takes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full, which may have been the error: the rank is known to have died, and why."""
    path, full = started_run(tmp_path), threading.Event()
    real = files.replace

    def replace_unless_full(where: Path, content: bytes) -> None:
        if full.is_set():
            raise JournalUnwritable(where, "No space left on device")
        real(where, content)

    monkeypatch.setattr(files, "replace", replace_unless_full)
    rank = beating(path, 0)
    rank.__enter__()
    full.set()
    error = OSError("No space left on device")
    rank.__exit__(type(error), error, None)
    assert not read_heartbeats(path, 1)[0].ended
    full.clear()
    eventually(lambda: read_heartbeats(path, 1)[0].error == "OSError: No space left on device", 10)


def test_last_words_fit_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a rank, and those of the driver, go into files that are there already."""
    writer = claimed_run(tmp_path)
    writer.start_attempt(tiny_plan())
    path, watch = writer.journal.path, ClaimWatch(writer.journal.path, writer.number, 1)
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_: object, **__: object) -> None:
        raise JournalUnwritable("full") from full

    def ends_on_a_full_disk() -> None:
        with HeartbeatWriter(path, 1, 0, "pod-0", 0.01, watch, give_up=lambda: None):
            monkeypatch.setattr(files, "replace", refuse)
            raise full

    with pytest.raises(OSError, match="No space"):
        ends_on_a_full_disk()
    last = read_heartbeats(path, 1)[0]
    assert last.ended
    assert "No space left on device" in (last.error or "")
    beat_file = writer.journal.paths.driver_heartbeat(writer.number)
    liveness.leave(beat_file, "the journal cannot be written")
    after = liveness.read(beat_file)
    assert after is not None
    assert after[2] == "the journal cannot be written"
    monkeypatch.setattr(liveness, "is_gone", lambda _: True)
    assert (writer.run().detail or "").endswith("is gone: the journal cannot be written")
