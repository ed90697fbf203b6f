"""The predicted scaling of a study, from the plans of its trials. Pure."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.errors import JournalUnreadable
from orchestrator.evidence.report import make_report
from orchestrator.journal.run_journal import Clock
from orchestrator.journal.study_journal import StudyJournal
from orchestrator.values.plan import Estimate, Plan
from orchestrator.values.report import Measurement, Report, Spread
from orchestrator.values.study import (
    GapExplanation,
    PlannedTrial,
    RepeatedTrial,
    ScalingForecast,
    ScalingReport,
    Study,
    Trial,
    TrialForecast,
    TrialReport,
)

SCHEMA = 2
# Settings that make a trial larger. Trials that differ in others belong to different series.
SIZE_KEYS = frozenset({"resources.pods", "resources.topology"})
BATCH_KEY = "experiment.batch.sequences"  # grows with the pods in weak scaling

TrialPlans = Mapping[int, Plan | str]  # by the number of the trial: its plan, or the error
SeriesKey = tuple[tuple[str, str], ...]


def forecast_scaling(study: Study, plans: TrialPlans) -> ScalingForecast:
    """The forecast of each trial, relative to the smallest of its series."""
    assert study.scaling
    smallest = smallest_plans(study, plans)
    return ScalingForecast(
        schema=SCHEMA,
        name=study.name,
        scaling=study.scaling,
        vary=study.vary,
        trials=tuple(_trial(study, one, plans[one.number], smallest) for one in study.trials),
    )


def _trial(
    study: Study, trial: Trial, plan: Plan | str, smallest: Mapping[SeriesKey, Plan]
) -> TrialForecast:
    series = series_of(study, trial)
    planned = None
    if isinstance(plan, Plan):
        planned = planned_trial(plan, smallest[series_key(series)])
    return TrialForecast(
        number=trial.number,
        settings=trial.settings,
        series=series,
        planned=planned,
        infeasible=plan if isinstance(plan, str) else None,
    )


def series_of(study: Study, trial: Trial) -> dict[str, str]:
    """The settings that put a trial into its series."""
    size = SIZE_KEYS | ({BATCH_KEY} if study.scaling == "weak" else set())
    return {key: text for key, text in trial.settings.items() if key not in size}


def series_key(series: Mapping[str, str]) -> SeriesKey:
    """A series as the key of a mapping."""
    return tuple(sorted(series.items()))


def smallest_plans(study: Study, plans: TrialPlans) -> dict[SeriesKey, Plan]:
    """The plan with the fewest chips of each series."""
    smallest: dict[SeriesKey, Plan] = {}
    for trial in study.trials:
        plan, key = plans.get(trial.number), series_key(series_of(study, trial))
        if isinstance(plan, Plan) and (key not in smallest or plan.chips < smallest[key].chips):
            smallest[key] = plan
    return smallest


def planned_trial(plan: Plan, smallest: Plan) -> PlannedTrial:
    """A plan in figures, relative to the smallest of its series."""
    rate = rate_per_chip(plan)
    return PlannedTrial(
        plan_digest=plan.digest,
        pods=plan.pods,
        chips=plan.chips,
        sequences=plan.batch.sequences,
        mesh=plan.mesh,
        step_s=plan.forecast.step_s,
        mfu=plan.forecast.mfu,
        tokens_per_s_per_chip=rate,
        efficiency=efficiency(rate, rate_per_chip(smallest)),
        bound=plan.forecast.bound,
        days=plan.forecast.days,
        dollars=plan.forecast.dollars,
        warnings=plan.warnings,
    )


def rate_per_chip(plan: Plan) -> Estimate:
    """Tokens per second per chip."""
    rate, chips = plan.forecast.tokens_per_s, plan.chips
    return Estimate(
        lower=rate.lower / chips,
        unoverlapped=rate.unoverlapped / chips,
        expected=None if rate.expected is None else rate.expected / chips,
    )


def efficiency(rate: Estimate, smallest: Estimate) -> Estimate:
    """A rate over that of the smallest trial; `expected` where both have it."""
    expected = None
    if rate.expected is not None and smallest.expected:
        expected = rate.expected / smallest.expected
    return Estimate(
        lower=rate.lower / smallest.lower,
        unoverlapped=rate.unoverlapped / smallest.unoverlapped,
        expected=expected,
    )


# Which ledger lines grow over trials as the gap between measured and predicted does. Pure.


MIN_TRIALS = 2  # every line explains a single gap
MIN_SHARE = 0.5
MAX_LINES = 3


def explain_gaps(gaps: Sequence[tuple[Plan, float]]) -> tuple[GapExplanation, ...]:
    """The lines that explain most of the gaps, which are in seconds, one for each plan.

    The lines are those of the expected step or, without one, of the lower bound. For each line the
    multiple is found that leaves the least squared gaps; a negative multiple explains nothing.
    """
    if len(gaps) < MIN_TRIALS:
        return ()
    gaps_s = [gap_s for _, gap_s in gaps]
    explanations = []
    for (line, resource), values in _lines([plan for plan, _ in gaps]).items():
        pairs = list(zip(values, gaps_s, strict=True))
        times = sum(value * gap_s for value, gap_s in pairs) / sum(v * v for v in values)
        left = sum((gap_s - times * value) ** 2 for value, gap_s in pairs)
        share = 1 - left / sum(gap_s * gap_s for gap_s in gaps_s)
        if times > 0 and share >= MIN_SHARE:
            explanations.append(
                GapExplanation(line=line, resource=resource, times=times, share=share)
            )
    return tuple(sorted(explanations, key=lambda one: -one.share)[:MAX_LINES])


def _lines(plans: Sequence[Plan]) -> dict[tuple[str, str], list[float]]:
    """Every ledger line with its seconds in each plan; 0 where a plan lacks it."""
    lines: dict[tuple[str, str], list[float]] = {}
    expected = all(plan.forecast.expected_time for plan in plans)
    for i, plan in enumerate(plans):
        for line in plan.forecast.expected_time if expected else plan.forecast.time:
            values = lines.setdefault((line.name, line.resource or ""), [0.0] * len(plans))
            values[i] += line.value
    return lines


# The measured scaling of a study, compared with the predicted one.


REPORT_SCHEMA = 2


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
        schema=REPORT_SCHEMA,
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
