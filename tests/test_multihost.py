"""Several processes: they stop after the same step, and save and restore one state together."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.ports import free_port
from tests.conftest import ROOT
from tests.test_checkpoint import a_data_file, flip_a_byte
from tests.test_loop import STEPS, losses, run_toy, toy_plan_of

Told = dict[str, Any]


def two_processes(folder: Path, *, stop_at: int = STEPS + 1) -> list[Told]:
    """Run both; the outcome of each."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.one_of_two", str(rank), str(port), folder, str(stop_at)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0]
    return [json.loads(lines.splitlines()[-1]) for lines in outputs]


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """One wants to stop: both do, after the same step; together they go on, around damage too."""
    _, alone = run_toy(tmp_path / "alone", toy_plan_of(data=4))
    first = two_processes(tmp_path / "two", stop_at=7)
    assert first[0] == first[1] | {"outcome": first[0]["outcome"]}
    assert [one["outcome"]["steps_done"] for one in first] == [8, 8]
    assert all(one["outcome"]["stopped"] for one in first)

    flip_a_byte(a_data_file(tmp_path / "two" / "checkpoints" / "8"))
    second = two_processes(tmp_path / "two")
    for one in second:
        opening = one["outcome"]["startup"]
        assert opening["steps_done"] == 6
        assert [skip["step"] for skip in opening["skipped"]] == [8]
        assert "has sha256" in opening["skipped"][0]["why"]
    together = first[0]["losses"][:6] + second[0]["losses"]
    assert together == pytest.approx(losses(alone), rel=1e-5)
    assert second[0]["losses"][:2] == first[0]["losses"][6:]


def test_one_process_goes_on_from_two(tmp_path: Path) -> None:
    """What two processes saved, one restores, on a mesh of another size."""
    _, alone = run_toy(tmp_path / "alone")
    two_processes(tmp_path / "two", stop_at=5)
    outcome, rest = run_toy(tmp_path / "two")
    assert outcome.startup.steps_done == 6
    assert losses(rest) == pytest.approx(losses(alone)[6:], rel=1e-5)
