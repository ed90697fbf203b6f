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
    assert "80 % interval" not in screen[: screen.index("\n  goodput")]


def test_a_model_is_a_table(copy: Path) -> None:
    """Its parameters are counted from its shape."""
    models = copy / "orchestrator" / "catalog" / "models.toml"
    models.write_text(models.read_text(encoding="utf-8") + MODEL, encoding="utf-8")
    assert "llama-mini, 524.9K parameters" in planned(copy, "experiment.model=llama-mini")


def test_a_policy_is_a_row(copy: Path) -> None:
    """What it keeps are tensors that the trainer's layer names already."""
    policies = copy / "orchestrator" / "network" / "rematerialization.py"
    before, full, rest = policies.read_text(encoding="utf-8").partition('    "full": ')
    row = '    "keep_gate": _keeping("gate"),\n'
    policies.write_text(f"{before}{row}{full}{rest}", encoding="utf-8")
    assert "remat keep_gate" in planned(copy, "experiment.remat=keep_gate")


def edit(copy: Path, path: str, before: str, addition: str) -> None:
    """Insert lines in front of a line of the package."""
    file = copy / "orchestrator" / path
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, addition + before, 1), encoding="utf-8")


def test_an_mlp_is_its_matmuls(copy: Path) -> None:
    """A key of the spec selects them, and the plan counts their parameters."""
    edit(copy, "values/model.py", "    tied: bool", "    bilinear: bool = False\n")
    mlp = copy / "orchestrator" / "network" / "mlp.py"
    text = mlp.read_text(encoding="utf-8")
    assert "if model.gated else TENSORS[1:]" in text
    mlp.write_text(text.replace("if model.gated", "if model.gated or model.bilinear"), "utf-8")
    shape = "layers: 2, d_model: 128, d_ff: 512, heads: 8, kv_heads: 4, head_dim: 16, vocab: 512"
    plain, bilinear = (
        planned(copy, f"experiment.model={{{shape}, gated: false, bilinear: {kind}}}")
        for kind in ("false", "true")
    )
    assert "492.2K parameters" in plain
    assert "623.2K parameters" in bilinear  # one more matrix of 128 x 512 in each of two layers


def test_a_mesh_axis_is_an_entry_with_its_collective(copy: Path) -> None:
    """The spec names it, the search places it on the torus, the ledger has its line."""
    edit(copy, "values/spec.py", "    fsdp: Annotated", "    lane: codec.AxisSize | None = None\n")
    entry = '    Parallelism("lane", "ici"),\n'
    edit(copy, "network/mesh_axes.py", '    Parallelism("fsdp"', entry)
    edit(copy, "network/mesh_axes.py", '"fsdp"),\n    "length"', '"lane", ')
    edit(copy, "network/mesh_axes.py", '    "weights": ', '    "lane": ("lane",),\n')
    line = '        _reduction(layout, "lane reduction", GROUPS["lane"], payload, buckets),\n'
    edit(copy, "planning/collectives.py", '        _reduction(layout, "data scatter"', line)
    screen = planned(copy, "resources.mesh.lane=2")
    assert "lane 2 (y)" in screen
    assert "lane reduction ici lane" in " ".join(screen.split())


def test_a_mesh_axis_between_slices_is_an_entry(copy: Path) -> None:
    """Its size in the spec and its place in the table: slices share weights along it too."""
    edit(
        copy,
        "values/spec.py",
        "    fsdp_dcn: Annotated",
        "    layer_dcn: codec.AxisSize | None = None\n",
    )
    entry = '    Parallelism("layer_dcn", "dcn"),\n'
    edit(copy, "network/mesh_axes.py", '    Parallelism("fsdp_dcn"', entry)
    edit(copy, "network/mesh_axes.py", '"fsdp_dcn", "data", ', '"layer_dcn", ')
    edit(copy, "network/mesh_axes.py", '"fsdp_dcn")\n# Logical', '"layer_dcn", ')
    mesh = "resources.mesh={layer_dcn: 2, fsdp_dcn: 2}"
    screen = planned(copy, "resources.pods=8", mesh)
    assert "pods 2, layer_dcn 2, fsdp_dcn 2 dcn" in screen
    alone = planned(copy, "resources.pods=8", "resources.mesh={fsdp_dcn: 4}")
    [gather, same] = (
        next(line for line in text.splitlines() if "weight gather over dcn" in line).split()[-6:]
        for text in (screen, alone)
    )
    assert gather == same
