"""Several processes: they stop after the same step, and save and restore one state together."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.processes import free_port
from tests.conftest import QUICK_XLA_FLAGS, ROOT
from tests.test_checkpoint import a_data_file, flip_a_byte
from tests.test_loop import STEPS, losses, run_toy, toy_plan_of
from trainers.checkpoint import step_folders

Outcome = dict[str, Any]


def two_processes(folder: Path, *, stop_at: int = STEPS + 1, compiled: str = "") -> list[Outcome]:
    """Run both; the outcome of each."""
    port = free_port()
    environment = os.environ | {"XLA_FLAGS": QUICK_XLA_FLAGS}  # the devices are its own
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.one_of_two",
                str(rank),
                str(port),
                folder,
                str(stop_at),
                compiled,
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0]
    return [json.loads(lines.splitlines()[-1]) for lines in outputs]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder in which processes share their programs."""
    return str(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def eight_steps(
    tmp_path_factory: pytest.TempPathFactory, compiled: str
) -> tuple[list[Outcome], Path]:
    """What two processes say of their first eight steps, and the folder that has them."""
    folder = tmp_path_factory.mktemp("two") / "run"
    return two_processes(folder, stop_at=7, compiled=compiled), folder


def test_two_processes_train_as_one(
    eight_steps: tuple[list[Outcome], Path], compiled: str, tmp_path: Path
) -> None:
    """One wants to stop: both do, after the same step; together they go on, around damage too. What
    the first run compiled, the next one has.
    """
    _, alone = run_toy(tmp_path / "alone", toy_plan_of(data=4))
    first, folder = eight_steps
    shutil.copytree(folder, tmp_path / "two")
    assert first[0]["losses"] == first[1]["losses"]
    assert [host["outcome"]["steps_done"] for host in first] == [8, 8]
    assert all(host["outcome"]["stopped"] for host in first)

    flip_a_byte(a_data_file(tmp_path / "two" / "checkpoints" / "8"))
    second = two_processes(tmp_path / "two", compiled=compiled)
    for host in second:
        opening = host["outcome"]["startup"]
        assert opening["steps_done"] == 6
        assert [skip["step"] for skip in opening["skipped"]] == [8]
        assert "has sha256" in opening["skipped"][0]["why"]
    together = first[0]["losses"][:6] + second[0]["losses"]
    assert together == pytest.approx(losses(alone), rel=1e-5)
    assert second[0]["losses"][:2] == first[0]["losses"][6:]
    assert '"jit_step"' in first[0]["compiled"]
    assert not any('"jit_step"' in host["compiled"] for host in second)


def test_one_process_compiles_for_both(
    eight_steps: tuple[list[Outcome], Path], tmp_path: Path
) -> None:
    """The losses are those of processes that compile for themselves, to the bit."""
    shared, _ = eight_steps
    alone = two_processes(tmp_path / "alone", stop_at=3)
    assert alone[0]["compiled"] == alone[1]["compiled"] != []
    assert (shared[0]["compiled"], shared[1]["compiled"]) == (alone[0]["compiled"], [])
    assert [host["losses"] for host in alone] == [shared[0]["losses"][:4]] * 2


def test_each_process_sums_the_shards_that_it_wrote(
    eight_steps: tuple[list[Outcome], Path],
) -> None:
    """Nobody reads those of the other; the primary reads the small files besides."""
    told, folder = eight_steps
    written = sorted((folder / "checkpoints" / "8").rglob("ocdbt.process_*/**/*"))
    assert {path.parts[-3 if path.parent.name == "d" else -2] for path in written} >= {
        "ocdbt.process_0",
        "ocdbt.process_1",
    }
    for rank, one in enumerate(told):
        read = [name for name in one["summed"] if "ocdbt.process_" in name]
        assert len(read) >= 4
        assert all(f"ocdbt.process_{rank}/" in name for name in read)
    others = [name for name in told[0]["summed"] if "ocdbt.process_" not in name]
    assert {Path(name).name for name in others} >= {"manifest.ocdbt", "_METADATA"}
    assert not [
        name for name in told[1]["summed"] if "manifest.ocdbt" in name and "process" not in name
    ]


def test_a_shard_without_a_sum_is_no_checkpoint(tmp_path: Path) -> None:
    """Its process may not have written all of it."""
    shard = tmp_path / "ocdbt.process_0" / "manifest.ocdbt"
    shard.parent.mkdir()
    shard.write_bytes(b"0")
    step_folders._sum_shards(tmp_path, 0)
    (tmp_path / "ocdbt.process_1").mkdir()
    (tmp_path / "ocdbt.process_1" / "manifest.ocdbt").write_bytes(b"1")
    with pytest.raises(FileNotFoundError, match="process_1"):
        step_folders._write_checksums(tmp_path, 2)
    step_folders._sum_shards(tmp_path, 1)
    late = shard.with_name("late")
    late.write_bytes(b"written after it was summed")
    with pytest.raises(OSError, match="has no sum"):
        step_folders._write_checksums(tmp_path, 2)
    late.unlink()
    step_folders._write_checksums(tmp_path, 2)
    assert step_folders.StepFolders(tmp_path.parent).fault(tmp_path.name) is None
    assert {path.name for path in tmp_path.glob("sha256*")} == {"sha256.json"}


def test_one_process_goes_on_from_two(
    eight_steps: tuple[list[Outcome], Path], tmp_path: Path
) -> None:
    """What two processes saved, one restores, on a mesh of another size."""
    _, alone = run_toy(tmp_path / "alone")
    shutil.copytree(eight_steps[1], tmp_path / "two")
    outcome, rest = run_toy(tmp_path / "two")
    assert outcome.startup.steps_done == 8
    assert losses(rest) == pytest.approx(losses(alone)[8:], rel=1e-5)
