"""The smallest changes that CONTRIBUTING.md names, each made on a copy and planned."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

MODEL = """
[llama-mini]
source = "orch"
layers = 2
d_model = 128
d_ff = 384
heads = 8
kv_heads = 4
head_dim = 16
vocab = 512
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project's own package, to be changed."""
    forgotten = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "orchestrator", tmp_path / "orchestrator", ignore=forgotten)
    return tmp_path


def planned(copy: Path, *overrides: str) -> str:
    """The screen of a small plan, by the changed package."""
    options = [part for override in overrides for part in ("--set", override)]
    spec = str(ROOT / "specs" / "tiny_2pod.yaml")
    command = [sys.executable, "-m", "orchestrator", "plan", spec, *options]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_chip_is_a_file(copy: Path) -> None:
    """A relative's numbers; nothing is expected of a chip that has no published run."""
    chips = copy / "orchestrator" / "catalog" / "chips"
    shutil.copy(chips / "v5p.toml", chips / "v9p.toml")
    screen = planned(copy, "resources.chip=v9p", "resources.topology=2x2x2")
    assert "16 v9p chips, 2 pods of 2x2x2" in screen
    assert "80 % interval" not in screen


def test_a_model_is_a_table(copy: Path) -> None:
    """Its parameters are counted from its shape."""
    models = copy / "orchestrator" / "catalog" / "models.toml"
    models.write_text(models.read_text(encoding="utf-8") + MODEL, encoding="utf-8")
    assert "llama-mini, 524.9K parameters" in planned(copy, "experiment.model=llama-mini")


def test_a_policy_is_a_row(copy: Path) -> None:
    """What it keeps are tensors that the trainer's layer names already."""
    policies = copy / "orchestrator" / "network" / "rematerialization.py"
    before, full, rest = policies.read_text(encoding="utf-8").partition('        keeping("full")')
    row = '        keeping("keep_gate", "gate"),\n'
    policies.write_text(f"{before}{row}{full}{rest}", encoding="utf-8")
    assert "remat keep_gate" in planned(copy, "experiment.remat=keep_gate")
