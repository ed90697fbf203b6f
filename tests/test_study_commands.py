"""The commands about runs, given a study."""

import json
from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.journal.listing import StudyJournal
from tests.conftest import RunOrch
from tests.journals import claimed_run
from tests.reports import finished_study
from tests.test_journal_studies import opened_study
from tests.test_study import study_of


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> StudyJournal:
    """A study of two trials, both done."""
    return finished_study(tmp_path_factory.mktemp("done"), study_of(1, 2), lambda *_: 0.5, steps=4)


def at(study: StudyJournal) -> tuple[str, str]:
    return "--storage", str(study.storage)


def test_orch_runs_lists_the_runs_of_a_study_below_it(orch: RunOrch, tmp_path: Path) -> None:
    study = opened_study(tmp_path)
    assert orch("runs", *at(study)).stdout.splitlines()[1].split()[:3] == [
        study.key,
        "stopped",
        "0",
    ]
    claimed_run(tmp_path, key="before")
    for number in (1, 2):
        run = journal.start_trial(study, number, 1).run
        claimed_run(tmp_path, key=run, study=study.key).end_run("succeeded")
        claimed_run(tmp_path, key=f"after-{number}")
    table, _ = orch("runs", *at(study)).stdout.split("\n\n")
    shown = [line.split()[0] for line in table.splitlines()[1:]]
    trials = [f"{study.key}-trial-{number}.1" for number in (2, 1)]
    assert shown == ["after-2", study.key, *trials, "after-1", "before"]
    listed = json.loads(orch("runs", *at(study), "--json").stdout)
    assert [entry["run"] for entry in listed if entry["study"] == study.key] == trials


def test_the_state_of_a_study_follows_from_its_runs(tmp_path: Path) -> None:
    """A trial that failed and then succeeded counts once."""
    study = opened_study(tmp_path)
    states = []
    for number, end in ((1, "failed"), (1, "succeeded"), (2, "succeeded")):
        writer = claimed_run(
            tmp_path, key=journal.start_trial(study, number, 1).run, study=study.key
        )
        states.append(study.status().state)
        writer.end_run(end)  # type: ignore[arg-type]
        states.append(study.status().state)
    assert states == ["running", "stopped", "running", "stopped", "running", "succeeded"]
    found = study.status()
    assert (found.done, found.total, len(found.runs)) == (2, 2, 3)


def test_orch_status_shows_a_study(orch: RunOrch, done: StudyJournal) -> None:
    output = orch("status", done.key[:-2], *at(done))
    assert output.returncode == 0, output.stderr
    first, *_ = lines = output.stdout.splitlines()
    assert first.startswith(f"{done.key}: succeeded, 2 of 2 runs done")
    assert [line.split()[0] for line in lines[3:5]] == [f"{done.key}-trial-{n}.1" for n in (1, 2)]
    assert any("EFFICIENCY" in line for line in lines)
    assert lines[-1] == f"Next: orch report {done.key} {' '.join(at(done))}"
    status = json.loads(orch("status", done.key, *at(done), "--json").stdout)
    assert (status["study"], status["state"], status["done"]) == (done.key, "succeeded", 2)


def test_orch_cancel_stops_the_live_run_of_a_study(orch: RunOrch, tmp_path: Path) -> None:
    study = opened_study(tmp_path)
    idle = orch("cancel", study.key, *at(study))
    assert idle.stdout.startswith(f"{study.key}: no run is active. Nothing to cancel.\nNext: ")
    claimed_run(tmp_path, key=journal.start_trial(study, 1, 1).run, study=study.key).end_run(
        "succeeded"
    )
    writer = claimed_run(tmp_path, key=journal.start_trial(study, 2, 1).run, study=study.key)
    result = orch("cancel", study.key, *at(study))
    assert result.stdout.startswith(f"{writer.journal.key}: stop requested.\n")
    request = writer.heartbeat()
    assert request is not None
    assert not request.at_once


def test_orch_rm_removes_a_study_with_its_runs(orch: RunOrch, tmp_path: Path) -> None:
    study = opened_study(tmp_path)
    claimed_run(tmp_path, key="other").end_run("failed")
    claimed_run(tmp_path, key=journal.start_trial(study, 1, 1).run, study=study.key).end_run(
        "succeeded"
    )
    writer = claimed_run(tmp_path, key=journal.start_trial(study, 2, 1).run, study=study.key)
    refused = orch("rm", study.key, *at(study), "--yes")
    assert refused.returncode == 1
    why = f"error: study {study.key}: a run of it goes on\nNext: orch cancel "
    assert refused.stderr.startswith(why)
    writer.end_run("failed")
    unasked = orch("rm", study.key, *at(study))
    assert (unasked.returncode, "needs --yes" in unasked.stderr) == (2, True)
    assert len(list(tmp_path.iterdir())) == 4
    removed = orch("rm", study.key, *at(study), "--yes")
    assert removed.stdout == f"removed {study.key} and its 2 runs\n"
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_single_run_of_a_study_can_be_removed(orch: RunOrch, tmp_path: Path) -> None:
    study = opened_study(tmp_path)
    run = journal.start_trial(study, 1, 1).run
    claimed_run(tmp_path, key=run).end_run("succeeded")
    assert orch("rm", run, *at(study), "--yes").stdout == f"removed {run}\n"
    assert study.status().done == 0
    assert journal.start_trial(study, 1, 1).run == f"{run}.2"


def test_orch_compare_says_that_a_study_has_no_run_yet(orch: RunOrch, tmp_path: Path) -> None:
    study = opened_study(tmp_path)
    shown = orch("compare", study.key, *at(study))
    assert (shown.returncode, "no run" in shown.stdout) == (0, True)
    assert json.loads(orch("compare", study.key, *at(study), "--json").stdout) == []
