"""Trackers next to MLflow: JSON lines, and Weights & Biases offline."""

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import SpecError
from orchestrator.evidence.report import RunReader
from orchestrator.journal.ownership import Writer
from orchestrator.journal.run_journal import Journal
from orchestrator.launch.ray.metrics import NAMES, figures
from orchestrator.processes import resource
from orchestrator.tracking.destinations import begin, find_tracker
from orchestrator.tracking.recorder import Recorder
from orchestrator.values.run import SyncResult
from orchestrator.values.spec import TrackingOptions
from tests.journals import claimed_run, tiny_plan
from tests.records import train_steps


def recorded_with(tracker: str, storage: Path, key: str = "it") -> Writer:
    """A run that is to be recorded so, with ten steps."""
    writer = claimed_run(storage, key=key, plan=tiny_plan(), steps=20)
    where = find_tracker(tracker).destination(TrackingOptions(tracker=tracker), storage, {})
    begin(writer.journal, where)
    train_steps(writer, range(10))
    return writer


def end(writer: Writer) -> Journal:
    writer.end_attempt("failure", error="no luck")
    train_steps(writer, range(5, 20))
    writer.end_attempt("finished")
    writer.end_run("succeeded")
    return writer.journal


def record(recorder: Recorder, journal: Journal) -> SyncResult:
    result = recorder.record(journal)
    assert result.problem is None
    return result


def lines_of(file: Path, key: str) -> list[dict[str, object]]:
    every = [json.loads(text) for text in file.read_text().splitlines()]
    return [line for line in every if line["run"] == key]


def test_lines_have_each_step_once(tmp_path: Path) -> None:
    """By one process that goes on, by others that begin anew, and after a line that was cut."""
    writer, other = recorded_with("lines", tmp_path), recorded_with("lines", tmp_path, "other")
    following = Recorder({})
    record(following, writer.journal)
    record(Recorder({}), other.journal)
    file = tmp_path / "runs.jsonl"
    with file.open("ab") as cut:
        cut.write(b'{"kind": "step", "id":')
    journal = end(writer)
    assert record(following, journal).recorded
    for recorder in (following, Recorder({})):
        record(recorder, journal)
    first, *steps, last = lines_of(file, "it")
    assert first["kind"] == "run"
    assert isinstance(first["spec"], dict)
    assert [line["step"] for line in steps] == list(range(20))
    assert steps[7]["attempt"] == 1
    assert steps[12]["loss"] == 9.0 / 13
    assert (last["kind"], last["state"]) == ("end", "succeeded")
    assert [line["kind"] for line in lines_of(file, "other")] == ["run"] + ["step"] * 10


def test_a_file_that_cannot_be_written_says_so_and_is_completed_later(tmp_path: Path) -> None:
    writer = recorded_with("lines", tmp_path)
    file = tmp_path / "runs.jsonl"
    file.mkdir()
    recorder = Recorder({})
    problem = recorder.record(writer.journal).problem
    assert problem == f"{file}: Is a directory"
    file.rmdir()
    recorder.forget()
    record(recorder, writer.journal)
    assert len(lines_of(file, "it")) == 11


def test_lines_go_to_a_file_and_not_to_a_server(tmp_path: Path) -> None:
    options = TrackingOptions(tracker="lines", uri="https://example.org")
    with pytest.raises(SpecError, match="lines go to a file"):
        find_tracker("lines").destination(options, tmp_path, {})
    named = find_tracker("lines").destination(replace(options, uri="a.jsonl"), tmp_path, {})
    assert named.uri == str(Path.cwd() / "a.jsonl")


def test_wandb_is_offline_unless_a_server_is_named(tmp_path: Path) -> None:
    tracker = find_tracker("wandb")
    options = TrackingOptions(tracker="wandb")
    assert tracker.destination(options, tmp_path, {}).uri == str(tmp_path / "wandb-offline")
    served = replace(options, uri="https://wandb.example.org")
    assert tracker.destination(served, tmp_path, {}).uri == served.uri


def wandb_records(file: Path) -> Iterator[bytes]:
    """The records of a file in the format of LevelDB's log: blocks, each piece with its length."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32_768 - at % 32_768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # all of a record, or its last piece
            yield whole
            whole = b""


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_wandb_keeps_each_step_offline(tmp_path: Path) -> None:
    """In files that W&B itself reads: every step, the summary, the config; once."""
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'orch[wandb]'")
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415

    os.environ["WANDB_SILENT"] = "true"
    writer = recorded_with("wandb", tmp_path)
    recorder = Recorder({})
    record(recorder, writer.journal)
    journal = end(writer)
    record(recorder, journal)
    record(Recorder({}), journal)
    [file] = (tmp_path / "wandb-offline").rglob("*.wandb")
    steps, names = list[int](), set[str]()
    for text in wandb_records(file):
        kept = wandb_internal_pb2.Record()
        kept.ParseFromString(text)
        if kept.WhichOneof("record_type") == "history":
            steps.append(kept.history.step.num)
            names |= {item.key or "/".join(item.nested_key) for item in kept.history.item}
    assert steps == list(range(20))
    assert {"learning/loss", "mfu/measured", "mfu/roofline"} <= names


def test_the_dashboard_shows_every_metric_of_a_run_on_ray(tmp_path: Path) -> None:
    """Each query names a metric that is published, and each metric that is published is shown."""
    journal = end(recorded_with("lines", tmp_path))
    known = {name for name, _, _ in figures(RunReader(journal).read())}
    assert {"orch_step", "orch_mfu", "orch_mfu_roofline", "orch_step_seconds_low"} <= known
    assert known <= NAMES.keys()
    dashboard = json.loads((resource("dashboards") / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = {query.partition("{")[0].removeprefix("ray_") for query in queries}
    assert shown == NAMES.keys()
    assert all(query.endswith('{run=~"$run"}') for query in queries)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
