"""A trainer of one's own, from outside this repository: planned, trained, proved, refused."""

import json
import os
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from tests import toy
from tests.conftest import ROOT, RunOrch
from tests.trainer_plans import but_slow

SPEC = "specs/tiny_2pod.yaml"
REGISTERED = {
    "METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n",
    "entry_points.txt": "[orch.trainers]\nregistered = mine.bigram\n",
}
HOLDER = """
import types

from mine import bigram

trainer = types.SimpleNamespace(program=bigram.program)
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package `mine` with the trainer `mine.bigram`, registered as `registered`."""
    folder = tmp_path / "site" / "mine"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    shutil.copy(toy.__file__, folder / "bigram.py")
    shutil.copy(toy.__file__, folder.parent / "one_file.py")
    (folder / "holder.py").write_text(HOLDER)
    described = folder.parent / "mine-1.0.dist-info"
    described.mkdir()
    for name, text in REGISTERED.items():
        (described / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder.parent), str(ROOT)]))
    return folder


@pytest.mark.parametrize("name", ["mine.bigram", "mine.holder:trainer", "registered", "one_file"])
def test_a_plan_says_that_the_ledger_does_not_describe_it(name: str, orch_process: RunOrch) -> None:
    """Found by module, by attribute and by entry point; the screen warns, whatever its name."""
    planned = orch_process("plan", SPEC, "--set", f"run.trainer={name}", "--json")
    plan = json.loads(planned.stdout)
    assert (plan["trainer"], plan["ledger_describes_trainer"]) == (name, False)
    if name != "mine.bigram":
        return
    screen = orch_process("plan", SPEC, "--set", f"run.trainer={name}").stdout
    lines = screen.splitlines()
    assert lines[1].startswith("warning: memory, time and cost of trainer")
    headings = [line for line in lines if line.endswith(", of trainer llama")]
    assert len(headings) == 3
    assert not [line for line in lines if line.startswith(("  fits", "  time   "))]


@pytest.mark.parametrize("name", ["json", "nowhere", "mine.nowhere"])
def test_a_module_that_is_no_trainer_is_refused(name: str, orch: RunOrch) -> None:
    """Without a program, or not there: the message names what would be one."""
    refused = orch("plan", SPEC, "--set", f"run.trainer={name}")
    assert refused.returncode == 2
    assert "run.trainer: is " in refused.stderr
    assert "known: llama, mlp" in refused.stderr


def test_planning_does_not_import_it(package: Path, orch_process: RunOrch) -> None:
    """A trainer may need JAX or devices; a plan needs neither."""
    for file in package.glob("*.py"):
        file.write_text("raise RuntimeError('imported')\n")
    assert orch_process("plan", SPEC, "--set", "run.trainer=mine.bigram").returncode == 0


@pytest.mark.parametrize(
    "name",
    but_slow(["nonsense", "mine", "mine.absent", "mine.bigram.deeper"], ["nonsense", "mine"]),
)
def test_an_unknown_trainer_is_refused(name: str, orch_process: RunOrch) -> None:
    """Exit 2; the hint lists the trainers that have a name, installed ones too."""
    done = orch_process("plan", SPEC, "--set", f"run.trainer={name}")
    assert done.returncode == 2
    assert "run.trainer" in done.stderr
    assert "known: llama, mlp, registered" in done.stderr


def test_the_built_in_ones_are_described_or_not(orch: RunOrch) -> None:
    """The ledger describes the program of llama, and of no other trainer."""
    plans = {
        name: json.loads(orch("plan", SPEC, "--set", f"run.trainer={name}", "--json").stdout)
        for name in ("llama", "mlp")
    }
    assert {name: plan["ledger_describes_trainer"] for name, plan in plans.items()} == {
        "llama": True,
        "mlp": False,
    }
    assert plans["llama"]["digest"] == plans["mlp"]["digest"]


def test_it_trains(tmp_path: Path) -> None:
    """`python -m trainers` runs it on emulated devices, and it learns."""
    command = [sys.executable, "-m", "trainers", SPEC, str(tmp_path / "run")]
    done = subprocess.run(
        [*command, "--trainer", "mine.bigram", "--emulate", "--steps", "3"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "steps-000.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["index"] for step in steps] == [0, 1, 2]
    assert all("tokens_mean" in step["trainer_metrics"] for step in steps)


def test_a_program_that_raises_is_named(package: Path, tmp_path: Path) -> None:
    """The trainer, and what it raised."""
    (package / "broken.py").write_text("def program(plan, mesh):\n    raise KeyError('width')\n")
    command = [sys.executable, "-m", "trainers", SPEC, str(tmp_path / "run"), "--emulate"]
    done = subprocess.run(
        [*command, "--trainer", "mine.broken"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "program() of trainer mine.broken raised KeyError: 'width'" in done.stderr


def test_a_module_without_a_program_is_no_trainer(tmp_path: Path) -> None:
    """Known by its name, refused where it is imported."""
    command = [sys.executable, "-m", "trainers", SPEC, str(tmp_path / "run"), "--emulate"]
    done = subprocess.run(
        [*command, "--trainer", "mine.holder"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "run.trainer: mine.holder has no function program(plan, mesh)" in done.stderr


@pytest.mark.skipif(util.find_spec("libtpu") is None, reason="libtpu exists for Linux on x86-64")
def test_it_is_proved(orch_process: RunOrch) -> None:
    """Compiled as any trainer is; no figure of a forecast is compared with its own."""
    proved = orch_process(
        "prove", SPEC, "--set", "run.trainer=mine.bigram", "--json", timeout_s=300
    )
    proof = json.loads(proved.stdout)
    assert (proof["trainer"], proof["fits"], proof["agrees"]) == ("mine.bigram", True, None)
    assert proof["peak_hbm_bytes_per_device"] > 0
    assert proof["forecast_peak_hbm_bytes_per_device"] is None
    places = {place for crossing in proof["crossings"] for place in crossing["places"]}
    assert places
    assert all(place.startswith("mine/bigram.py:") for place in places)


ANY_PROGRAM = """
import jax
from jax.sharding import NamedSharding, PartitionSpec


def build(plan, mesh):
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    x = jax.ShapeDtypeStruct((1024, 512), jax.numpy.bfloat16, sharding=rows)

    def gram(x):
        whole = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec()))
        return x @ whole.T

    return jax.jit(gram, out_shardings=rows).lower(x)
"""


@pytest.fixture
def any_program(package: Path) -> str:
    """A function that lowers a program which is no trainer's."""
    (package / "any.py").write_text(ANY_PROGRAM)
    return "mine.any:build"


@pytest.mark.skipif(util.find_spec("libtpu") is None, reason="libtpu exists for Linux on x86-64")
def test_any_program_is_proved(any_program: str, orch_process: RunOrch) -> None:
    """Memory, collectives, FLOPs and schedule of what the ledger knows nothing of."""
    proved = orch_process(
        "prove", SPEC, "--trainer", any_program, "--json", timeout_s=300
    )  # fmt: skip
    proof = json.loads(proved.stdout)
    plan = json.loads(orch_process("plan", SPEC, "--json").stdout)
    ways = plan["mesh"]["data"] * plan["mesh"]["fsdp"]
    assert (proof["trainer"], proof["agrees"], proof["crossings"]) == (any_program, None, [])
    assert proof["flops_per_device"] == 2 * 1024 * 1024 * 512 / ways
    [gather] = [
        collective for collective in proof["collectives"] if collective["kind"] == "all-gather"
    ]
    assert gather["bytes_per_step"] == 1024 * 512 * 2 * (ways - 1) / ways
    schedule = proof["schedule"]
    assert schedule["products_s"] > 0
    assert schedule["products"][0]["line"].startswith("mine/any.py:")
    assert any(collective["kind"] == "all-gather" for collective in schedule["collectives"])


def test_any_program_is_not_trained(any_program: str, tmp_path: Path) -> None:
    """It has no state, no batch and no loss."""
    command = [sys.executable, "-m", "trainers", SPEC, str(tmp_path / "run"), "--emulate"]
    done = subprocess.run(
        [*command, "--trainer", any_program],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"{any_program} returns no Program" in done.stderr
