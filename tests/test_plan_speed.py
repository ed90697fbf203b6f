"""The cost of planning: ratios of times in one run (the least of several), and no framework."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from orchestrator.planning.many_slices import best_of_slices
from orchestrator.planning.nearest_specs import changed
from orchestrator.planning.search import search_request
from tests.bench.plan_speed import (
    CASES,
    price_one_by_one,
    seconds,
    seconds_of_imports_and_plan,
)
from tests.conftest import ROOT
from tests.example_specs import chosen, spec_of
from tests.journals import claimed_run

RUN_AND_LIST_MODULES = """
import sys
from orchestrator.cli import main
sys.argv = ["orch", *sys.argv[1:]]
try:
    main()
except SystemExit as finished:
    assert not finished.code, finished.code
print("modules:", *sys.modules)
"""


@pytest.mark.slow
def test_a_plan_costs_at_most_three_bare_imports() -> None:
    """`orch plan` of the four pods against `import numpy, yaml, jsonschema`."""
    ratios = []
    for _ in range(4):  # what else runs on the machine slows one more than the other for a while
        bare, plan = seconds_of_imports_and_plan(rounds=3)
        ratios.append(plan / bare)
        if ratios[-1] <= 3:
            return
    assert min(ratios) <= 3


def test_the_search_prices_arrays_not_rows() -> None:
    """All candidates of 71,680 chips take less time than 400 ledgers one by one."""
    request = search_request(CASES["405B, 8 pods of 16x20x28"])
    alone = min(seconds(partial(price_one_by_one, request, 400)) for _ in range(2))
    together = min(seconds(partial(chosen, request)) for _ in range(4))
    assert together < alone


def test_slices_searched_together_cost_half_of_each_alone() -> None:
    """Most meshes are never priced under all policies."""
    spec = spec_of("llama3-70b", pods=1)
    requests = [
        search_request(changed(spec, {"resources.topology": shape, "resources.pods": pods}))
        for shape in ("4x8x8", "8x8x8", "8x8x16")
        for pods in (2, 4, 8)
    ]
    together = min(seconds(partial(best_of_slices, requests)) for _ in range(2))
    alone = seconds(partial(list, map(chosen, requests)))
    assert together < alone / 2


def loaded(*command: str) -> set[str]:
    """The modules in the process of a command, and the packages that they are in."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_AND_LIST_MODULES, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = done.stdout.rpartition("modules:")[2].split()
    return {*names, *(".".join(name.split(".")[:parts]) for name in names for parts in (1, 2))}


def test_planning_loads_no_framework() -> None:
    """`orch plan` runs without jax, ray, mlflow or scipy in the process."""
    modules = loaded("plan", "specs/llama3_70b_4pod.yaml")
    assert modules >= {"click", "numpy", "orchestrator", "yaml"}
    assert (
        modules & {"orchestrator.drive", "orchestrator.journal", "orchestrator.tracking"} == set()
    )
    assert modules & {"jax", "jaxlib", "mlflow", "optax", "orbax", "ray", "scipy"} == set()


def test_planning_loads_less_than_half_of_the_project() -> None:
    """Half of what `orch plan` takes is imports, so each stands where it is needed."""
    lines = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): file.read_text().count("\n")
        for package in ("orchestrator", "trainers")
        for file in (ROOT / package).rglob("*.py")
    }
    modules = loaded("plan", "specs/llama3_70b_4pod.yaml")
    read = sum(count for name, count in lines.items() if name in modules)
    assert 0.1 * sum(lines.values()) < read < 0.4 * sum(lines.values())


def test_a_look_at_runs_loads_no_planning(tmp_path: Path) -> None:
    """Neither the arithmetic of plans nor what reads specs: these took most of `orch status`."""
    key = claimed_run(tmp_path).journal.key
    for command in (["runs"], ["status", key]):
        modules = loaded(*command, "--storage", str(tmp_path))
        assert "orchestrator.journal" in modules
        heavy = ("catalog", "evidence", "planning", "proving", "reading")
        assert (
            modules & {"yaml", "jsonschema", *(f"orchestrator.{name}" for name in heavy)} == set()
        )
