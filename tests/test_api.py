"""The Python API: as light as the planner, and the same values as the commands print."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import orchestrator as api
import orchestrator as orch
from orchestrator.errors import RunIsLive, SpecError
from orchestrator.planning.offers import PlanWithOdds
from orchestrator.run.progress import NotConfirmed
from orchestrator.values import codec
from orchestrator.values.run import Run
from tests.conftest import ROOT, RunOrch
from tests.journals import claimed_run
from tests.reports import finished_study
from tests.test_study import study_of

TINY, SERVING = "specs/tiny_2pod.yaml", "specs/serve_qwen3_32b_v6e.yaml"
HEAVY = {"jax", "jaxlib", "ray", "mlflow", "scipy", "rich", "click", "numpy", "msgspec"}


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_nothing() -> None:
    loaded = run_python("import orchestrator, sys; print(*{n.split('.')[0] for n in sys.modules})")
    assert set(loaded.split()) & HEAVY == set()


def test_planning_loads_no_framework() -> None:
    code = f"import orchestrator as orch, sys; orch.plan({TINY!r}); print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in run_python(code).split()}
    assert loaded & {"jax", "jaxlib", "ray", "mlflow", "scipy", "rich", "click"} == set()


def test_every_function_is_in_the_package_and_on_the_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in orch.__all__:
        assert callable(getattr(orch, name))
        assert f"`{name}(" in page or name in ("is_study", "OrchError", "SubmitOptions")


def test_the_page_names_parameters_as_the_functions_do() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    checked = 0
    for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE):
        for name, arguments in re.findall(r"`(\w+)\((.*?)\)`", row):
            known = inspect.signature(getattr(orch, name)).parameters
            named = {argument.partition("=")[0] for argument in arguments.split(", ") if argument}
            assert named <= set(known), name
            checked += 1
    assert checked > 50


def test_wrong_arguments_are_refused_in_a_sentence() -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: orch.export("foo", TINY), "known: ray, rayjob, jobset"),  # type: ignore[arg-type]
        (lambda: orch.explain(TINY, mfu=5), "mfu is 5, must be a share"),
        (lambda: orch.explain(TINY, mfu=0), "mfu is 0, must be a share"),
        (lambda: orch.plan(TINY, stage=0), "stage 0: tiny-2pod has no stages"),
        (lambda: orch.diff(TINY, TINY, stage=0), "stage 0: tiny-2pod has no stages"),
        (lambda: orch.plans(TINY, 0), "count is 0: at least 1"),
        (lambda: orch.prove_search(TINY, 0), "count is 0: at least 1"),
        (lambda: orch.score(without="x"), "known: document, group"),  # type: ignore[arg-type]
        (lambda: orch.score_gpus(without="x"), "known: document"),  # type: ignore[arg-type]
        (lambda: orch.serving_load(SERVING, seed=-1), "seed is -1, must be at least 0"),
    ]
    for call, says in calls:
        with pytest.raises(SpecError, match=says):
            call()


def test_the_notebook_example_runs() -> None:
    """It is ten lines of Python and prints the plan, two runners-up and the ledger."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    match = re.search(r"```python\n(import orchestrator.*?)```", page, re.DOTALL)
    assert match
    assert len(match[1].strip().splitlines()) <= 11
    assert run_python(match[1]).startswith("35,840 v5p chips, ")


@pytest.mark.parametrize(
    ("command", "value"),
    [
        (("plan", TINY), lambda: PlanWithOdds.of(orch.plan(TINY), None)),
        (("plan", TINY, "--alternatives", "2"),
         lambda: [PlanWithOdds.of(plan, None) for plan in orch.plans(TINY, 3)]),
        (("plan", TINY, TINY, "--set", "resources.pods=4"),
         lambda: orch.diff(TINY, orch.load(TINY, ["resources.pods=4"]))),
        (("explain", TINY, "--mfu", "0.5"), lambda: orch.explain(TINY, mfu=0.5)),
        (("plan", "specs/studies/tiny_weak.yaml"),
         lambda: orch.study("specs/studies/tiny_weak.yaml")),
    ],
)  # fmt: skip
def test_commands_print_what_the_api_returns(command, value, orch) -> None:  # type: ignore[no-untyped-def]
    """A plan with the odds of its deadline, where it has one."""
    done = orch(*command, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(codec.to_pretty_json(value()))


def test_a_plan_is_a_line_a_table_and_a_frame() -> None:
    """Its repr names what a person asks first; pandas is loaded only for a frame."""
    code = f"import orchestrator as orch, sys; p = orch.plan({TINY!r}); repr(p); p._repr_html_()"
    assert "pandas" not in run_python(f"{code}; print(*sys.modules)").split()
    plan = api.plan("specs/llama3_8b_v6e_2slice.yaml")
    assert repr(plan).startswith("<Plan llama3-8b-v6e-2slice ")
    assert len(repr(plan)) < 150
    assert re.search(r"512 v6e chips, 2 x 16x16; expected .* a step, MFU .* %", repr(plan))
    frame = plan.to_frame()
    sums = frame.groupby("ledger").value.sum()
    assert sums["memory"] == pytest.approx(plan.forecast.memory_bytes_per_device)
    assert sums["time"] == pytest.approx(plan.forecast.step_s.unoverlapped)
    assert sums["expected"] == pytest.approx(plan.forecast.step_s.expected)
    html = plan._repr_html_()
    assert html.count("<tr>") == len(frame) + 1
    assert "<td>matmuls</td>" in html


def test_studies_and_reports_are_frames(tmp_path: Path) -> None:
    """A row for each trial, with its settings as columns."""
    forecast = api.study("specs/studies/tiny_weak.yaml")
    line = "tiny-weak: weak scaling, 3 trials over resources.pods"
    assert repr(forecast) == f"<ScalingForecast {line}>"
    frame = forecast.to_frame()
    assert list(frame.pods) == [trial.planned.pods for trial in forecast.trials if trial.planned]
    assert frame.efficiency[0] == 1
    done = finished_study(tmp_path, study_of(1, 2), lambda *_: 0.5)
    assert list(api.report(done.key, tmp_path).to_frame().step_s) == [0.5, 0.5]
    [report, _] = api.compare([done.key], tmp_path)
    assert len(repr(report)) < 120
    assert dict(report.to_frame().iloc[0])["step_s"] == 0.5


def test_runs_are_looked_at_and_removed(orch: RunOrch, tmp_path: Path) -> None:
    """As the commands do; a run that is driven stays."""
    writer = claimed_run(tmp_path, key="it")
    at = ("--storage", str(tmp_path))
    [listed] = json.loads(orch("runs", *at, "--json").stdout)
    [run] = api.runs(tmp_path)
    assert (listed["run"], listed["state"]) == (run.run, run.state)
    [result] = api.cancel("it", tmp_path)
    assert isinstance(result.after, Run)
    with pytest.raises(RunIsLive):
        api.remove("it", tmp_path)
    writer.end_run("failed")
    with pytest.raises(NotConfirmed):
        api.remove("it", tmp_path, confirm=lambda doomed: not isinstance(doomed, Run))
    api.remove("it", tmp_path)
    assert api.runs(tmp_path) == []


def test_nothing_that_takes_chips_runs_unconfirmed(tmp_path: Path) -> None:
    """Without `confirm` no cluster is contacted."""
    options = api.SubmitOptions(address="127.0.0.1:1", prove=False)
    with pytest.raises(SpecError, match="needs --yes where nobody can be asked"):
        api.submit(TINY, [f"run.storage={tmp_path}"], options)
    assert list(tmp_path.iterdir()) == []


def test_overrides_change_a_file_alone() -> None:
    with pytest.raises(TypeError):
        api.plan(api.load(TINY), ["resources.pods=4"])
