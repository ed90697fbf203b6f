"""The journal of a run on a bucket: created, claimed, written, read elsewhere, removed, resumed."""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from orchestrator import journal, storage
from orchestrator.errors import (
    JournalDamaged,
    JournalUnwritable,
    RunExists,
    RunIsLive,
    Superseded,
    UnknownRun,
)
from orchestrator.journal import files, run_journal
from orchestrator.journal.heartbeat import ClaimWatch
from orchestrator.journal.liveness import read as heartbeat
from orchestrator.journal.ownership import Writer
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepLog
from orchestrator.storage import copies
from orchestrator.storage.bucket import Bucket
from orchestrator.values.run import TrackedRun
from tests.bucket_server import BROKEN, LOST, THROTTLED, BucketServer
from tests.journals import Clock, reason, run_request, step, tiny_plan

SHA = "0" * 64


def runs(bucket: Bucket) -> Path:
    return storage.folder(f"{bucket.scheme}://bucket/team/runs")


def driven(folder: Path, steps: int = 3) -> tuple[Writer, Journal]:
    """A run whose first attempt did some steps and saved a checkpoint after them."""
    submitted = journal.create_run(folder, run_request())
    writer = journal.claim_run(submitted.journal)
    number = writer.start_attempt(tiny_plan(), ("slice-0",))
    with StepLog(submitted.journal.path, number) as log:
        for index in range(steps):
            log.append(step(index, restored=0 if index == 0 else None))
    assert writer.record_checkpoint(steps, SHA)
    return writer, submitted.journal


def elsewhere(where: Path) -> AbstractContextManager[None]:
    """Within this context this is another machine, which has no copy yet."""
    return patch.dict(os.environ, {"ORCH_BUCKETS": str(where / "another machine")})


def test_another_machine_reads_the_same_run(bucket: Bucket, tmp_path: Path) -> None:
    writer, record = driven(runs(bucket))
    here = record.run(Clock())
    assert here.steps_done == 3
    assert here.journal == f"{bucket.scheme}://bucket/team/runs/{here.run}"
    with elsewhere(tmp_path):
        folder = runs(bucket)
        [there], problems = journal.list_runs(folder)
        assert problems == []
        assert (there.run, there.id, there.state) == (here.run, here.id, "running")
        assert there.steps_done == 3
        found = journal.find_run(folder, here.run[:8])
        assert [logged.step.index for logged in found.steps(there)] == [0, 1, 2]
        assert found.spec() == record.spec()
        assert found.plan(there.plan_digest) == tiny_plan()
        request = journal.request_cancel(found)
    assert writer.heartbeat() == request
    writer.end_attempt("cancelled")
    writer.end_run("cancelled", reason("on request", "cancel_requested"))
    with elsewhere(tmp_path):
        assert found.run().state == "cancelled"
        assert found.run().problems == ()


def test_a_key_has_one_run(one_bucket: Bucket, bucket_server: BucketServer) -> None:
    first = journal.create_run(runs(one_bucket), run_request()).journal
    second = journal.create_run(runs(one_bucket), run_request()).journal
    assert (first.key[-2:], second.key[-2:]) == ("-1", "-2")
    journal.create_run(runs(one_bucket), run_request(), key="mine")
    with pytest.raises(RunExists):
        journal.create_run(runs(one_bucket), run_request(), key="mine")
    assert [found.key for found in journal.list_journals(runs(one_bucket))] == sorted(
        [first.key, second.key, "mine"]
    )
    assert not [name for name in bucket_server.names() if "partial" in name]


def test_who_waited_for_a_run_reads_it_at_once(
    one_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That its first event was not there a moment ago counts no more."""
    monkeypatch.setattr(copies, "_FRESH_S", float("inf"))
    folder = runs(one_bucket)
    first = folder / "nightly" / "events" / "000001.json"
    first.parent.mkdir(parents=True)
    copies.refresh_file(first)
    submitted = journal.create_run(folder, run_request(), "nightly")
    assert submitted.journal.submission() == submitted.journal.state().submitted.submission


def test_a_late_answer_removes_no_copy_that_has_come_meanwhile(
    one_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reader hears that nothing is there, after another has read what was written since."""
    monkeypatch.setattr(copies, "_FRESH_S", float("inf"))
    first = runs(one_bucket) / "nightly" / "events" / "000001.json"
    ask = Bucket.read_if_changed

    def late(*asked: Any) -> Any:
        monkeypatch.setattr(Bucket, "read_if_changed", ask)
        try:
            return ask(*asked)
        finally:
            journal.create_run(runs(one_bucket), run_request(), "nightly")
            copies.refresh_file(first)

    monkeypatch.setattr(Bucket, "read_if_changed", late)
    copies.refresh_file(first)
    assert first.exists()


def test_a_run_that_was_not_written_whole_is_none(
    bucket: Bucket, bucket_server: BucketServer
) -> None:
    """The first event comes last. A key that a dead submitter reserved is free after an hour."""
    bucket_server.fault = lambda method, name: (
        BROKEN if method == "PUT" and name.endswith("events/000001.json") else None
    )
    with pytest.raises(JournalUnwritable):
        journal.create_run(runs(bucket), run_request(), key="mine")
    bucket_server.fault = lambda _method, _name: None
    assert journal.list_runs(runs(bucket)) == ([], [])
    with pytest.raises(RunExists):
        journal.create_run(runs(bucket), run_request(), key="mine")
    reserved = f"bucket/team/runs/mine/{copies._RESERVED}"
    bucket_server.objects[reserved].at_s -= copies._ABANDONED_S + 1
    assert journal.create_run(runs(bucket), run_request(), key="mine").journal.run().run == "mine"


def test_of_many_drivers_one_claims_a_run(one_bucket: Bucket) -> None:
    record = journal.create_run(runs(one_bucket), run_request()).journal

    def claim(_: int) -> Writer | None:
        with suppress(RunIsLive):
            return journal.claim_run(Journal(record.path))
        return None

    with ThreadPoolExecutor(4) as pool:
        claims = [won for won in pool.map(claim, range(4)) if won]
    assert [claim.number for claim in claims] == [2]
    assert record.state().writer == 2


def test_a_superseded_driver_stops_and_so_do_its_ranks(one_bucket: Bucket) -> None:
    writer, record = driven(runs(one_bucket))
    stale = Writer(record, record.state())
    watch = ClaimWatch(record.path, writer.number, 1)
    assert watch.lapse() is None
    writer.end_attempt("failure", error="it broke")
    with pytest.raises(Superseded):
        stale.end_attempt("preemption")
    writer.end_run("failed", reason("it broke"))
    again = journal.claim_run(record, resumes=True)
    with pytest.raises(Superseded):
        writer.heartbeat()
    assert watch.lapse() == "attempt 1 has ended"
    lapse = ClaimWatch(record.path, writer.number).lapse()
    assert lapse == f"claim {writer.number} is superseded by claim {again.number}"
    assert heartbeat(record.paths.driver_heartbeat(writer.number)) is None


def test_a_heartbeat_has_the_time_of_the_bucket(
    one_bucket: Bucket, bucket_server: BucketServer
) -> None:
    _, record = driven(runs(one_bucket))
    path = record.paths.driver_heartbeat(2)
    name = f"bucket/team/runs/{record.path.name}/heartbeats/000002"
    bucket_server.objects[name].at_s -= 1000
    bucket_server.objects[name].generation += 1
    beat = heartbeat(path)
    assert beat is not None
    assert abs(beat[0] - bucket_server.objects[name].at_s) < 1.0


def test_removing_a_run_leaves_nothing_and_no_driver(
    one_bucket: Bucket, bucket_server: BucketServer
) -> None:
    writer, record = driven(runs(one_bucket))
    with pytest.raises(RunIsLive):
        journal.remove_run(record)
    writer.end_attempt("failure", error="it broke")
    writer.end_run("failed", reason("it broke"))
    journal.remove_run(record)
    assert bucket_server.names() == []
    assert journal.list_runs(runs(one_bucket)) == ([], [])
    with pytest.raises(UnknownRun):
        journal.find_run(runs(one_bucket), record.key)
    again = journal.create_run(runs(one_bucket), run_request(), key=record.key)
    assert again.journal.run().attempts == ()


def test_a_claim_on_a_run_that_is_being_removed_is_withdrawn(
    one_bucket: Bucket, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = journal.create_run(runs(one_bucket), run_request()).journal
    state = record.state()
    monkeypatch.setattr(Journal, "state", lambda _: state)
    first = f"bucket/team/runs/{record.key}/events/000001.json"
    original = files.write_new

    def write_after_removal(path: Path, content: bytes, mode: int = 0o666) -> None:
        bucket_server.objects.pop(first, None)
        original(path, content, mode)

    monkeypatch.setattr(files, "write_new", write_after_removal)
    with pytest.raises(UnknownRun):
        journal.claim_run(record)
    assert not [name for name in bucket_server.names() if "events/" in name]


def test_a_missing_event_is_seen(one_bucket: Bucket, bucket_server: BucketServer) -> None:
    writer, record = driven(runs(one_bucket))
    writer.end_attempt("failure", error="it broke")
    writer.end_run("failed", reason("it broke"))
    del bucket_server.objects[f"bucket/team/runs/{record.key}/events/000003.json"]
    assert any("000003.json: is missing" in problem for problem in record.run().problems)
    with pytest.raises(JournalDamaged):
        journal.claim_run(record, resumes=True)


def test_a_database_of_this_machine_is_not_noted_for_others(
    one_bucket: Bucket, tmp_path: Path
) -> None:
    """A tracker's server is the same for all; a database lies beside the copy of one machine."""
    record = journal.create_run(runs(one_bucket), run_request()).journal
    here = TrackedRun(tracker="mlflow", uri=f"sqlite:///{runs(one_bucket)}/mlflow.db", run_id="1")
    assert journal.track(record, here) == here
    assert record.run().tracking == here
    with elsewhere(tmp_path):
        there = journal.find_run(runs(one_bucket), record.key)
        assert there.run().tracking is None
        served = TrackedRun(tracker="mlflow", uri="http://10.0.0.1:5000", run_id="2")
        assert journal.track(there, served) == served
    assert record.run().tracking == served


def test_logs_come_from_the_bucket(one_bucket: Bucket) -> None:
    _, record = driven(runs(one_bucket))
    one_bucket.create(f"team/runs/{record.key}/attempts/001/logs/rank-0.log/{0:015d}", b"a\nb\n")
    [log, *_] = run_journal.list_logs(record.path, record.run(), attempt=1)
    assert not log.empty
    reader = run_journal.LogReader(log)
    assert [got.line for got in reader.read()] == ["a", "b"]
    one_bucket.create(f"team/runs/{record.key}/attempts/001/logs/rank-0.log/{4:015d}", b"c\n")
    assert [got.line for got in reader.read()] == ["c"]


def test_nothing_is_lost_or_doubled_through_faults(
    bucket: Bucket, bucket_server: BucketServer
) -> None:
    """Every fifth request is lost on its way back, throttled or refused, from beginning to end."""
    dice = random.Random(0)
    bucket_server.fault = lambda _method, _name: (
        dice.choice([LOST, THROTTLED, BROKEN]) if dice.random() < 0.2 else None
    )
    writer, record = driven(runs(bucket), steps=40)
    writer.end_attempt("failure", error="it broke")
    writer.end_run("failed", reason("it broke"))
    resumed = journal.claim_run(record, resumes=True)
    number = resumed.start_attempt(tiny_plan())
    with StepLog(record.path, number) as log:
        for index in range(40, 60):
            log.append(step(index, restored=40 if index == 40 else None))
    resumed.end_attempt("finished")
    resumed.end_run("succeeded")
    run = record.run()
    assert (run.state, run.steps_done, run.problems) == ("succeeded", 60, ())
    assert [logged.step.index for logged in record.steps(run)] == list(range(60))
    begin = f"bucket/team/runs/{record.key}/events/"
    assert bucket_server.names(begin) == [f"{begin}{number:06d}.json" for number in range(1, 11)]
    assert bucket_server.faults > 5
