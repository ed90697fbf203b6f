"""`orch submit --key`: the same key twice is one run."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

import orchestrator as orch_api
from orchestrator import journal, reading
from orchestrator.errors import SpecError
from orchestrator.journal.ownership import RunRequest, Writer
from orchestrator.journal.run_journal import Journal
from orchestrator.planning.planner import make_plan
from orchestrator.run import submit as submitting
from orchestrator.storage import copies
from orchestrator.storage.addresses import folder
from orchestrator.values.run import EndState, Run
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
            ROOT / TINY, [storage], orch_api.SubmitOptions(key="nightly", steps=9, prove=False)
        )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("specs/studies/tiny_weak.yaml", *KEY), "a study has a key of its own"),
        (("specs/studies/tiny_weak.yaml", "--resume", "lost"), "a study has a key of its own"),
        ((TINY, "--resume", "lost"), "give it with --key"),
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


@pytest.mark.parametrize(
    ("state", "which", "goes_on", "code"),
    [
        ("lost", "lost", True, 0),
        ("lost", "stopped", True, 0),
        ("failed", "lost", False, 4),
        ("cancelled", "lost", False, 4),
        ("failed", "stopped", True, 0),
        ("cancelled", "stopped", True, 0),
        ("succeeded", "stopped", False, 0),
    ],
)
def test_what_restarts_a_submit_goes_on_with_its_run(
    orch: RunOrch,
    tmp_path: Path,
    state: EndState | Literal["lost"],
    which: str,
    goes_on: bool,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run whose driver is lost goes on with its retry budgets; one that failed or was cancelled
    only where a person submits it again; and one that has succeeded is left alone.
    """
    loaded = reading.load(ROOT / TINY)
    made = RunRequest(spec=loaded, plan=make_plan(loaded), steps=5)
    writer = journal.create_run(tmp_path, made, "nightly", clock=lambda: 0.0)  # long unclaimed
    if state != "lost":
        writer.end_run(state, reason("as it went"))
    assert writer.journal.run().state == state
    resumed: list[bool] = []

    def resume(*_: object, takes_over: bool, **__: object) -> Run:
        resumed.append(takes_over)
        return replace(writer.journal.run(), state="succeeded")

    monkeypatch.setattr(submitting, "resume", resume)
    done = orch("submit", TINY, *KEY, *stored(writer), "--resume", which)
    assert (done.returncode, resumed) == (code, [state == "lost"] if goes_on else []), done.stderr
    assert ("run nightly already exists" in done.stdout) == (not goes_on)
    other = ("--set", "experiment.optimizer.peak_lr=0.1")
    done = orch("submit", TINY, *KEY, *stored(writer), "--resume", which, *other)
    assert done.returncode == 2
    assert "or go on with the plan that it has: orch resume nightly --storage" in done.stderr


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_run_that_is_cancelled_meanwhile_is_over(
    tmp_path: Path,
    asked_before: bool,
    before: journal.Writer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A submit that finds its run alive follows it. Slurm's limit of time may have asked it to
    stop before; whoever asks later means this submit, too.
    """
    if asked_before:
        journal.request_cancel(before.journal)
    resumed: list[str] = []

    def watch(*_: object) -> Run:
        before.end_run("cancelled", reason("somebody asked"))
        return before.journal.run()

    def resume(run: str, *_: object, **__: object) -> Run:
        resumed.append(run)
        return before.journal.run()

    monkeypatch.setattr(submitting, "watch", watch)
    monkeypatch.setattr(submitting, "resume", resume)
    options = orch_api.SubmitOptions(prove=False, key="nightly", resume="stopped")
    submitting.submit(ROOT / TINY, [f"run.storage={tmp_path}"], options)
    assert resumed == (["nightly"] if asked_before else [])


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
    options = orch_api.SubmitOptions(prove=False, calibrate=False, steps=3, key="nightly")
    sets = (f"run.storage={where}", "tracking.tracker=tests.file_tracker:FileTracker")

    def submit() -> str:
        run = orch_api.submit(ROOT / TINY, sets, options, confirm=lambda _: True)
        assert run.state in ("submitted", "starting", "succeeded")
        return run.id

    with ThreadPoolExecutor(8) as pool:
        ids = {pending.result() for pending in [pool.submit(submit) for _ in range(8)]}
    assert len(ids) == 1
    assert driven == ["nightly"]
    assert [found.key for found in journal.list_journals(folder(where))] == ["nightly"]
