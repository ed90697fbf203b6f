"""Two witnesses of a step: published runs, and the compiler's schedule of the plan's program."""

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path

import numpy as np
import pytest

import orchestrator as api
from orchestrator import catalog
from orchestrator.catalog.published import schedule_score
from orchestrator.planning.calibrated import layout_of
from orchestrator.planning.planner import make_plan
from orchestrator.planning.step_work import _small_product_share
from orchestrator.planning.witnesses import with_schedule
from orchestrator.proving.compiled import CacheEntry
from orchestrator.proving.verdict import save_program
from orchestrator.reading.load import load
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Schedule
from tests.conftest import RunOrch
from tests.proofs import as_forecast
from tests.schedules import schedule

UNSEEN, SEEN = Path("specs/llama3_70b_4pod.yaml"), Path("specs/llama3_8b_v6e_2slice.yaml")


def scheduled(products: float, exposed: float, *never: str) -> Schedule:
    """A schedule of so many seconds of products and of waiting."""
    return replace(
        schedule(), total_s=products + exposed, products_s=products, exposed_s=exposed,
        kernels_s=0.0, copies_s=0.0, other_s=0.0, never_judged=never,
    )  # fmt: skip


def expected_s(plan: Plan) -> float:
    assert plan.forecast.step_s.expected is not None
    return plan.forecast.step_s.expected


def test_outside_the_published_runs_both_witnesses_are_believed() -> None:
    plan = make_plan(load(UNSEEN))
    runs_s = expected_s(plan)
    both = with_schedule(plan, scheduled(0.4 * runs_s, 1.6 * runs_s))
    assert runs_s < expected_s(both) < 2 * runs_s
    runs, compiler = both.forecast.witnesses
    assert runs.weight + compiler.weight == pytest.approx(1)
    mean = runs.weight * runs.expected_s + compiler.weight * compiler.expected_s
    assert expected_s(both) == pytest.approx(mean)
    assert sum(line.value for line in both.forecast.expected_time) == pytest.approx(mean)
    for line in both.forecast.expected_time:
        names = {name.replace(" ", "_"): value for name, value in line.inputs.items()}
        value = eval(line.formula, {"max": max}, names)
        assert value == pytest.approx(line.value, rel=1e-6)
    # All that follows from the step follows.
    ratio = expected_s(both) / runs_s
    assert both.forecast.mfu.expected == pytest.approx((plan.forecast.mfu.expected or 0) / ratio)
    assert both.forecast.days.expected > plan.forecast.days.expected  # type: ignore[operator]
    assert both.digest == plan.digest


def test_together_they_know_more_unless_they_contradict_each_other() -> None:
    plan = make_plan(load(UNSEEN))
    runs_s = expected_s(plan)

    def width(made: Plan) -> float:
        step_s = made.forecast.step_s
        return log((step_s.high or 0) / (step_s.low or 1))

    alike = with_schedule(plan, scheduled(0.3 * runs_s, 0.7 * runs_s))
    assert width(alike) < width(plan)
    apart = with_schedule(plan, scheduled(0.3 * runs_s, 7 * runs_s))
    assert width(apart) > width(alike)


def test_a_schedule_of_a_kind_that_nothing_judged_counts_less() -> None:
    plan = make_plan(load(UNSEEN))
    runs_s = expected_s(plan)
    judged = with_schedule(plan, scheduled(0.3 * runs_s, runs_s)).forecast.witnesses[1]
    unjudged = with_schedule(plan, scheduled(0.3 * runs_s, runs_s, "offload")).forecast.witnesses[1]
    assert unjudged.weight < judged.weight
    assert judged.high_s / judged.expected_s == pytest.approx(exp(schedule_score().spread))


def test_inside_the_published_runs_only_work_that_the_program_has_counts() -> None:
    plan = make_plan(load(SEEN))
    assert not plan.forecast.extrapolations
    runs_s = expected_s(plan)
    waits = with_schedule(plan, scheduled(0.5 * runs_s, 9 * runs_s))
    assert waits.forecast.step_s == plan.forecast.step_s
    works = with_schedule(plan, scheduled(1.1 * runs_s, 0.1 * runs_s))
    assert expected_s(works) == pytest.approx(1.1 * runs_s)
    assert works.forecast.step_s.low == pytest.approx(1.1 * runs_s)
    lines = {line.name: line.value for line in works.forecast.expected_time}
    assert lines["more work in the compiled program"] == pytest.approx(0.1 * runs_s)


def test_without_a_schedule_or_published_runs_nothing_changes() -> None:
    plan = make_plan(load(UNSEEN))
    assert with_schedule(plan, None) is plan
    estimate = replace(plan.forecast.step_s, expected=None, low=None, high=None)
    unknown = replace(plan, forecast=replace(plan.forecast, step_s=estimate))
    assert with_schedule(unknown, schedule()) is unknown


def test_products_of_few_rows_reach_less() -> None:
    plan = make_plan(load(SEEN))

    def share(chip: str, tokens: int, tensor: int = 1) -> float:
        mesh = {**dict.fromkeys(plan.mesh, 1), "tensor": tensor}
        layout = replace(layout_of(plan, catalog.chip(chip)), mesh=mesh, microbatches=1)
        return float(_small_product_share(replace(layout, sequences=1, length=tokens)))

    for chip in ("v5e", "v5p", "v6e", "tpu7x"):
        shares = [share(chip, tokens) for tokens in (64, 128, 256, 512, 1024, 2048, 8192)]
        assert shares == sorted(shares)
        assert shares[-1] == 1
        assert shares[0] < 0.5
    assert share("v5p", 2048, 16) == pytest.approx(3 / (2 / 0.83 + 1))  # 128 from either side
    assert share("h100", 64) == 1
    assert np.all(np.diff([share("v5p", 64, ring) for ring in (8, 4, 2)]) >= 0)


def test_orch_plan_says_what_each_witness_says(orch: RunOrch, tmp_path: Path) -> None:
    path = tmp_path / "unseen.yaml"
    path.write_text(UNSEEN.read_text("utf-8").replace("length: 4096", "length: 2048"), "utf-8")
    alone = orch("plan", str(path))
    said = " ".join(alone.stdout.split())
    assert f"one would narrow the interval: orch prove {path}" in said
    plan = api.plan(path)
    found = as_forecast(plan)
    summary = replace(found.summary, schedule=scheduled(0.2, 0.4))
    save_program(plan, CacheEntry(compiled=replace(found, summary=summary)))
    said = " ".join(orch("plan", str(path)).stdout.split())
    assert "the compiler: 600 ms, 80 % interval" in said
    assert "of what is expected" in said
    made = json.loads(orch("plan", str(path), "--json").stdout)
    assert [each["name"] for each in made["forecast"]["witnesses"]] == [
        "published runs", "the compiler",
    ]  # fmt: skip
    proved = api.known_proof(plan)
    assert proved is not None
    both = api.with_proof(plan, proved.proof)
    assert made["forecast"]["step_s"]["expected"] == pytest.approx(expected_s(both))
