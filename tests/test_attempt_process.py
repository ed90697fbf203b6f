"""The process that holds slices of an attempt on Ray, without Ray: it serves one claim alone."""

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from orchestrator.drive.worker import work
from orchestrator.journal.ownership import Writer
from orchestrator.launch.backend import AttemptEvent, AttemptSpec, Slice, WorkerArgs
from orchestrator.launch.ray import attempt, attempt_process
from orchestrator.launch.ray.attempt_process import AttemptCommand, AttemptProcess
from orchestrator.values import codec
from tests.clusters import eventually
from tests.journals import claimed_run, tiny_plan
from tests.test_fence import supersede

SLICES = (Slice(name="pod-0", hosts=1, size=1, free=True),)


class Ended(BaseException):
    """Where the process would have ended."""


class Served:
    """An attempt that is served in a thread of this process."""

    def __init__(self, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[AttemptEvent] = []
        self.commands: attempt._Commands = queue.SimpleQueue()
        self.ended, self.trained = threading.Event(), threading.Event()
        spec = AttemptSpec(
            run=str(writer.journal.path), claim=writer.number, worker=f"{work.__module__}:work"
        )
        self.spec = codec.from_json(codec.to_json(spec), AttemptSpec)
        monkeypatch.setattr(attempt, "_LOOK_EVERY_S", 0.02)
        monkeypatch.setattr(attempt, "_current_slices", lambda *_: SLICES)
        monkeypatch.setattr("orchestrator.launch.ray.attempt.ray.nodes", list)
        monkeypatch.setattr(attempt, "_fence", lambda *_: [])
        monkeypatch.setattr(attempt, "_train", self.train)
        # Its thread lasts as long as the process, here that of all tests.
        monkeypatch.setattr("orchestrator.launch.ray.attempt.metrics.publish", lambda _: None)
        monkeypatch.setattr(os, "_exit", self.exit)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def train(self, *_: object, **__: object) -> AttemptEvent:
        self.trained.set()
        self.ended.wait(60)
        return AttemptEvent(ended=True)

    def exit(self, code: int) -> None:
        self.ended.set()
        raise Ended(code)

    def serve(self) -> None:
        with pytest.raises(Ended):
            attempt._serve(self.spec, self.commands, self.events.append)


def test_it_shows_slices_and_ends_when_its_claim_is_superseded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody ends it: its driver is stopped. Ray then frees what it reserved."""
    writer = claimed_run(tmp_path, rehearsal=True)
    served = Served(writer, monkeypatch)
    eventually(lambda: served.events == [AttemptEvent(slices=SLICES)], 30)
    supersede(writer)
    assert served.ended.wait(30)
    served.thread.join(30)
    assert not served.thread.is_alive()


def test_it_ends_while_its_workers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same while it waits for them, and not before."""
    writer = claimed_run(tmp_path, rehearsal=True)
    served = Served(writer, monkeypatch)
    number, plan = writer.start_attempt(tiny_plan(), ("pod-0",)), tiny_plan()
    args = WorkerArgs(
        run=str(writer.journal.path),
        claim=writer.number,
        attempt=number,
        plan_digest=plan.digest,
        heartbeat_s=0.25,
    )
    served.commands.put(AttemptCommand(args=args, slices=("pod-0",)))
    assert served.trained.wait(30)
    served.commands.put(AttemptCommand())
    eventually(lambda: len(served.events) > 1, 30)
    assert not served.ended.is_set()
    supersede(writer)
    assert served.ended.wait(30)
    served.thread.join(30)


SHOWS_LIFE = """
import threading
from orchestrator.launch.ray import attempt
attempt.SIGN_OF_LIFE_S = 0.1
attempt._show_life(lambda line: print(line, flush=True))
"""


@contextmanager
def one_that_shows_life() -> Iterator[tuple[AttemptProcess, int]]:
    """A process that has nothing to say yet, and its number."""
    before = {child.pid for child in psutil.Process().children()}
    with AttemptProcess([sys.executable, "-c", SHOWS_LIFE]) as running:
        [mine] = {child.pid for child in psutil.Process().children()} - before
        yield running, mine


def silence(running: AttemptProcess, lasts_s: float) -> AttemptEvent | None:
    """The first event within so long."""
    deadline = time.monotonic() + lasts_s
    while (event := running.next_event(0.05)) is None and time.monotonic() < deadline:
        pass
    return event


def test_one_that_is_stopped_before_it_begins_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds up the run no longer than the limit. One that only says nothing new is not lost."""
    monkeypatch.setattr(attempt_process, "_SILENT_LIMIT_S", 60.0)
    with one_that_shows_life() as (running, process):
        began = running.heard_s
        eventually(lambda: running.heard_s > began, 30)  # its imports take a while
        monkeypatch.setattr(attempt_process, "_SILENT_LIMIT_S", 1.5)
        assert silence(running, 3.0) is None
        os.kill(process, signal.SIGSTOP)
        event = silence(running, 30.0)
        assert event
        assert (event.ended, event.repeats) == (True, False)
    assert not psutil.pid_exists(process)


def test_one_that_is_stopped_while_ranks_train_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They do their work without it; the driver sees a hang where they cannot."""
    monkeypatch.setattr(attempt_process, "_SILENT_LIMIT_S", 0.5)
    with one_that_shows_life() as (running, process):
        args = WorkerArgs(run="", claim=1, attempt=1, plan_digest="", heartbeat_s=1.0)
        running.start(args, ("pod-0",))
        os.kill(process, signal.SIGSTOP)
        assert silence(running, 1.5) is None
