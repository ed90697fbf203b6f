"""The shipped sweep, rehearsed on local clusters: the best trial is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import journal
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

SUBMITTED_S = 1500


def submit(storage: Path) -> str:
    """What `orch submit` of the sweep says, when it has succeeded."""
    command = [sys.executable, "-m", "orchestrator", "submit", "specs/studies/tiny_sweep.yaml"]
    command += ["--no-prove", "--no-calibrate", "--steps", "24", "--set", f"run.storage={storage}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SUBMITTED_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_sweep_runs_its_trials_and_names_the_best(tmp_path: Path) -> None:
    """The same command again runs nothing: all trials have ended."""
    text = submit(tmp_path)
    assert "Sweep: best is trial " in text
    [study] = journal.list_studies(tmp_path)
    runs = study.status().runs
    assert study.status().state == "succeeded"
    assert [run.state for run in runs] == ["succeeded"] * 5
    assert all((Path(run.journal) / "report.html").exists() for run in runs)
    submit(tmp_path)
    assert [run.id for run in study.status().runs] == [run.id for run in runs]
    sent = json.loads((study.path / "tracking.json").read_text())
    assert sent["run_id"]
