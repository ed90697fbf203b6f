"""What own runs teach: constants apart from the published ones, and rows that can be published."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import orchestrator as orch
from orchestrator.catalog.published import efficiency
from orchestrator.cli.plan_commands import plan_command
from orchestrator.cli.proof_commands import score_command
from orchestrator.errors import SpecError
from orchestrator.evidence.score.published_runs import read
from orchestrator.evidence.score.samples import samples
from orchestrator.journal.steps import StepLog
from orchestrator.planning.own_runs import learn, with_own_runs
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from tests.conftest import ROOT
from tests.journals import claimed_run, step

SPEC = ROOT / "specs" / "llama3_70b_4pod.yaml"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return orch.plan(SPEC)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def expected_s(plan: Plan) -> float:
    assert plan.forecast.step_s.expected is not None
    return plan.forecast.step_s.expected


def measured_run(
    storage: Path, key: str, plan: Plan, step_s: float, *, rehearsal: bool = False
) -> None:
    writer = claimed_run(
        storage, key=key, spec=orch.load(SPEC), plan=plan, steps=20, rehearsal=rehearsal
    )
    writer.start_attempt(plan)
    with StepLog(writer.journal.path, 1) as log:
        for index in range(20):
            log.append(step(index, restored=0 if index == 0 else None, step_s=step_s))
    writer.end_attempt("finished")
    writer.end_run("succeeded")


@pytest.mark.parametrize("times", [0.9, 1.15])
def test_runs_move_what_is_expected_and_narrow_it(plan: Plan, times: float) -> None:
    measured_s = times * expected_s(plan)
    own = learn([(f"run-{i}", plan, measured_s * (1 + 0.01 * i), {}) for i in (-1, 0, 1)])
    made = with_own_runs(plan, own)
    now = made.forecast.step_s
    assert now.expected == pytest.approx(measured_s, rel=0.03)
    assert sum(line.value for line in made.forecast.expected_time) == pytest.approx(now.expected)
    now_high, was_high = (each.forecast.step_s.high or 0.0 for each in (made, plan))
    assert now_high / expected_s(made) < was_high / expected_s(plan) - 0.02
    assert now.lower <= (now.low or 0.0) < expected_s(made)
    assert made.forecast.days.expected is not None
    assert made.forecast.days.expected / (plan.forecast.days.expected or 0) == pytest.approx(
        expected_s(made) / expected_s(plan), rel=1e-2
    )
    # It says so; what will be done is the same.
    assert made.digest == plan.digest
    assert made.forecast.own_runs == codec.digest(own)
    assert made.forecast.learned_from is None
    note = made.warnings[-1]
    assert note.code == "own_runs"
    assert f"learned from 3 of your own runs on {plan.chip} with trainer llama" in note.text
    [matmul] = (line for line in made.forecast.expected_time if line.kind == "matmul")
    assert matmul.sources == (f"own runs {codec.short(codec.digest(own))}",)
    assert all(0 < own.constants[name].value <= 1 for name in ("matmul", "attention"))


def test_a_trace_says_which_constant_is_off(plan: Plan) -> None:
    """The same step, but the trace shows that its attention takes what was expected of it."""
    parts = {line.kind: line.value for line in plan.forecast.expected_time}
    measured_s = 1.1 * expected_s(plan)
    more_s = measured_s - expected_s(plan)
    traced = {"attention": parts["attention"], "matmul": parts["matmul"] + more_s}
    [blind, seen] = (learn([("run", plan, measured_s, known)]) for known in ({}, traced))
    was = efficiency(plan.chip)
    assert was is not None
    assert seen.constants["attention"].value == pytest.approx(was.attention.value, rel=0.02)
    assert seen.constants["matmul"].value < blind.constants["matmul"].value
    assert seen.constants["attention"].unsure < was.attention.unsure


def test_runs_on_chips_are_learned_from_and_rehearsals_are_not(plan: Plan, tmp_path: Path) -> None:
    storage = tmp_path / "runs"
    for i in range(3):
        measured_run(storage, f"own-{i}", plan, 1.1 * expected_s(plan))
    measured_run(storage, "small", plan, 99.0, rehearsal=True)
    before = codec.to_json(orch.plan(SPEC))
    found = orch.score_own(storage)
    [own], [digest] = found.learned, found.digests
    assert [run.run for run in own.runs] == ["own-0", "own-1", "own-2"]
    assert own.runs[0].own_s == pytest.approx(own.runs[0].measured_s, rel=0.03)
    assert [(row.id, row.reason) for row in found.left_out] == [
        ("small", f"a rehearsal of {plan.chip}: it ran on this machine's CPU")
    ]
    # Published constants stay as they are; a plan has the own ones only by their name.
    assert codec.to_json(orch.plan(SPEC)) == before
    made = orch.plan(SPEC, profile=digest[:8])
    assert made.forecast.own_runs == digest
    done = CliRunner().invoke(plan_command, [str(SPEC), "--profile", digest[:8]])
    assert done.exit_code == 0
    assert f"({digest[:8]})" in " ".join(done.output.split())
    done = CliRunner().invoke(score_command, ["--own", "--storage", str(storage)])
    assert "Own runs: learned from 3 runs." in done.output
    with pytest.raises(SpecError, match="no-such"):
        orch.plan(SPEC, profile="no-such")
    with pytest.raises(SpecError, match="the own runs are of"):
        orch.plan(ROOT / "specs" / "tiny_2pod.yaml", profile=digest)


def test_a_run_is_a_row_that_can_be_scored(plan: Plan, tmp_path: Path) -> None:
    storage = tmp_path / "runs"
    measured_run(storage, "own", plan, 1.1 * expected_s(plan))
    text = orch.own_run_row("own", storage)
    path = tmp_path / "row.csv"
    path.write_text(text, encoding="utf-8")
    [sample], left_out = samples(read(path))
    assert not left_out
    assert sample.run.model.layers == plan.model.layers
    assert sample.measured_s == pytest.approx(1.1 * expected_s(plan), rel=1e-4)
    published = efficiency(plan.chip)
    assert published is not None
    alike = replace(published, software={})
    assert sample.expected_s(alike) == pytest.approx(expected_s(plan))
    # The row of a rehearsal says that its chip is a CPU, and is left out where it is scored.
    measured_run(storage, "small", plan, 99.0, rehearsal=True)
    text = orch.own_run_row("small", storage)
    [row] = csv.DictReader(io.StringIO(text))
    assert row["chip"] == "cpu"
    assert f"a rehearsal of {plan.chip} on " in row["notes"]
    path.write_text(text, encoding="utf-8")
    assert "unknown chip 'cpu'" in orch.score(path).left_out[0].reason
