"""One stage of a spec alone, and runs in stages side by side: plan, explain, prove, compare."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import orchestrator as orch
from orchestrator.errors import SpecError
from orchestrator.planning.diff_plans import PlanDiff
from orchestrator.planning.plan_warnings import interval_warnings
from orchestrator.planning.planner import make_plan
from orchestrator.proving.compiled import CacheEntry
from orchestrator.proving.verdict import save_program
from orchestrator.reading.load import load
from orchestrator.values.plan import Plan
from tests.conftest import RunOrch
from tests.proofs import as_forecast
from tests.staged import STAGED, staged_plan, staged_spec

ONE_STAGE = """\
name: one
experiment: {model: llama-tiny, tokens: 1M, batch: {sequences: 8, length: 64}}
resources: {chip: v5e, topology: 2x2}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "staged.yaml").write_text(STAGED, encoding="utf-8")
    return tmp_path / "staged.yaml"


@pytest.fixture
def plan(path: Path) -> Plan:
    return make_plan(load(path))


def prove_nothing_but(plan: Plan) -> None:
    """Put programs that are as forecast into the cache, one for each stage."""
    for stage in plan.stages:
        save_program(stage, CacheEntry(compiled=as_forecast(stage), refusal=None))


def test_a_stage_has_the_plan_that_it_has_in_its_run(path: Path, plan: Plan) -> None:
    """Its runners-up have its place as well."""
    first, *others = orch.plans(path, 3, stage=2)
    assert first == plan.stages[1]
    assert others
    assert {other.stage for other in others} == {first.stage}
    assert {other.digest for other in others}.isdisjoint({first.digest})


@pytest.mark.parametrize("number", [4, -1])
def test_a_stage_that_is_not_there_is_refused(number: int, path: Path) -> None:
    with pytest.raises(SpecError, match="stages 1 to 3"):
        orch.plan(path, stage=number)


def test_a_spec_without_stages_has_none(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no stages"):
        orch.plan(staged_spec(tmp_path, ONE_STAGE), stage=1)


@pytest.mark.parametrize("command", ["plan", "explain", "prove"])
def test_commands_look_at_one_stage(command: str, path: Path, plan: Plan, orch: RunOrch) -> None:
    """The next command is about the same stage, but for the run, which has all."""
    prove_nothing_but(plan)
    done = orch(command, str(path), "--stage", "3")
    assert done.returncode == 0, done.stderr
    assert "stage 3 of 3" in done.stdout
    following = done.stdout.splitlines()[-1]
    assert following.endswith("--stage 3") == (command != "prove")


def test_every_stage_is_proved_and_the_command_ends_well(
    path: Path, plan: Plan, orch: RunOrch
) -> None:
    prove_nothing_but(plan)
    done = orch("prove", str(path), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [entry["plan_digest"] for entry in found] == [stage.digest for stage in plan.stages]


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--alternatives", "2"),
        ("prove", "--search-remat"),
        ("prove", "--html", "schedule.html"),
    ],
)
def test_what_is_about_one_program_asks_for_its_stage(
    arguments: tuple[str, ...], path: Path, orch: RunOrch
) -> None:
    command, *options = arguments
    done = orch(command, str(path), *options)
    assert done.returncode == 2
    assert "--stage N" in done.stderr


def test_the_page_of_a_schedule_names_its_stage(
    path: Path, plan: Plan, orch: RunOrch, tmp_path: Path
) -> None:
    prove_nothing_but(plan)
    page = tmp_path / "schedule.html"
    done = orch("prove", str(path), "--stage", "2", "--html", str(page))
    assert done.returncode == 0, done.stderr
    assert "stage 2 of 3" in page.read_text(encoding="utf-8")


def test_two_programs_are_compared_stage_by_stage(path: Path, plan: Plan, orch: RunOrch) -> None:
    done = orch("prove", str(path), str(path))
    assert done.returncode == 2
    assert "--stage N" in done.stderr
    prove_nothing_but(plan)
    done = orch("prove", str(path), str(path), "--stage", "3", "--json")
    assert done.returncode == 0, done.stderr
    digests = {proof["plan_digest"] for proof in json.loads(done.stdout)["proofs"]}
    assert digests == {plan.stages[2].digest}


def test_runs_in_stages_are_compared(path: Path, plan: Plan, orch: RunOrch) -> None:
    """What differs in one stage is listed there; totals are those of the runs."""
    other = load(path, ("experiment.stages.1.batch=8",))
    diff = difference(path, other)
    requested = {decision.key: (decision.first, decision.second) for decision in diff.requested}
    assert requested == {
        "experiment.stages.1.batch.sequences": (4, 8),
        "experiment.stages.2.batch.sequences": (4, 8),
    }
    decided = {decision.key.split(".")[1] for decision in diff.decided}
    assert decided == {"1", "2"}
    figures = {figure.key: (figure.first, figure.second) for figure in diff.figures}
    second = make_plan(other)
    assert figures["days.expected"] == (plan.forecast.days.expected, second.forecast.days.expected)
    steps = [staged.stages[1].forecast.step_s.expected for staged in (plan, second)]
    assert figures["stages.1.step_s.expected"] == tuple(steps)
    assert (diff.memory, diff.time) == ((), ())
    done = orch("plan", str(path), str(path), "--set", "experiment.stages.1.batch=8")
    assert done.returncode == 0
    assert "stage 3" in done.stdout
    assert "stage 1 " not in done.stdout


def test_one_stage_is_compared_line_by_line(path: Path, plan: Plan) -> None:
    diff = orch.diff(path, load(path, ("experiment.stages.1.batch=8",)), stage=2)
    assert diff.plans[0].digest == plan.stages[1].digest
    assert {decision.key for decision in diff.requested} == {"experiment.batch.sequences"}
    assert diff.memory
    assert diff.time


def test_a_run_in_stages_is_compared_with_one_without(path: Path, tmp_path: Path) -> None:
    """Both as a whole: neither has a key for each option of a stage."""
    staged = load(path)
    diff = difference(staged, staged_spec(tmp_path, ONE_STAGE))
    stages = {decision.key: (decision.first, decision.second) for decision in diff.requested}[
        "experiment.stages"
    ]
    assert stages == (3, None)
    assert diff.decided == ()
    assert {figure.key.split(".")[0] for figure in diff.figures} <= {
        "fits", "days", "chip_hours", "dollars", "dollars_per_chip_hour", "goodput",
    }  # fmt: skip


def difference(first: object, second: object) -> PlanDiff:
    return orch.diff(first, second)  # type: ignore[arg-type]


def test_the_gain_of_another_interval_is_that_of_the_run(tmp_path: Path) -> None:
    """Not that of the stage that gains most."""
    text = STAGED.replace("40960", "40B").replace("81920", "80B")
    text += "run: {checkpoint: {every: 1}}\n"
    plan = staged_plan(tmp_path, text)
    [found] = [warning for warning in plan.warnings if warning.code == "checkpoint_interval"]
    goodput = plan.forecast.goodput
    assert found.figures["goodput"] == goodput.expected
    assert found.figures["best_goodput"] == goodput.best
    assert [found] == list(interval_warnings(plan))
    stated = replace(plan.forecast.goodput, stated=True)
    assert not list(
        interval_warnings(replace(plan, forecast=replace(plan.forecast, goodput=stated)))
    )
