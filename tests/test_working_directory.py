"""The user's folder: no file there is taken for a module, but for a trainer that a spec names."""

import shutil
import sys
from importlib import metadata, util
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from tests import toy
from tests.conftest import ROOT, RunOrch

TRAP = """
import _io
with _io.open({taken!r}, "a") as file:
    file.write(__name__ + " ")
raise ImportError("this is the user's " + __name__)
"""


def _is_here(name: str) -> bool:
    return name in sys.builtin_module_names or PathFinder.find_spec(name) is not None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trainer, and a file for every module of Python and of what is installed.

    Whoever imports one of these writes its name into the file `taken`.
    """
    where = tmp_path / "mine"
    where.mkdir()
    names = {*sys.stdlib_module_names, *metadata.packages_distributions(), "orchestrator"}
    assert {"random", "typing", "json", "jax", "ray", "mlflow", "numpy", "orchestrator"} <= names
    # A package without a file of its own, such as `google`, gives way to a module in any folder; so
    # does one that this system lacks, such as `winreg`.
    names -= {"google", "librt", "mpl_toolkits", "opentelemetry", "orbax"}
    names = {name for name in names if name.isidentifier() and _is_here(name)}
    for name in names:
        (where / f"{name}.py").write_text(TRAP.format(taken=str(where / "taken")))
    shutil.copy(toy.__file__, where / "my_bigram.py")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return where


def submit(orch_process: RunOrch, folder: Path, *more: str) -> str:
    """What a rehearsal says that succeeds in that folder."""
    done = orch_process(
        "submit", str(ROOT / "specs/tiny_2pod.yaml"), "--steps", "2", *more,
        "--set", f"run.storage={folder.parent / 'runs'}",
        cwd=folder, timeout_s=400,
    )  # fmt: skip
    assert not (folder / "taken").exists(), (folder / "taken").read_text()
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stderr + done.stdout


def test_nothing_is_taken_from_it_on_hosts(folder: Path, orch_process: RunOrch) -> None:
    """What measures the machine, the host, the driver and the rank; they find the trainer."""
    changes = (
        "cluster.backend=hosts", "resources.pods=1", "run.trainer=my_bigram",
        "tracking.tracker=lines",
    )  # fmt: skip
    sets = [word for change in changes for word in ("--set", change)]
    said = submit(orch_process, folder, "--no-prove", *sets)
    assert "succeeded, 2 of 2 steps" in said


def test_nothing_is_taken_from_it_on_ray(folder: Path, orch_process: RunOrch) -> None:
    """Ray puts the working directory first in the module path of its workers."""
    said = submit(orch_process, folder, "--no-prove", "--no-calibrate")
    assert "succeeded, 2 of 2 steps" in said


@pytest.mark.skipif(util.find_spec("libtpu") is None, reason="libtpu exists for Linux on x86-64")
def test_nothing_is_taken_from_it_by_the_compiler(folder: Path, orch_process: RunOrch) -> None:
    """It finds the trainer there."""
    words = ("prove", str(ROOT / "specs/tiny_2pod.yaml"), "--set", "run.trainer=my_bigram")
    done = orch_process(*words, cwd=folder, timeout_s=300)
    assert not (folder / "taken").exists(), (folder / "taken").read_text()
    assert done.returncode == 0, done.stderr


def test_the_devices_are_looked_for_without_it(folder: Path, orch_process: RunOrch) -> None:
    done = orch_process("doctor", cwd=folder, timeout_s=300)
    assert not (folder / "taken").exists(), (folder / "taken").read_text()
    assert "devices" in done.stdout
