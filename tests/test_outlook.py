"""What is left of a run: days, dollars and odds, from its forecast and what it has measured."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from orchestrator.goodput.losses import SoFar, outlook
from orchestrator.journal.run_journal import outlook_of
from orchestrator.planning.planner import make_plan
from orchestrator.values.goodput import GoodputForecast, Outlook
from orchestrator.values.plan import Plan
from tests.example_specs import spec_of
from tests.reports import run_of

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(spec_of())


def left(
    plan: Plan, days: float, *, slower: float = 1.0, until_days: float | None = None
) -> Outlook:
    """What is left after so many days at the expected goodput, with steps that take longer."""
    expected_s = plan.forecast.step_s.expected
    assert expected_s
    step_s = expected_s * slower
    done = int(days * DAY_S * plan.forecast.goodput.expected / step_s)
    failures = int(days * plan.forecast.goodput.inputs.failures_per_day.value)
    so_far = SoFar(
        now_s=1e9 + days * DAY_S,
        running_s=days * DAY_S,
        steps_done=done,
        steps=plan.total_steps,
        median_step_s=step_s if done else None,
        measured_steps=done,
        starts=1 + failures,
        ended=False,
    )
    deadline_s = None if until_days is None else 1e9 + until_days * DAY_S
    found = outlook(plan, so_far, deadline_s, forecast=True)
    assert found
    return found


def width(found: Outlook) -> float:
    return found.days_left.high / found.days_left.low


def test_before_the_first_step_it_is_the_forecast(plan: Plan) -> None:
    """Days and dollars of the plan, with their interval."""
    found, days, dollars = left(plan, 0.0), plan.forecast.days, plan.forecast.dollars
    assert days.expected
    assert days.high
    assert dollars
    assert found.days_left.value == pytest.approx(days.expected, rel=0.01)
    assert found.days_left.high == pytest.approx(days.high, rel=0.15)
    assert found.dollars_so_far == 0.0
    assert found.dollars_left
    assert found.dollars_left.value == pytest.approx(dollars.expected, rel=0.01)


def test_the_interval_narrows_as_steps_come_in(plan: Plan) -> None:
    """With every day, to a few per cent; what is left and what is done are the whole."""
    widths = [width(left(plan, days)) for days in (0.0, 0.01, 0.2, 1.0, 5.0, 10.0)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 2
    assert widths[-1] < 1.25
    after = left(plan, 5.0)
    assert 5.0 + after.days_left.value == pytest.approx(plan.forecast.days.expected or 0, rel=0.05)
    assert after.dollars_so_far
    a_day = plan.chips * 24 * (plan.forecast.dollars_per_chip_hour or 0)
    assert after.dollars_so_far == pytest.approx(5.0 * a_day)


def test_measured_steps_move_what_is_left(plan: Plan) -> None:
    """Steps that take 1.3 times as long: after a day hardly anything of the forecast is left."""
    usual, slow = left(plan, 1.0), left(plan, 1.0, slower=1.3)
    assert slow.step_s.value / usual.step_s.value == pytest.approx(1.3, rel=0.02)
    assert slow.days_left.value > 1.25 * usual.days_left.value


def test_the_odds_of_a_deadline_become_sure(plan: Plan) -> None:
    """A date in the middle is even; later it is as good as lost where steps take longer."""
    days = plan.forecast.days.expected or 0
    assert left(plan, 0.0, until_days=days).odds == pytest.approx(0.5, abs=0.02)
    assert (left(plan, 0.0, until_days=3 * days).odds or 0) > 0.95
    assert (left(plan, 5.0, until_days=1.3 * days).odds or 0) > 0.99
    assert (left(plan, 5.0, slower=1.3, until_days=days).odds or 0) < 0.01
    assert left(plan, 5.0).odds is None


def test_a_deadline_is_a_date_or_a_time_after_the_submission(plan: Plan) -> None:
    march = datetime(2027, 3, 1, tzinfo=UTC).timestamp()
    run = replace(run_of(), submitted_at_s=5.0)
    for deadline, at_s in (("2027-03-01", march), ("30d", 30 * DAY_S + 5.0), ("1.5h", 5405.0)):
        found = outlook_of(run, plan, deadline)
        assert found
        assert found.deadline_at_s == at_s


def test_nothing_is_left_of_a_run_that_has_ended(plan: Plan) -> None:
    so_far = SoFar(
        now_s=0.0, running_s=1.0, steps_done=5, steps=9, median_step_s=1.0, measured_steps=5,
        starts=1, ended=True,
    )  # fmt: skip
    assert outlook(plan, so_far, None, forecast=True) is None
    unknown = replace(so_far, ended=False, median_step_s=None)
    assert outlook(plan, unknown, None, forecast=False) is None


def test_what_is_left_of_a_rehearsal_is_told_by_its_own_steps(plan: Plan) -> None:
    """The goodput of thousands of chips says nothing about a minute on this machine."""
    so_far = SoFar(
        now_s=1e9, running_s=360.0, steps_done=248, steps=300, median_step_s=1.2,
        measured_steps=248, starts=1, ended=False,
    )  # fmt: skip
    rough = replace(plan, forecast=replace(plan.forecast, goodput=_poor(plan)))
    for each in (plan, rough):
        found = outlook(each, so_far, None, forecast=False)
        assert found
        assert found.days_left.value * DAY_S == pytest.approx(52 * 1.2, rel=0.15)
        assert found.days_left.high * DAY_S < 90


def _poor(plan: Plan) -> GoodputForecast:
    return replace(plan.forecast.goodput, expected=0.016, low=0.003, high=0.1)
