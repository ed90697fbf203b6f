"""The forecast of goodput: its formulas against dice, its inputs, what a plan makes of it."""

import json
import random
from dataclasses import replace
from math import inf, sqrt
from pathlib import Path

import pytest

from orchestrator.evidence.explain.assemble import explain
from orchestrator.evidence.score.evaluate import goodput_scores, recovery_scores
from orchestrator.goodput.losses import Rhythm, goodput_forecast, odds_below
from orchestrator.planning.goodput_inputs import _no_spare
from orchestrator.planning.planner import make_plan
from orchestrator.reading.examples import spec_text
from orchestrator.reading.load import load
from orchestrator.values.goodput import GoodputForecast, Uncertain
from orchestrator.values.plan import Estimate, Plan
from orchestrator.values.spec import FailureOptions, Pods, Spec
from tests.conftest import ROOT
from tests.example_specs import spec_of
from tests.goodputs import NO_FAILURES

HOUR_S, DAY_S = 3600.0, 86_400.0
FOUR_PODS = ROOT / "specs" / "llama3_70b_4pod.yaml"


def simulated(rhythm: Rhythm, interval_s: float, failures: int, seed: int) -> float:
    """The share of time that trains, by dice: a clock that jumps from event to event."""
    dice = random.Random(seed)
    clock_s = useful_s = 0.0
    while failures:
        next_failure_s = clock_s + dice.expovariate(1 / rhythm.between_failures_s)
        failures -= 1
        ready_s = clock_s + rhythm.recovery_s
        if ready_s > next_failure_s:
            clock_s = next_failure_s
            continue
        segment_s = interval_s + rhythm.blocking_s
        saved = max(int((next_failure_s - ready_s - rhythm.write_s) // segment_s), 0)
        useful_s += saved * interval_s
        clock_s = next_failure_s
    return useful_s / clock_s


@pytest.mark.parametrize("between_s", [2 * HOUR_S, 20 * 60.0, 5 * 60.0])
@pytest.mark.parametrize("write_s", [0.0, 60.0])
def test_the_share_is_that_of_dice(between_s: float, write_s: float) -> None:
    """From a run that hardly fails to one that fails during most of its recoveries."""
    rhythm = Rhythm(between_failures_s=between_s, recovery_s=200.0, blocking_s=5.0, write_s=write_s)
    for interval_s in (60.0, 600.0):
        expected = simulated(rhythm, interval_s, 40_000, seed=1)
        if rhythm.blocks_s(interval_s) == rhythm.blocking_s:
            assert rhythm.share(interval_s) == pytest.approx(expected, abs=0.01)


def first_order_share(rhythm: Rhythm, interval_s: float) -> float:
    """Meta's estimate of the same share, for losses that are small."""
    lost_s = rhythm.recovery_s + rhythm.write_s + interval_s / 2
    return (1 - lost_s / rhythm.between_failures_s) / (1 + rhythm.blocking_s / interval_s)


def test_small_losses_are_metas_estimate() -> None:
    """For 16,384 H100: 7.76 failures a day, 5 min for a restart, a save of 10 s every 10 min."""
    rhythm = Rhythm(between_failures_s=DAY_S / 7.76, recovery_s=300.0, blocking_s=10.0, write_s=0.0)
    assert rhythm.share(600.0) == pytest.approx(first_order_share(rhythm, 600.0), abs=0.003)
    assert rhythm.share(600.0) == pytest.approx(0.931, abs=0.002)


def test_the_best_interval_is_the_best_and_youngs_where_saves_are_short() -> None:
    """No interval beside it has a higher share."""
    for between_s, blocking_s in ((10 * HOUR_S, 2.0), (HOUR_S, 60.0), (600.0, 300.0)):
        rhythm = Rhythm(
            between_failures_s=between_s, recovery_s=100.0, blocking_s=blocking_s, write_s=0.0
        )
        best_s = rhythm.best_interval_s()
        assert rhythm.share(best_s) >= max(rhythm.share(best_s * 0.99), rhythm.share(best_s * 1.01))
    assert Rhythm(
        between_failures_s=10 * HOUR_S, recovery_s=0.0, blocking_s=2.0, write_s=0.0
    ).best_interval_s() == pytest.approx(sqrt(2 * 2.0 * 10 * HOUR_S), rel=0.01)


def test_saves_never_come_faster_than_the_storage_takes_them() -> None:
    """A shorter interval blocks steps until the save before is written."""
    rhythm = Rhythm(between_failures_s=HOUR_S, recovery_s=60.0, blocking_s=0.1, write_s=300.0)
    assert rhythm.best_interval_s() == 300.0
    assert rhythm.blocks_s(100.0) == pytest.approx(200.1)
    assert rhythm.share(100.0) < rhythm.share(300.0)


def test_nothing_fails_where_the_rate_is_zero() -> None:
    rhythm = Rhythm(between_failures_s=inf, recovery_s=60.0, blocking_s=1.0, write_s=0.0)
    assert rhythm.share(99.0) == 0.99
    forecast = goodput_forecast(NO_FAILURES, 1.0, 100)
    assert (forecast.expected, forecast.low, forecast.high) == (1.0, 1.0, 1.0)
    assert forecast.seconds_between_failures is None


def of(spec: Spec) -> GoodputForecast:
    return make_plan(spec).forecast.goodput


@pytest.fixture(scope="module")
def four_pods() -> Plan:
    return make_plan(load(FOUR_PODS))


def failing(spec: Spec, **failures: float) -> Spec:
    options = FailureOptions(**failures)  # type: ignore[arg-type]
    return replace(spec, resources=replace(spec.resources, failures=options))


def test_losses_and_what_trains_are_all_time(four_pods: Plan) -> None:
    """In the order of the interval, with a kind, a rate and seconds for each."""
    forecast = four_pods.forecast.goodput
    assert sum(line.share for line in forecast.lines) + forecast.expected == pytest.approx(1.0)
    assert forecast.low < forecast.expected < forecast.high < 1
    kinds = {line.kind for line in forecast.lines}
    assert kinds == {"saving", "lost_steps", "detection", "waiting", "restart", "restore"}
    for line in forecast.lines:
        if line.kind != "saving":
            assert line.each_s * line.per_day / DAY_S == pytest.approx(line.share, rel=0.15)


def test_35_840_chips_fail_as_the_tpu_v4_fleet_does(four_pods: Plan) -> None:
    """8,960 machines, three cables a chip, 48 switches for 4,096 chips; a wide interval."""
    inputs = four_pods.forecast.goodput.inputs
    a_day = 8_960 * 0.0008 + 3 * 35_840 * 0.00005 + 420 * 0.0004
    assert inputs.failures_per_day.value == pytest.approx(a_day)
    assert inputs.assumed
    hours = [
        24 / per_day for per_day in (inputs.failures_per_day.high, inputs.failures_per_day.low)
    ]
    assert hours[0] < 1.4 < 24 / a_day < hours[1]


def test_a_save_of_70b_has_847_gb(four_pods: Plan) -> None:
    """Weights and two moments in fp32, written once."""
    save = four_pods.forecast.goodput.inputs.save
    assert save.bytes == pytest.approx(12 * 70_553_706_496)
    assert save.write_s.value == pytest.approx(save.bytes / 25e9)
    needed = save.bytes / four_pods.forecast.goodput.every_s
    assert four_pods.forecast.goodput.needed_bytes_per_s == pytest.approx(needed)


def test_days_and_money_include_goodput_and_its_interval(four_pods: Plan) -> None:
    """The interval of days is wider than that of steps, and no narrower than that of goodput."""
    forecast, step = four_pods.forecast, four_pods.forecast.step_s
    assert step.expected
    assert step.low
    assert step.high
    days, goodput = forecast.days, forecast.goodput
    assert days.expected
    assert days.low
    assert days.high
    steps = four_pods.tokens / four_pods.batch.tokens
    assert days.expected == pytest.approx(step.expected * steps / goodput.expected / DAY_S)
    assert days.high / days.expected > step.high / step.expected
    assert days.high / days.expected > goodput.expected / goodput.low
    assert days.lower <= days.low
    assert forecast.chip_hours.lower == pytest.approx(days.lower * 24 * four_pods.chips)


def test_a_stated_goodput_is_a_number_without_an_interval() -> None:
    spec = spec_of()
    stated = of(replace(spec, resources=replace(spec.resources, goodput=0.9)))
    assert (stated.expected, stated.low, stated.high, stated.stated) == (0.9, 0.9, 0.9, True)
    assert stated.lines == ()


def test_auto_takes_the_best_interval_and_its_spec_is_written_so(tmp_path: Path) -> None:
    """In steps; a spec of the same text is the same spec."""
    spec = load(FOUR_PODS, ["run.checkpoint.every=auto"])
    assert spec.run.checkpoint.every is None
    forecast = of(spec)
    assert forecast.every_steps == forecast.best_every_steps > 0
    for every in (forecast.every_steps // 2, forecast.every_steps * 2):
        fixed = replace(spec.run.checkpoint, every=every)
        other = of(replace(spec, run=replace(spec.run, checkpoint=fixed)))
        assert other.expected < forecast.expected
        assert other.best_every_steps == forecast.every_steps
    path = tmp_path / "same.yaml"
    path.write_text(spec_text(replace(spec, overrides=())))
    assert load(path).run == spec.run


def test_auto_leaves_slow_storage_its_time() -> None:
    """Storage at half of its rate would make steps wait for each save of the interval that is best
    at its whole rate: that interval is worse at the low end.
    """
    spec = load(ROOT / "specs/llama3_405b_8pod.yaml", ["run.checkpoint.every=auto"])
    forecast = of(spec)
    slow_s = forecast.inputs.save.write_s.high
    step_s = forecast.every_s / forecast.every_steps
    assert slow_s <= forecast.every_s < slow_s + step_s
    often = replace(spec.run.checkpoint, every=forecast.every_steps // 2 + 1)
    other = of(replace(spec, run=replace(spec.run, checkpoint=often)))
    assert other.expected - forecast.expected < 0.02
    assert forecast.low - other.low > 0.08


def test_what_the_spec_says_of_failures_comes_first() -> None:
    """Rates, times and the rate of the storage; a known number has no interval."""
    base = spec_of()
    known = of(
        failing(
            base, machines_per_day=0.01, cables_per_day=0.0, switches_per_day=0.0, restart_s=60.0,
            repair_s=30.0, storage_bytes_per_s=1e9,
        )
    ).inputs  # fmt: skip
    daily = known.failures_per_day
    assert daily.value == pytest.approx(89.6)
    assert daily.low == daily.high == daily.value
    assert known.restart_s == Uncertain(value=60.0, low=60.0, high=60.0)
    assert known.save.storage_bytes_per_s.value == 1e9
    assert not known.assumed
    loaded = load(
        FOUR_PODS,
        ["resources.failures.restart=2m", "resources.failures.machines_per_day=0.1%",
         "resources.failures.storage_bytes_per_s=100B", "resources.failures.cables_per_day=0"],
    ).resources.failures  # fmt: skip
    assert loaded == FailureOptions(
        restart_s=120.0, machines_per_day=0.001, storage_bytes_per_s=100 * 10**9, cables_per_day=0.0
    )


def test_spare_pods_take_the_place_of_one_that_is_out_and_are_paid_for() -> None:
    """Without one the run waits for its repair."""
    spec = spec_of()
    spare = replace(spec, resources=replace(spec.resources, pods=Pods(min=4, max=4, spare=1)))
    alone, backed = make_plan(spec), make_plan(spare)
    waits = [plan.forecast.goodput.inputs.waiting_s.value for plan in (alone, backed)]
    assert waits[1] < waits[0] / 5
    assert backed.forecast.goodput.expected > alone.forecast.goodput.expected
    hours = [plan.forecast.chip_hours.expected or 0 for plan in (alone, backed)]
    days = [plan.forecast.days.expected or 0 for plan in (alone, backed)]
    assert hours[1] / days[1] == pytest.approx(hours[0] / days[0] * 5 / 4)
    assert _no_spare(0.1, 0) == 1.0
    assert _no_spare(0.1, 1) == pytest.approx(0.0952, abs=1e-4)


def test_a_run_that_may_shrink_waits_a_minute_and_goes_on_with_fewer() -> None:
    """What it does not do meanwhile is a line of its own, and it restarts twice."""
    spec = failing(spec_of(), repair_s=4 * HOUR_S)
    elastic = replace(spec, resources=replace(spec.resources, pods=Pods(min=2, max=4)))
    waits, shrinks = of(spec), of(elastic)
    assert shrinks.expected > waits.expected + 0.1
    kinds = {line.kind: line for line in shrinks.lines}
    assert kinds["fewer_pods"].share > 0.05
    assert shrinks.inputs.waiting_s.value < 60.0
    assert shrinks.inputs.restart_s.value > waits.inputs.restart_s.value


@pytest.mark.parametrize(
    ("failures", "codes"),
    [
        ({"storage_bytes_per_s": 1e9}, {"storage_too_slow", "checkpoint_interval"}),
        ({"machines_per_day": 0.1}, {"mostly_recovering"}),
        ({}, set()),
    ],
)
def test_a_plan_warns_of_what_cannot_keep_up(failures: dict[str, float], codes: set[str]) -> None:
    """A storage of 1 GB/s takes 14 min for 847 GB, and steps wait for it every minute."""
    warned = {warning.code for warning in make_plan(failing(spec_of(), **failures)).warnings}
    about = {"storage_too_slow", "checkpoint_interval", "mostly_recovering", "saves_block"}
    assert warned & about == codes


def test_odds_are_those_of_the_interval() -> None:
    """Nine of ten end below `high`, one of ten below `low`."""
    days = Estimate(lower=1.0, unoverlapped=9.0, expected=10.0, low=8.0, high=15.0)
    odds = [odds_below(days, limit) for limit in (0.0, 8.0, 10.0, 15.0, 1e9)]
    assert odds == pytest.approx([0.0, 0.1, 0.5, 0.9, 1.0])
    assert odds_below(Estimate(lower=1.0, unoverlapped=2.0), 5.0) is None


def test_the_plan_is_whole_as_json(four_pods: Plan) -> None:
    """Every key of the forecast, with its inputs and their sources."""
    from orchestrator import catalog  # noqa: PLC0415
    from orchestrator.values import codec  # noqa: PLC0415

    goodput = json.loads(codec.to_json(four_pods))["forecast"]["goodput"]
    assert {"expected", "low", "high", "lines", "every_steps", "inputs"} <= goodput.keys()
    named = [key for keys in goodput["inputs"]["sources"].values() for key in keys]
    assert set(named) <= catalog.sources().keys()


def test_published_shares_are_inside_their_predicted_intervals() -> None:
    """Each from its own rates; a share that a run was above is no higher than the interval."""
    scores = {score.id: score for score in goodput_scores()}
    assert len(scores) == 6
    for score in scores.values():
        low = 0.0 if score.reported_is == "at_least" else score.predicted.low - 0.03
        assert low <= score.reported <= score.predicted.high + 0.03, score
    llama = scores["Llama 3 405B, 16,384 H100"]
    assert llama.predicted.value > llama.reported
    storage, memory = (
        scores[f"Gemini 1, 8 v4 pods, from {where}"] for where in ("storage", "memory")
    )
    assert memory.predicted.value - storage.predicted.value > 0.08


def test_recoveries_of_the_campaign_are_the_drivers_own_times() -> None:
    """Within a fifth of the recorded medians, for all kinds of faults."""
    scores = recovery_scores()
    assert sum(score.faults for score in scores) == 43
    for scored in scores:
        assert scored.predicted_s == pytest.approx(scored.recorded_s, rel=0.2), scored


def test_the_docs_have_these_figures() -> None:
    """Both tables, to the figures shown."""
    text = (ROOT / "docs" / "goodput.md").read_text(encoding="utf-8")
    for score in goodput_scores():
        low, high = f"{score.predicted.low:.1%}", f"{score.predicted.high:.1%}"
        row = f"| {score.id} | {score.predicted.value:.1%} | {low} to {high} |"
        assert row.replace("%", " %") in text
    for each in recovery_scores():
        assert (
            f"| {each.id} | {each.faults} | {each.predicted_s:.0f} | {each.recorded_s:.0f} |"
            in text
        )


def test_explain_derives_the_same_goodput(four_pods: Plan) -> None:
    """Its formulas with the plan's numbers give the plan's shares; outside numbers are cited."""
    sheet, forecast = explain(load(FOUR_PODS)), four_pods.forecast.goodput
    assert sheet.goodput
    values = {line.symbol: line.computed.value for line in sheet.goodput.lines}
    assert values["goodput"] == pytest.approx(forecast.expected)
    assert values["M"] == pytest.approx(forecast.seconds_between_failures)
    shares = {line.kind: line.share for line in forecast.lines}
    assert values["saving"] == pytest.approx(shares["saving"])
    recovering = sum(shares[kind] for kind in ("detection", "waiting", "restart", "restore"))
    assert values["recovering"] == pytest.approx(recovering)
    assert {"tpu-v4-fleet", "meta-reliability"} <= {source.key for source in sheet.sources}
    assert explain(load(FOUR_PODS, ["resources.goodput=90%"])).goodput is None
