"""The driver's own decisions on 35,840 chips that fail for a month, by a clock that jumps."""

import time
from dataclasses import replace
from functools import cache

import pytest

from orchestrator.drive import driver
from orchestrator.formatting import DAY_S
from orchestrator.goodput.losses import goodput_forecast
from orchestrator.planning.planner import make_plan, plan_on
from orchestrator.reading.load import load
from orchestrator.values.plan import Plan
from orchestrator.values.spec import Spec
from tests.conftest import ROOT
from tests.fleet import Simulated, Times, simulate

FOUR_PODS = ROOT / "specs" / "llama3_70b_4pod.yaml"
HOUR_S = 3600.0


@cache
def planned(*overrides: str) -> tuple[Spec, Plan]:
    spec = load(FOUR_PODS, ["run.checkpoint.every=auto", *overrides])
    spec = replace(spec, run=replace(spec.run, steps=None))
    return spec, make_plan(spec)


def times_of(plan: Plan, *, repair_s: float = 600.0) -> Times:
    """The numbers of the plan's forecast, a slice each."""
    goodput = plan.forecast.goodput
    inputs = goodput.inputs
    machines = plan.hosts * 0.0008 / plan.pods
    return Times(
        machines_per_day=machines,
        cables_per_day=inputs.failures_per_day.value / plan.pods - machines,
        hang_share=0.017,
        node_loss_s=30.0,
        repair_s=repair_s,
        reroute_s=10.0,
        ready_s=300.0 + 2 * inputs.save.bytes / inputs.save.storage_bytes_per_s.value,
        step_s=goodput.every_s / goodput.every_steps,
        every=goodput.every_steps,
        blocking_s=inputs.save.blocking_s.value,
        write_s=inputs.save.write_s.value,
    )


@pytest.fixture(autouse=True)
def plans_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan on fewer pods is made once."""
    plans: dict[tuple[str, int], Plan] = {}

    def once(spec: Spec, plan: Plan, pods: int) -> Plan:
        key = plan.digest, pods
        if key not in plans:
            plans[key] = plan_on(spec, plan, pods)
        return plans[key]

    monkeypatch.setattr(driver, "plan_on", once)


def check_nothing_is_lost(result: Simulated) -> None:
    """The run ended by its last step; each attempt began at the newest checkpoint that counted."""
    assert result.run.state == "succeeded", result.run.reason
    assert result.run.steps_done == result.run.steps
    newest = 0
    for attempt in result.attempts:
        if attempt.steps_done:
            assert attempt.restored_steps == newest, attempt
        newest = attempt.saved_steps or newest
    assert all(save.step <= result.run.steps for save in result.saves)


def compare(
    days: float, seed: int, *overrides: str, repair_s: float = 600.0, spare: int = 0
) -> None:
    """The share of time that trained against the formula."""
    spec, plan = planned(*overrides)
    times = times_of(plan, repair_s=repair_s)
    steps = int(days * DAY_S * plan.forecast.goodput.expected / times.step_s)
    began = time.perf_counter()
    result = simulate(spec, plan, times, steps, seed=seed, slices=plan.pods + spare)
    faster = result.took_s / (time.perf_counter() - began)
    check_nothing_is_lost(result)
    share = steps * times.step_s / result.took_s
    predicted = goodput_forecast(plan.forecast.goodput.inputs, times.step_s, steps)
    print(
        f"{result.took_s / DAY_S:.1f} days, {len(result.attempts)} attempts, {result.faults}:"
        f" {share:.3f}, predicted {predicted.expected:.3f}, {faster:,.0f} times faster than time"
    )
    assert faster > 1000
    # chance: two points, and twice the deviation of the number of failures in a short run
    struck = sum(result.faults.values())
    chance = 2 * (1 - predicted.expected) / struck**0.5 if days < 20 else 0.0
    assert abs(share - predicted.expected) < 0.02 + chance


def test_two_days_of_failures_lose_no_step() -> None:
    compare(2.0, seed=1)


def test_a_run_that_may_shrink_takes_its_pod_back() -> None:
    """With repairs of hours it goes on with three pods, and has four again after a save."""
    spec, plan = planned("resources.pods={min: 2, max: 4}", "resources.failures.repair=4h")
    times = times_of(plan, repair_s=4 * HOUR_S)
    result = simulate(spec, plan, times, int(1.5 * DAY_S / times.step_s), seed=3)
    check_nothing_is_lost(result)
    reasons = [attempt.reason for attempt in result.attempts]
    assert "resized" in reasons
    assert {attempt.pods for attempt in result.attempts} >= {3, 4}
    after = result.attempts[reasons.index("resized") + 1]
    assert after.pods == 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_month_is_as_the_formula_says(seed: int) -> None:
    """35,840 chips, about 380 failures: within two points."""
    compare(30.0, seed)


@pytest.mark.slow
def test_a_month_with_a_spare_pod_is_as_the_formula_says() -> None:
    compare(30.0, 4, "resources.pods={min: 4, max: 4, spare: 1}", spare=1)


@pytest.mark.slow
def test_a_month_on_pods_that_come_and_go_is_as_the_formula_says() -> None:
    compare(
        30.0, 5, "resources.pods={min: 2, max: 4}", "resources.failures.repair=4h",
        repair_s=4 * HOUR_S,
    )  # fmt: skip
