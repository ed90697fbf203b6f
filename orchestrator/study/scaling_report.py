"""The measured scaling of a study, compared with the predicted one."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.errors import JournalUnreadable
from orchestrator.journal import StudyJournal
from orchestrator.journal.run_journal import Clock
from orchestrator.report import make_report
from orchestrator.study.gap_explanation import explain_gaps
from orchestrator.study.scaling_forecast import (
    SeriesKey,
    planned_trial,
    series_key,
    series_of,
    smallest_plans,
)
from orchestrator.types.plan import Plan
from orchestrator.types.report import Measurement, Report, Spread
from orchestrator.types.scaling import RepeatedTrial, ScalingReport, TrialReport
from orchestrator.types.study import Study, Trial

SCHEMA = 2


@dataclass(frozen=True)
class TrialRun:
    """A run of a trial: its report, the plan that ran, and the plan for chips.

    The two plans differ in a rehearsal.
    """

    trial: int
    repeat: int
    report: Report
    plan: Plan
    full_plan: Plan

    @property
    def predicted(self) -> Plan:
        """The plan that the measurement is compared with, or the plan for chips."""
        return self.full_plan if self.report.not_compared else self.plan


RunsByTrial = Mapping[int, Sequence[TrialRun]]


def read_trial_runs(journal: StudyJournal, clock: Clock = time.time) -> list[TrialRun]:
    """The runs of a study in the order in which they started, without those that were removed."""
    runs = []
    for start in journal.trial_starts():
        trial = journal.trial_journal(start)
        try:
            report = make_report(trial, clock)
            plan = trial.plan(report.plan_digest)
            full_plan = trial.plan(report.rehearses) if report.rehearses else plan
        except JournalUnreadable:
            continue
        runs.append(TrialRun(start.trial, start.repeat, report, plan, full_plan))
    return runs


def make_scaling_report(key: str, study: Study, runs: Sequence[TrialRun]) -> ScalingReport:
    """The results of the trials, each relative to the smallest of its series."""
    assert study.scaling
    measured = {one.number: _measured_runs(one, runs) for one in study.trials}
    return ScalingReport(
        schema=SCHEMA,
        study=key,
        name=study.name,
        scaling=study.scaling,
        vary=study.vary,
        repeats=study.repeats,
        rehearsal=any(one.report.rehearsal for one in runs),
        trials=_trials(study, runs, measured),
        explanations=explain_gaps(_gaps(measured)),
    )


def _measured_runs(trial: Trial, runs: Sequence[TrialRun]) -> list[TrialRun]:
    """The newest run of each repeat that succeeded and was measured."""
    newest = {
        one.repeat: one
        for one in runs
        if one.trial == trial.number
        and one.report.state == "succeeded"
        and one.report.measured is not None
    }
    return [newest[repeat] for repeat in sorted(newest)]


def _trials(
    study: Study, runs: Sequence[TrialRun], measured: RunsByTrial
) -> tuple[TrialReport, ...]:
    plans = {number: done[-1].predicted for number, done in measured.items() if done}
    smallest, rates = smallest_plans(study, plans), _smallest_rates(study, measured)
    trials = []
    for trial in study.trials:
        series, done = series_of(study, trial), measured[trial.number]
        key, newest = series_key(series), done[-1] if done else None
        trials.append(
            TrialReport(
                number=trial.number,
                settings=trial.settings,
                series=series,
                chips=newest.plan.chips if newest else 0,
                done=len(done),
                unfinished=_unfinished(trial, runs),
                predicted=planned_trial(newest.predicted, smallest[key]) if newest else None,
                expected_s=_expected_s(newest.report) if newest else None,
                not_compared=newest.report.not_compared if newest else None,
                measured=_repeated(done, rates[key]) if newest else None,
            )
        )
    return tuple(trials)


def _expected_s(report: Report) -> float | None:
    expected = (one.step_s for one in report.ratios if one.against == "expected")
    return next(expected, None)


def _unfinished(trial: Trial, runs: Sequence[TrialRun]) -> dict[str, str]:
    """The state of each run that has not succeeded, unless a run of the same repeat has."""
    of_trial = [one for one in runs if one.trial == trial.number]
    done = {one.repeat for one in of_trial if one.report.state == "succeeded"}
    return {one.report.run: one.report.state for one in of_trial if one.repeat not in done}


def _smallest_rates(study: Study, measured: RunsByTrial) -> dict[SeriesKey, float]:
    """The tokens per second per chip of the smallest measured trial of each series."""
    chips: dict[SeriesKey, int] = {}
    rates: dict[SeriesKey, float] = {}
    for trial in study.trials:
        key, runs = series_key(series_of(study, trial)), measured[trial.number]
        if runs and (key not in chips or runs[-1].plan.chips < chips[key]):
            chips[key] = runs[-1].plan.chips
            rates[key] = _spread(runs, lambda one: one.tokens_per_s_per_chip).median
    return rates


def _repeated(runs: Sequence[TrialRun], smallest_rate: float) -> RepeatedTrial:
    has_mfu = all(one.report.measured and one.report.measured.mfu for one in runs)
    return RepeatedTrial(
        runs=tuple(one.report.run for one in runs),
        step_s=_spread(runs, lambda one: one.step_s.median),
        mfu=_spread(runs, lambda one: one.mfu.median if one.mfu else 0) if has_mfu else None,
        tokens_per_s_per_chip=_spread(runs, lambda one: one.tokens_per_s_per_chip),
        efficiency=_spread(runs, lambda one: one.tokens_per_s_per_chip / smallest_rate),
    )


def _spread(runs: Sequence[TrialRun], figure: Callable[[Measurement], float]) -> Spread:
    """The median and the extremes of a figure over repeats."""
    values = [figure(one.report.measured) for one in runs if one.report.measured]
    return Spread(median=median(values), low=min(values), high=max(values))


def _gaps(measured: RunsByTrial) -> list[tuple[Plan, float]]:
    """The plan and the median gap on the devices of each trial that can be compared."""
    gaps = []
    for runs in measured.values():
        gaps_s = [one.report.gap.parts[0].s for one in runs if one.report.gap]
        if gaps_s:
            gaps.append((runs[-1].plan, median(gaps_s)))
    return gaps
