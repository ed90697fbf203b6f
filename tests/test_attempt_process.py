"""The process that holds slices of an attempt on Ray, without Ray: it serves one claim alone."""

import os
import queue
import threading
from pathlib import Path

import pytest

from orchestrator.drive.worker import work
from orchestrator.journal import Writer
from orchestrator.launch.backend import AttemptEvent, AttemptSpec, Slice, WorkerArgs
from orchestrator.launch.ray import attempt
from orchestrator.launch.ray.process_messages import AttemptCommand
from orchestrator.types import codec
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
        self.commands: attempt.Commands = queue.SimpleQueue()
        self.ended, self.trained = threading.Event(), threading.Event()
        spec = AttemptSpec(
            run=str(writer.journal.path), claim=writer.number, worker=f"{work.__module__}:work"
        )
        self.spec = codec.from_json(codec.to_json(spec), AttemptSpec)
        monkeypatch.setattr(attempt, "LOOK_EVERY_S", 0.02)
        monkeypatch.setattr(attempt, "current_slices", lambda _: SLICES)
        monkeypatch.setattr(attempt, "fence", lambda *_: [])
        monkeypatch.setattr(attempt, "_train", self.train)
        monkeypatch.setattr(os, "_exit", self.exit)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def train(self, *_: object) -> AttemptEvent:
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
