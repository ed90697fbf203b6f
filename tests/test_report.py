"""The report of a run: measurement, gap and goodput."""

import json
from dataclasses import replace
from math import isclose
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from orchestrator.evidence.report import _spread, make_report
from orchestrator.formatting import off
from orchestrator.show.charts import step_time
from orchestrator.show.parts import Detail
from orchestrator.show.report_screen import CAUSES, report_screen, run_verdict
from orchestrator.values.report import Goodput
from tests.conftest import RunOrch
from tests.journals import claimed_run, tiny_plan
from tests.reports import (
    COMPILE_S,
    FIRST_S,
    OPENING_S,
    STATE_S,
    compare,
    finished_run,
    preempted_run,
    run_of,
    timed,
)

PLAN = tiny_plan()


def lost(goodput: Goodput | None) -> dict[str, float]:
    """The badput that is there at all."""
    assert goodput
    return {name: s for name, s in goodput.badput_s.items() if s > 1e-9}


# --- what was measured


def test_only_steps_after_warm_up_are_measured() -> None:
    """The last attempt at a step counts."""
    run, steps = preempted_run()
    measurement = compare(run, PLAN, steps).measured
    assert measurement
    assert measurement.steps == 4 + 14  # 1 to 4 of the first attempt, 6 to 19 of the second
    assert measurement.step_s.median == 0.5
    assert measurement.tokens_per_s == PLAN.batch.tokens / 0.5
    assert isclose(measurement.mean_data_s, 14 * 0.1 / 18)


def test_the_spread_has_the_tenth_and_ninetieth_percentile() -> None:
    result = _spread(np.arange(101.0))
    assert (result.low, result.median, result.high) == (10.0, 50.0, 90.0)
    alone = _spread(np.array([3.0]))
    assert (alone.low, alone.median, alone.high) == (3.0, 3.0, 3.0)


def test_steps_with_another_plan_are_left_out() -> None:
    run, steps = preempted_run()
    first, second = run.attempts
    shrunk = replace(run, attempts=(replace(first, plan_digest="0" * 64), second))
    report = compare(shrunk, PLAN, steps)
    assert report.measured
    assert report.measured.steps == 14
    assert (report.first_loss, report.last_loss) == (steps[1][0].step.loss, steps[2][-1].step.loss)


def test_a_run_without_steps_has_no_measurement() -> None:
    report = compare(run_of(), PLAN, {})
    assert (report.measured, report.gap, report.ratios, report.goodput) == (None, None, (), None)


# --- against the forecast


def test_the_measured_step_is_compared_with_every_prediction() -> None:
    run, steps = preempted_run()
    report = compare(run, PLAN, steps)
    over = {ratio.against: ratio.measured_over_predicted for ratio in report.ratios}
    assert isclose(over["lower"], 0.5 / PLAN.forecast.step_s.lower)
    assert isclose(over["unoverlapped"], 0.5 / PLAN.forecast.step_s.unoverlapped)
    assert isclose(over["expected"], 0.5 / (PLAN.forecast.step_s.expected or 0.0))


@pytest.mark.parametrize(
    ("at", "times", "inside"),
    [("low", 1, True), ("high", 1, True), ("low", 0.99, False), ("high", 1.01, False)],
)
def test_the_ends_of_the_interval_are_inside(at: str, times: float, inside: bool) -> None:
    run, steps = preempted_run(getattr(PLAN.forecast.step_s, at) * times)
    assert compare(run, PLAN, steps).inside_interval is inside


def test_without_an_expected_step_the_lower_bound_is_the_reference() -> None:
    step_s = replace(PLAN.forecast.step_s, expected=None, low=None, high=None)
    unknown = replace(PLAN, forecast=replace(PLAN.forecast, step_s=step_s))
    run, steps = preempted_run()
    report = compare(run, unknown, steps)
    assert report.gap
    assert (report.gap.against, report.inside_interval) == ("lower", None)
    assert [ratio.against for ratio in report.ratios] == ["lower", "unoverlapped"]


def test_the_parts_of_the_gap_add_up() -> None:
    run, steps = preempted_run()
    saving = steps[2][4]
    steps[2][4] = replace(saving, step=replace(saving.step, step_s=2.0, checkpoint_s=0.9))
    report = compare(run, PLAN, steps)
    assert report.gap
    assert report.measured
    assert isclose(sum(part.s for part in report.gap.parts), report.gap.s)
    assert report.gap.against == "expected"
    expected_s = PLAN.forecast.step_s.expected
    assert isclose(report.gap.s, report.measured.mean_step_s - (expected_s or 0.0))
    parts = {part.name: part.s for part in report.gap.parts}
    assert isclose(parts["saving"], 0.9 / 18)
    assert parts["slow steps"] > 0


def test_a_mean_below_the_median_gives_no_negative_part() -> None:
    run, steps = preempted_run()
    quick = {1: 0.1, 2: 0.2}
    steps[2] = [
        replace(one, step=replace(one.step, data_s=0.0, step_s=quick.get(at, 0.5)))
        for at, one in enumerate(steps[2])
    ]
    report = compare(run, PLAN, steps)
    assert report.gap
    assert report.measured
    assert report.measured.mean_step_s < report.measured.device_s
    parts = {part.name: part.s for part in report.gap.parts}
    assert parts["slow steps"] == 0
    assert isclose(sum(parts.values()), report.gap.s)
    output = step_time(PLAN, report).bars[-1]
    assert [segment.name for segment in output.segments] == ["devices"]
    assert isclose(output.value, report.measured.mean_step_s)


def test_a_suspect_at_its_rate_takes_the_measured_time() -> None:
    run, steps = preempted_run()
    report = compare(run, PLAN, steps)
    assert report.gap
    assert report.measured
    for suspect in report.gap.suspects:
        assert isclose(suspect.busy_s / suspect.rate_if_alone, report.measured.device_s)
    rates = [suspect.rate_if_alone for suspect in report.gap.suspects]
    assert rates == sorted(rates, reverse=True)


def test_a_rehearsal_is_not_compared_with_chips() -> None:
    run, steps = preempted_run()
    report = compare(replace(run, rehearsal=True, rehearses="0" * 64), PLAN, steps)
    assert report.measured
    assert report.not_compared == "cpu_rehearsal"
    assert (report.ratios, report.gap, report.inside_interval) == ((), None, None)


def test_the_peak_memory_is_the_largest_measured() -> None:
    run, steps = preempted_run()
    assert compare(run, PLAN, steps).memory.measured_bytes is None
    steps[2] = [replace(one, step=replace(one.step, peak_hbm_bytes=peak))
                for one, peak in zip(steps[2], [3, 8, 5, *[None] * 12], strict=True)]  # fmt: skip
    assert compare(run, PLAN, steps).memory.measured_bytes == 8


# --- where the time went


def test_goodput_and_badput_add_up() -> None:
    """Two attempts: two startups, five repeated steps, and the time between them."""
    run, steps = preempted_run()
    goodput = compare(run, PLAN, steps).goodput
    assert goodput
    assert goodput.waited_s == 10.0  # submitted at 0
    causes = lost(goodput)
    assert isclose(causes["tpu_initialization"], 2 * OPENING_S)
    assert isclose(causes["training_prep"], STATE_S)
    assert isclose(causes["unproductive_checkpoint_restore_time"], STATE_S)
    assert isclose(causes["program_startup"], 2 * (COMPILE_S + FIRST_S - 0.5))
    assert isclose(causes["wasted_progress_from_disruption"], 5 * 0.5)
    assert isclose(causes["infrastructure_recovery_from_disruption"], 100.0 - steps[1][-1].at_s)
    assert isclose(causes["data_loading_sync"], 14 * 0.1)
    assert isclose(goodput.goodput_s, 5 * 0.5 + 0.5 + 14 * 0.4)
    assert isclose(goodput.goodput_s + sum(causes.values()), goodput.total_s)
    assert isclose(causes["other"], 2.0)


@pytest.mark.parametrize("skew_s", [-30.0, 30.0])
def test_clocks_that_differ_count_no_second_twice(skew_s: float) -> None:
    run, steps = preempted_run()
    skewed = {n: [replace(t, at_s=t.at_s + skew_s) for t in taken] for n, taken in steps.items()}
    goodput = compare(run, PLAN, skewed).goodput
    assert goodput
    assert isclose(goodput.goodput_s + sum(goodput.badput_s.values()), goodput.total_s)
    assert min(goodput.badput_s.values()) >= 0
    assert 0 <= goodput.goodput <= 1


def test_a_running_run_is_counted_to_its_last_step() -> None:
    run, steps = preempted_run()
    going = replace(run, ended_at_s=None, attempts=(*run.attempts[:1], replace(
        run.attempts[1], ended_at_s=None, reason=None)))  # fmt: skip
    goodput = compare(going, PLAN, steps).goodput
    assert goodput
    assert isclose(goodput.total_s, steps[2][-1].at_s - 10.0)


# --- from a journal, and as a command


def test_a_report_from_a_journal_is_the_same(tmp_path: Path) -> None:
    steps = [timed_step.step for timed_step in timed(0.0, range(30), 0.25)]
    writer = finished_run(tmp_path, "it", plan=PLAN, steps=steps)
    report = make_report(writer.journal)
    assert report.measured
    assert report.measured.steps == 29
    assert report.measured.step_s.median == median(step.step_s for step in steps[1:])
    assert (report.first_loss, report.last_loss) == (steps[0].loss, steps[-1].loss)
    assert (report.state, report.steps_done, report.attempts) == ("succeeded", 30, 1)
    assert report.goodput
    assert report.goodput.waited_s == 5.0


def test_a_difference_is_a_share_or_a_factor() -> None:
    text = [off(measured_s, 0.835, "that") for measured_s in (0.74, 0.9, 11.8, 0.25)]
    assert text == [
        "11.4 % less than that",
        "7.8 % more than that",
        "14 times that",
        "0.3 times that",
    ]


def test_orch_compare_prints_a_table_or_json(orch: RunOrch, tmp_path: Path) -> None:
    for key, step_s in (("slow", 0.5), ("quick", 0.25)):
        steps = [taken.step for taken in timed(0.0, range(8), step_s)]
        if key == "quick":
            steps[0] = replace(steps[0], peak_hbm_bytes=3 << 30)
        finished_run(tmp_path, key, plan=PLAN, steps=steps)
    done = orch("compare", "slow", "quick", "--storage", str(tmp_path))
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if str(tmp_path) not in line]
    assert max(map(len, shown)) <= 100
    verdict = done.stdout.splitlines()[2].strip()
    assert verdict == (
        "Compare: quick has the most tokens per second and chip, 2 times the fewest."
    )
    assert "note: PREDICTED is the expected step" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("    quick ")]
    expected_s = PLAN.forecast.step_s.expected or 0.0
    assert float(rows[0][-2].replace(",", "")) == pytest.approx(0.25 / expected_s, rel=0.005)
    assert rows[1][-4:-2] == ["3.00", "GiB"]
    assert CAUSES["program_startup"] in done.stdout  # its name in JSON is Google's
    assert "program_startup" not in done.stdout
    assert "note: MEASURED is - where devices do not report memory" in done.stdout
    result = orch("compare", "slow", "quick", "--storage", str(tmp_path), "--json")
    assert [load["run"] for load in json.loads(result.stdout)] == ["slow", "quick"]


def test_orch_compare_says_what_cannot_be_compared(orch: RunOrch, tmp_path: Path) -> None:
    steps = [taken.step for taken in timed(0.0, range(8), 0.5)]
    finished_run(tmp_path, "real", plan=PLAN, steps=steps)
    finished_run(tmp_path, "small", plan=PLAN, steps=steps, rehearsal=True, rehearses=PLAN)
    claimed_run(tmp_path, key="new")
    mixed = orch("compare", "real", "small", "--storage", str(tmp_path)).stdout
    assert "rehearsals and real runs cannot be compared" in mixed
    assert "note: a rehearsal measures this machine's CPU" in mixed
    allowed = [line.split()[-1] for line in mixed.splitlines() if "iB" in line]
    assert allowed == ["GiB", "-"]
    assert "note: LIMIT is - in a rehearsal" in mixed
    empty = orch("compare", "real", "new", "--storage", str(tmp_path)).stdout
    assert "1 of 2 runs have no step after warm-up" in empty
    unknown = orch("compare", "nobody", "--storage", str(tmp_path))
    assert unknown.returncode == 2
    assert f"in {tmp_path} begins with 'nobody'; known: " in unknown.stderr


def test_the_screen_has_the_verdict_first_and_as_much_as_asked() -> None:
    """Each detail shows all of the one before it; JSON has all of it anyhow."""
    run, steps = preempted_run()
    found = compare(run, PLAN, steps)
    details: tuple[Detail, ...] = ("brief", "usual", "full")
    brief, usual, full = (
        {*report_screen(found, "page.html", "open page.html", detail).splitlines()}
        for detail in details
    )
    assert brief < usual < full
    first = report_screen(found, "", "", "brief").splitlines()[0]
    assert f"{found.run}: {run_verdict(found)}".startswith(first)
    shown = " ".join(full - usual)
    assert found.goodput
    assert all(CAUSES[name] in shown for name, s in found.goodput.badput_s.items() if s > 1)
