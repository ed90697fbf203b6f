"""The rooms: imports point one way, commands alone speak, planning loads no framework."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import rooms
from tests.conftest import ROOT

PLAN_AND_LIST_MODULES = """
import sys
from orchestrator.cli import main
sys.argv = ["orch", "plan", "specs/llama3_70b_4pod.yaml"]
try:
    main()
except SystemExit as finished:
    assert not finished.code, finished.code
print("modules:", *sorted({name.split(".")[0] for name in sys.modules}))
"""


def test_every_import_keeps_to_its_room() -> None:
    """Imports point one way, and each outside package is known to its own room alone."""
    assert rooms.violations(ROOT) == []


def test_the_rules_are_held_against_every_room_that_stands() -> None:
    """The reading is not vacuous: each room is in the table, and known imports are found."""
    files = rooms.sources(ROOT, "orchestrator", "trainers")
    standing = {rooms.room_of(rooms.module_name(ROOT, path)) for path in files} - {""}
    assert standing <= rooms.ROOMS.keys()
    assert standing >= {"catalog", "cli", "errors", "plan", "spec", "types", "trainers"}
    edges = {
        (rooms.room_of(edge.importer), edge.imported.split(".")[0])
        for path in files
        for edge in rooms.imports_of(ROOT, path)
    }
    assert edges >= {("cli", "click"), ("spec", "yaml"), ("trainers", "jax")}
    assert edges >= {(room, "orchestrator") for room in ("cli", "plan", "spec", "trainers")}


def test_the_table_points_one_way() -> None:
    """No room can reach itself through the rooms that it may import."""
    for room, allowed in rooms.ROOMS.items():
        reached = set(allowed)
        while grown := {far for near in reached for far in rooms.ROOMS[near]} - reached:
            reached |= grown
        assert room not in reached


PLANTED = {
    "absolute": ("orchestrator/plan/x.py", "import ray\n", "ray is known to"),
    "dotted": ("orchestrator/plan/x.py", "import ray.train.v2 as t\n", "ray is known to"),
    "from": ("orchestrator/tracking/mlflow/x.py", "from yaml import compose\n", "yaml is known to"),
    "upwards": ("orchestrator/catalog/x.py", "from orchestrator.plan import y\n", "catalog may"),
    "stranger": ("orchestrator/spec/x.py", "from orchestrator.launch import y\n", "spec may"),
    "whole room": ("orchestrator/spec/x.py", "from orchestrator import launch\n", "spec may"),
    "relative": ("orchestrator/spec/x.py", "from ..launch import y\n", "spec may"),
    "relative room": ("orchestrator/spec/x.py", "from .. import launch\n", "spec may"),
    "in a package itself": (
        "orchestrator/plan/__init__.py",
        "from ..cli import y\n",
        "plan may",
    ),
    "file as a room": ("orchestrator/report.py", "import orchestrator.render\n", "report may"),
    "in a function": ("orchestrator/plan/x.py", "def f():\n    import jax\n", "jax is known to"),
    "for types": (
        "orchestrator/prove/parent.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax\n",
        "jax is known to",
    ),
    "by a string": (
        "orchestrator/plan/x.py",
        "import importlib\nimportlib.import_module('mlflow.entities')\n",
        "mlflow is known to",
    ),
    "trainer upwards": ("trainers/llama/x.py", "from orchestrator.journal import y\n", "trainers"),
    "a trainer": ("orchestrator/cli.py", "import trainers.llama\n", "trainers is known to"),
    "root from root": ("orchestrator/drive.py", "import orchestrator.cli\n", "drive may"),
    "effects": ("orchestrator/plan/x.py", "from pathlib import Path\n", "needs no pathlib"),
    "unheard of": ("orchestrator/plan/x.py", "import torch\n", "no room knows torch"),
    "no such room": ("orchestrator/attic.py", "import orchestrator.plan\n", "no such room: attic"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_violation_is_caught(kind: str, tmp_path: Path) -> None:
    """Whatever the form of the import, the one bad line is found, with its file and its reason."""
    file, source, reason = PLANTED[kind]
    plant(tmp_path, file, source)
    [found] = rooms.violations(tmp_path)
    assert found.startswith(f"{file}:{source.count(chr(10))}: ")
    assert reason in found


LEGAL = {
    "orchestrator/cli.py": "import click\nfrom orchestrator import launch, spec\n",
    "orchestrator/drive.py": "import trainers.llama\nfrom orchestrator.tracking.mlflow import y\n",
    "orchestrator/launch/x.py": "import ray\nfrom orchestrator.journal import y\n",
    "orchestrator/plan/x.py": "import math\nimport numpy\nfrom . import y\n",
    "orchestrator/prove/compile_process.py": "import jax\nimport trainers\n",
    "orchestrator/tracking/mlflow/x.py": "import mlflow\nimport os\n",
    "trainers/llama/x.py": "import jax, optax\nfrom orchestrator.plan.flops import y\n",
}


def test_legal_imports_pass(tmp_path: Path) -> None:
    """The rules let through what each room is for, in rooms that do not stand yet too."""
    for file, source in LEGAL.items():
        plant(tmp_path, file, source)
    assert rooms.violations(tmp_path) == []


def plant(root: Path, file: str, source: str) -> None:
    """Write a source file below a root."""
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")


def test_only_commands_speak() -> None:
    """No room below the roots prints, exits, or takes hold of the standard streams."""
    assert [
        f"{path.relative_to(ROOT)}:{line}"
        for path in rooms.sources(ROOT, "orchestrator", "trainers")
        if path.stem != "__main__"
        and not rooms.is_within(rooms.module_name(ROOT, path), rooms.SPEAKERS)
        for line in rooms.speech_of(path)
    ] == []


@pytest.mark.parametrize("line", ["print(1)", "raise SystemExit(2)", "sys.exit(1)", "sys.stdout"])
def test_speech_is_heard(line: str, tmp_path: Path) -> None:
    """Printing and exiting are found inside functions too."""
    plant(tmp_path, "x.py", f"import sys\n\ndef f():\n    {line}\n")
    assert rooms.speech_of(tmp_path / "x.py") == [4]


def test_planning_loads_no_framework() -> None:
    """`orch plan` runs to its end without jax, ray or mlflow in the process."""
    done = subprocess.run(
        [sys.executable, "-c", PLAN_AND_LIST_MODULES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines()[-1].split()[1:])
    assert "numpy" in loaded
    assert loaded & {"jax", "jaxlib", "ray", "mlflow", "trainers"} == set()
