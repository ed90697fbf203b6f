"""Finding, listing and removing the runs in a storage."""

from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.errors import RunIsLive, SpecError, UnknownName
from orchestrator.journal import files
from tests.journals import Clock, claimed_run, run_request


def test_a_run_is_found_by_key_prefix_or_path(tmp_path: Path) -> None:
    for key in ("alpha-1", "alpha-10", "beta-1"):
        journal.create_run(tmp_path, run_request(), key)
    assert journal.find_run(tmp_path, "alpha-1").key == "alpha-1"
    assert journal.find_run(tmp_path, "b").key == "beta-1"
    elsewhere = tmp_path / "nowhere"
    assert journal.find_run(elsewhere, str(tmp_path / "beta-1")).key == "beta-1"
    with pytest.raises(SpecError, match="ambiguous: alpha-1, alpha-10"):
        journal.find_run(tmp_path, "al")
    for unknown in ("gamma", "", str(tmp_path), str(tmp_path / "gamma")):
        with pytest.raises(UnknownName, match="known: alpha-1, alpha-10, beta-1"):
            journal.find_run(tmp_path, unknown)
    with pytest.raises(UnknownName) as caught:
        journal.find_run(elsewhere, "beta-1")
    assert str(caught.value) == (
        f"no run in {elsewhere} begins with 'beta-1'; there are no runs yet\nNext: orch submit SPEC"
    )


def test_runs_are_listed_newest_first_with_problems(tmp_path: Path) -> None:
    """A damaged folder hides no other."""
    for number in range(3):
        clock = Clock(now_s=1_000.0 + number)
        journal.create_run(tmp_path, run_request(), f"run-{number}", clock=clock)
    (tmp_path / "run-1/events/000001.json").write_bytes(b"{")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    runs, problems = journal.list_runs(tmp_path)
    assert [run.run for run in runs] == ["run-2", "run-0"]
    [problem] = problems
    assert "run-1: events/000001.json: " in problem


def test_a_removed_run_leaves_nothing(tmp_path: Path) -> None:
    writer = claimed_run(tmp_path)
    (writer.journal.path / "checkpoints" / "10").mkdir(parents=True)
    writer.end_run("failed")
    journal.remove_run(writer.journal)
    assert list(tmp_path.iterdir()) == []


def test_a_live_run_is_not_removed(tmp_path: Path) -> None:
    """Nor one whose driver may still come."""
    waiting = journal.create_run(tmp_path, run_request(), "waiting").journal
    for run_journal in (claimed_run(tmp_path).journal, waiting):
        with pytest.raises(RunIsLive, match="cancel it first"):
            journal.remove_run(run_journal)
        assert run_journal.run().problems == ()


def test_a_run_claimed_during_its_removal_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = claimed_run(tmp_path)
    writer.end_run("failed")
    real = files.hide

    def resumed_meanwhile(path: Path) -> Path:
        journal.claim_run(writer.journal, resumes=True)
        return real(path)

    monkeypatch.setattr(files, "hide", resumed_meanwhile)
    with pytest.raises(RunIsLive):
        journal.remove_run(writer.journal)
    assert writer.journal.run().state == "starting"
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
