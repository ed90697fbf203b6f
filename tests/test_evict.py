"""What a driver ends before it goes on: ranks of its own attempts, and all of the claim before."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from orchestrator import journal
from orchestrator.drive import driver as drivers
from orchestrator.errors import Superseded
from orchestrator.journal import liveness
from orchestrator.journal.heartbeat import read_heartbeats
from orchestrator.journal.ownership import Writer
from orchestrator.values.run import ProcessIdentity
from tests.clusters import eventually
from tests.journals import CLAIM, claimed_run, state_after, tiny_plan
from tests.process_backend import ProcessAttempt
from tests.test_driver import driver
from tests.test_journal_heartbeat import beat

LAST_WORDS_S = 0.5


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks have three seconds to end by themselves: a busy machine starts one in more than one."""
    monkeypatch.setattr(drivers, "_EXIT_LIMIT_S", 3.0)


@contextmanager
def process(script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this machine."""
    started = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        yield started
    finally:
        started.kill()
        started.wait()
        assert started.stdout
        started.stdout.close()


def identity(pid: int) -> ProcessIdentity:
    """The identity of a process, as it would write it itself."""
    started_s = round(psutil.Process(pid).create_time() - psutil.boot_time(), 2)
    return replace(liveness.this_process(), pid=pid, started_s=started_s)


def attempt_of(writer: Writer, *pids: int) -> int:
    """An attempt whose ranks are these processes."""
    number = writer.start_attempt(tiny_plan())
    for rank, pid in enumerate(pids):
        alive = replace(beat(rank, time.time()), process=identity(pid))
        path = writer.journal.paths.heartbeat(number, rank)
        path.write_bytes(msgspec.json.encode(alive))
    return number


def has_ended(one: subprocess.Popen[bytes], code: int) -> bool:
    return one.wait(10) == code


def test_a_rank_that_ends_by_itself_is_left_its_last_words(tmp_path: Path) -> None:
    """And one that stays is killed, also when it is stopped."""
    writer = claimed_run(tmp_path)
    ends, stays = f"import time; time.sleep({LAST_WORDS_S})", "import time; time.sleep(600)"
    with process(ends) as first, process(stays) as second, process(stays) as third:
        number = attempt_of(writer, first.pid, second.pid, third.pid)
        os.kill(third.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        drivers._end_ranks(writer.journal, number)
        assert time.monotonic() - began_s >= LAST_WORDS_S
        assert has_ended(first, 0)
        assert has_ended(second, -signal.SIGKILL)
        assert has_ended(third, -signal.SIGKILL)


def test_ranks_of_other_machines_are_not_waited_for(tmp_path: Path) -> None:
    """They end by themselves; what has their number here is another process."""
    writer = claimed_run(tmp_path)
    with process("import time; time.sleep(600)") as other:
        number = writer.start_attempt(tiny_plan())
        far = replace(identity(other.pid), machine="another")
        path = writer.journal.paths.heartbeat(number, 0)
        path.write_bytes(msgspec.json.encode(replace(beat(0), process=far)))
        began_s = time.monotonic()
        drivers._end_ranks(writer.journal, number)
        assert time.monotonic() - began_s < drivers._EXIT_LIMIT_S
        assert other.poll() is None


def test_the_ranks_of_a_driver_that_is_gone_are_ended(tmp_path: Path) -> None:
    """Nobody else knows them."""
    writer = claimed_run(tmp_path)
    with process("import time; time.sleep(600)") as rank:
        attempt_of(writer, rank.pid)
        os.kill(rank.pid, signal.SIGSTOP)
        with process("") as dead:
            gone = identity(dead.pid)
            dead.wait()
        state = writer.journal.state()
        assert state.claim
        claim = msgspec.structs.replace(state.claim, driver=gone)
        drivers._evict(writer.journal, replace(state, claim=claim))
        assert has_ended(rank, -signal.SIGKILL)


def test_a_driver_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """Also what sends no heartbeat."""
    script = "import subprocess, time; child = subprocess.Popen(['sleep', '600']);"
    script += "print(child.pid, flush=True); time.sleep(600)"
    with process(script) as old:
        assert old.stdout
        started = int(old.stdout.readline())
        os.kill(old.pid, signal.SIGSTOP)
        claim = msgspec.structs.replace(CLAIM, driver=identity(old.pid))
        run_journal = claimed_run(tmp_path).journal
        drivers._evict(run_journal, state_after(claim))
        assert has_ended(old, -signal.SIGKILL)
        eventually(lambda: not psutil.pid_exists(started) or is_zombie(started), 10)


def is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def counted_ends(
    at_end: Callable[[Writer, list[ProcessAttempt]], None] = lambda *_: None,
) -> Iterator[list[int]]:
    """The processes that were left of each attempt when its end was recorded. The backend ends
    none, as one does that lost its connection; `at_end` is called just before the record.
    """
    forgotten: list[ProcessAttempt] = []
    left: list[int] = []
    end, leave = Writer.end_attempt, ProcessAttempt.__exit__

    def watched(writer: Writer, *arguments: object, **named: object) -> None:
        left.append(sum(process.poll() is None for _, process in forgotten[-1].workers))
        at_end(writer, forgotten)
        end(writer, *arguments, **named)  # type: ignore[arg-type]

    def forget(attempt: ProcessAttempt, *_: object) -> None:
        forgotten.append(attempt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "end_attempt", watched)
        patch.setattr(ProcessAttempt, "__exit__", forget)
        try:
            yield left
        finally:
            for attempt in forgotten:
                leave(attempt, None, None, None)


def test_an_attempt_has_ended_when_no_rank_of_it_is_left(tmp_path: Path) -> None:
    """Also where the backend ends nothing: two attempts would write to one run."""
    first = driver(tmp_path, _1_0_3="out of luck", _1_1_3="wait")
    with counted_ends() as left:
        assert drivers.run_to_end(first) == 0
    assert [attempt.reason for attempt in first.writer.run().attempts] == ["failure", "finished"]
    assert left == [0, 0]


def test_an_attempt_has_not_ended_while_a_rank_may_still_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that sends its first heartbeat after all others are gone is waited for."""
    monkeypatch.setattr(drivers, "_START_LIMIT_S", 60.0)
    first = driver(tmp_path, _1_0_0="out of luck", _1_1_start="be late")
    with counted_ends() as left:
        assert drivers.run_to_end(first) == 0
    assert [attempt.reason for attempt in first.writer.run().attempts] == ["failure", "finished"]
    assert left == [0, 0]


def test_a_rank_that_starts_after_the_end_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads in the journal that its attempt has ended."""
    monkeypatch.setattr(drivers, "_START_LIMIT_S", 0.0)
    first = driver(tmp_path, _1_1_0="out of luck", _1_0_start="after the end")
    with counted_ends() as left:
        assert drivers.run_to_end(first) == 0
        assert left == [1, 0]
        eventually(lambda: len(read_heartbeats(first.journal.path, 1)) == 2, 30)
    late = read_heartbeats(first.journal.path, 1)[0]
    assert (late.steps, late.error) == (0, "Superseded: attempt 1 has ended")


def test_a_rank_that_starts_as_the_end_is_recorded_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked at the journal just before: the driver reads heartbeats once more."""
    monkeypatch.setattr(drivers, "_START_LIMIT_S", 0.0)
    first = driver(tmp_path, _1_0_3="out of luck")
    with process("import time; time.sleep(600)") as late:

        def start(writer: Writer, attempts: list[ProcessAttempt]) -> None:
            if len(attempts) == 1:
                alive = replace(beat(1, time.time()), process=identity(late.pid))
                path = writer.journal.paths.heartbeat(1, 1)
                path.write_bytes(msgspec.json.encode(alive))

        with counted_ends(start):
            assert drivers.run_to_end(first) == 0
        assert has_ended(late, -signal.SIGKILL)


def test_a_waiting_driver_learns_that_it_is_superseded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes no event, so its heartbeat looks for the successor's."""
    old = claimed_run(tmp_path)
    monkeypatch.setattr(liveness, "is_gone", lambda _: True)
    journal.claim_run(old.journal)
    monkeypatch.undo()
    # The file of its heartbeat is there again: the claim alone says who drives.
    old.journal.paths.driver_heartbeat(old.number).touch()
    for _ in range(2):  # from the successor's event, and from what it has read before
        with pytest.raises(Superseded):
            old.heartbeat()
