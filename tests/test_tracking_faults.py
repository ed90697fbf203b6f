"""A tracking server in trouble: training is not disturbed, and nothing is missing or doubled."""

import time
from itertools import product
from pathlib import Path

import pytest

from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepLog
from orchestrator.tracking.destinations import begin
from orchestrator.tracking.mlflow import metrics
from orchestrator.tracking.recorder import BackgroundRecorder
from orchestrator.values.run import Destination
from tests.clusters import eventually
from tests.journals import step, tiny_plan
from tests.records import (
    duplicate_points,
    empty_database,
    finished_run,
    points,
    record_once,
    rows,
    start_tracked_run,
    storage,
)
from tests.trouble import Server, Trouble, served

__all__ = ["empty_database", "storage"]

ALL_STEPS = (metrics.LOSS, metrics._STEP_TIME, metrics._MFU_ROOFLINE)


def check_whole(storage: Path, key: str, steps: int) -> None:
    """One run of that name, each point once."""
    [run_id, status] = rows(
        storage,
        "SELECT run_uuid, status FROM runs WHERE name LIKE ? || ': %'"
        " AND lifecycle_stage = 'active'",
        key,
    )[0]
    assert status == "FINISHED"
    for name in ALL_STEPS:
        query = "SELECT step FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step"
        assert [at for [at] in rows(storage, query, run_id, name)] == list(range(steps)), name
    assert duplicate_points(storage) == []
    active = "SELECT COUNT(*) FROM runs WHERE lifecycle_stage = 'active' AND name LIKE ? || ': %'"
    assert rows(storage, active, key) == [(1,)]


def record_whole(run: Journal) -> None:
    """Record a run on a server without trouble, which may be slow on a busy machine."""
    eventually(lambda: record_once(run)[0].problem is None, 120)


def place(server: Server) -> Destination:
    return Destination(tracker="mlflow", uri=server.address, experiment="orch", artifacts=None)


KINDS: tuple[Trouble, ...] = ("lost", "dropped", "500")


@pytest.mark.parametrize("kinds", [1, pytest.param(len(KINDS), marks=pytest.mark.chaos)])
def test_any_request_may_be_lost_with_or_without_its_effect(
    storage: Path, capfd: pytest.CaptureFixture[str], kinds: int
) -> None:
    """Whichever request fails, every fifth in one way or each in all: the next sync finishes it,
    and leaves no ghost. None of them prints anything.
    """
    with served(storage) as server:
        counted = finished_run(storage, "counted", steps=8)
        begin(counted, place(server))
        record_whole(counted)
        check_whole(storage, "counted", 8)
        every = 1 if kinds > 1 else 5
        for number, turn in product(range(1, server.requests + 1, every), range(kinds)):
            kind = KINDS[(number + turn) % len(KINDS)]
            run = finished_run(storage, f"it-{number}-{kind}", steps=8)
            begin(run, place(server))
            server.requests, server.trouble = 0, kind
            server.troubled_from = server.troubled_to = number
            [tried] = record_once(run)
            assert tried.problem is not None or number > server.requests
            server.trouble = "none"
            record_whole(run)
            check_whole(storage, run.key, 8)
    assert capfd.readouterr().out == ""


def test_a_server_comes_and_goes_while_a_run_goes_on(storage: Path) -> None:
    """It hangs, answers 500, is gone for a while, and hangs again: training ends while it does, and
    later all of its steps are recorded once.
    """
    with served(storage) as server:
        writer = start_tracked_run(storage, steps=60)
        begin(writer.journal, place(server))
        number = writer.start_attempt(tiny_plan())
        with writer.background_heartbeat(), BackgroundRecorder(writer.journal):
            with StepLog(writer.journal.path, number) as log:
                for index in range(60):
                    trouble(server, index)
                    log.append(step(index, restored=None if index else 0))
                    time.sleep(0.1)
            writer.end_attempt("finished")
            writer.end_run("succeeded")
        assert (writer.run().state, writer.run().steps_done) == ("succeeded", 60)
        server.trouble = "none"
        record_whole(writer.journal)
        check_whole(storage, "it", 60)
        assert len(points(storage, metrics.LOSS)) == 60


def trouble(server: Server, index: int) -> None:
    """The trouble of the server after so many steps; a client meets it before the next."""
    if index == 10:
        server.trouble = "hangs"
    elif index == 25:
        server.trouble = "500"
    elif index == 40:
        server.stop()
    elif index == 50:
        server.trouble = "hangs"
        server.start()
    if index in (10, 25):
        eventually(lambda: server.trouble in server.met, 120)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://127.0.0.1:9", "the server refuses connections"),
        ("http://no-such-host.invalid", "no server of that name is known"),
    ],
)
def test_what_is_wrong_is_said_in_words(tmp_path: Path, address: str, expected: str) -> None:
    """One line without a trace of libraries, and the journal unharmed."""
    run = finished_run(tmp_path)
    begin(run, Destination(tracker="mlflow", uri=address, experiment="orch", artifacts=None))
    [tried] = record_once(run)
    assert tried.problem == f"{address}: {expected}"
    assert run.run().problems == ()
