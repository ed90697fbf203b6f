"""`orch submit --key`: the same key twice is one run."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import orchestrator as orch
from orchestrator import journal, reading
from orchestrator.errors import SpecError
from orchestrator.journal.ownership import RunRequest, Writer
from orchestrator.journal.run_journal import Journal
from orchestrator.planning.planner import make_plan
from orchestrator.run import submit as submitting
from orchestrator.storage import copies
from orchestrator.storage.addresses import folder
from tests.bucket_server import BucketServer
from tests.conftest import ROOT, RunOrch
from tests.journals import reason

TINY = "specs/tiny_2pod.yaml"
KEY = ("--key", "nightly")


@pytest.fixture
def before(tmp_path: Path) -> journal.Writer:
    """The run that the first submit has made."""
    loaded = reading.load(ROOT / TINY)
    stored = replace(loaded, run=replace(loaded.run, storage=str(tmp_path)))
    return journal.create_run(
        tmp_path, journal.RunRequest(spec=stored, plan=make_plan(stored), steps=5), "nightly"
    )


def stored(writer: journal.Writer) -> tuple[str, str]:
    return "--set", f"run.storage={writer.journal.path.parent}"


def test_the_same_key_twice_is_one_run(orch_process: RunOrch, before: journal.Writer) -> None:
    """While it goes on the second submit says so, makes nothing and ends well."""
    done = orch_process("submit", TINY, *KEY, *stored(before), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == "nightly"
    assert "run nightly already exists: submitted, 0 of 5 steps done" in done.stderr
    assert "Next: orch status nightly" in done.stderr
    assert len(journal.list_journals(before.journal.path.parent)) == 1


def test_it_ends_as_the_run_has_ended(orch_process: RunOrch, before: journal.Writer) -> None:
    """A script that submits again learns that the run has failed."""
    before.end_run("failed", reason("out of luck"))
    done = orch_process("submit", TINY, *KEY, *stored(before))
    assert done.returncode == 1
    assert "run nightly already exists: failed" in done.stdout


def test_a_key_is_of_one_plan(orch_process: RunOrch, before: journal.Writer) -> None:
    """Another plan under the same key is refused: it is not the run that is asked."""
    other = ("--set", "experiment.batch.sequences=64")
    done = orch_process("submit", TINY, *KEY, *stored(before), *other)
    assert done.returncode == 2
    assert "run nightly already exists, with another plan: choose another --key" in done.stderr


def test_a_key_is_of_one_number_of_steps(before: journal.Writer) -> None:
    """It would be told that all steps that it asked for are done."""
    storage = f"run.storage={before.journal.path.parent}"
    with pytest.raises(SpecError, match="nightly already exists, with --steps 5"):
        submitting.submit(
            ROOT / TINY, [storage], orch.SubmitOptions(key="nightly", steps=9, prove=False)
        )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("specs/studies/tiny_weak.yaml", *KEY), "a study has a key of its own"),
        (("specs/studies/tiny_weak.yaml", "--json"), "orch status STUDY --json"),
        ((TINY, "--dry-run", "--json"), "--dry-run goes with a screen"),
        ((TINY, "--no-prove", "--no-calibrate", "--key", "a/b"), "must be 1 to 100 of letters"),
    ],
)
def test_what_has_no_key_or_no_run_is_refused(
    orch_process: RunOrch, tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    """Each in one sentence, before anything is made."""
    done = orch_process("submit", *options, "--set", f"run.storage={tmp_path}")
    assert done.returncode == 2
    assert expected in done.stderr
    assert journal.list_journals(tmp_path) == []


def first_event_comes_late(method: str, name: str) -> None:
    """A bucket that is slow with what makes a run of a folder."""
    if method == "PUT" and name.endswith("events/000001.json"):
        time.sleep(1.0)


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_the_same_key_eight_times_at_once_is_one_run(
    kind: str, tmp_path: Path, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have seen that the key is free before the first takes it; each gets the same run, also
    where it is written object by object.
    """
    monkeypatch.setattr(copies, "_FRESH_S", 1.0)
    bucket_server.fault = first_event_comes_late
    where = str(tmp_path) if kind == "folder" else "s3://bucket/runs"
    everybody = threading.Barrier(8)
    driven: list[str] = []

    def create_together(storage: Path, request: RunRequest, key: str | None) -> Writer:
        everybody.wait(120)
        return journal.create_run(storage, request, key)

    def drive(recorded: Journal, *_: object) -> None:
        driven.append(recorded.key)
        journal.claim_run(recorded).end_run("succeeded")

    monkeypatch.setattr(submitting, "create_run", create_together)
    monkeypatch.setattr(submitting, "drive", drive)
    options = orch.SubmitOptions(prove=False, calibrate=False, steps=3, key="nightly")
    sets = (f"run.storage={where}", "tracking.tracker=tests.file_tracker:FileTracker")

    def submit() -> str:
        run = orch.submit(ROOT / TINY, sets, options, confirm=lambda _: True)
        assert run.state in ("submitted", "starting", "succeeded")
        return run.id

    with ThreadPoolExecutor(8) as pool:
        ids = {pending.result() for pending in [pool.submit(submit) for _ in range(8)]}
    assert len(ids) == 1
    assert driven == ["nightly"]
    assert [one.key for one in journal.list_journals(folder(where))] == ["nightly"]
