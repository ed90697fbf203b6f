"""Recording under kills: SIGKILL at every commit leaves each point once. And what it costs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.records import empty_database

__all__ = ["empty_database"]


@pytest.mark.slow
def test_a_kill_between_any_two_writes_misses_and_doubles_nothing(
    tmp_path: Path, empty_database: Path
) -> None:
    """Whoever records next finishes what was begun."""
    command = [
        sys.executable,
        "-m",
        "tests.chaos.tracking_kills",
        str(tmp_path),
        str(empty_database),
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["faults"] == []
    assert result["deaths"] > 10


@pytest.mark.slow
def test_the_bench_of_recording_runs_to_its_end() -> None:
    """It says what a step pays, and how long many of them take; how little is not asked here."""
    command = [sys.executable, "-m", "tests.bench.record_cost", "30", "2000"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    print(done.stdout)
    assert "2,000 steps           recorded in" in done.stdout, done.stderr
