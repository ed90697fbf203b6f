"""Studies of one spec, trial by trial: predicted and measured scaling, and losses of sweeps."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.errors import JournalUnreadable
from orchestrator.evidence.report import make_report
from orchestrator.journal.run_journal import Clock
from orchestrator.journal.steps import Floats, Integers, counted_steps, read_table
from orchestrator.journal.study_journal import StudyJournal
from orchestrator.planning.forecast import scale
from orchestrator.values.plan import Estimate, Plan
from orchestrator.values.report import Measurement, Report, Spread
from orchestrator.values.study import (
    GapExplanation,
    PlannedSweepTrial,
    PlannedTrial,
    RepeatedTrial,
    ScalingForecast,
    ScalingReport,
    Study,
    SweepForecast,
    SweepReport,
    SweepTrialForecast,
    SweepTrialReport,
    Trial,
    TrialForecast,
    TrialReport,
)

_SCHEMA = 2  # of all forecasts and reports
# Settings that make a trial larger. Trials that differ in others belong to different series.
_SIZE_KEYS = frozenset({"resources.pods", "resources.topology"})
_BATCH_KEY = "experiment.batch.sequences"  # grows with the pods in weak scaling

_TrialPlans = Mapping[int, Plan | str]  # by the number of the trial: its plan, or the error
_SeriesKey = tuple[tuple[str, str], ...]


def forecast_of(study: Study, plans: _TrialPlans) -> ScalingForecast | SweepForecast:
    """Return the forecast of a study by its kind."""
    return (_forecast_sweep if study.kind == "sweep" else _forecast_scaling)(study, plans)


def report_of_study(study: StudyJournal) -> ScalingReport | SweepReport:
    """Return the measured scaling of a study and the predicted one, or the losses of a sweep."""
    return report_of_runs(study, read_trial_runs(study))


def report_of_runs(
    journal: StudyJournal, runs: Sequence["_TrialRun"]
) -> ScalingReport | SweepReport:
    """Return the report of a study by its kind."""
    study = journal.submission().study
    if study.kind == "sweep":
        return _make_sweep_report(journal.key, study, runs, _trial_losses(journal))
    return _make_scaling_report(journal.key, study, runs)


# The predicted scaling of a study, from the plans of its trials.


def _forecast_scaling(study: Study, plans: _TrialPlans) -> ScalingForecast:
    """Return the forecast of each trial, relative to the smallest of its series."""
    assert study.scaling
    smallest = _smallest_plans(study, plans)
    trials = []
    for trial in study.trials:
        series, plan = _series_of(study, trial), plans[trial.number]
        planned = None
        if isinstance(plan, Plan):
            planned = _planned_trial(plan, smallest[_series_key(series)])
        trials.append(
            TrialForecast(
                number=trial.number,
                settings=trial.settings,
                series=series,
                planned=planned,
                infeasible=plan if isinstance(plan, str) else None,
            )
        )
    return ScalingForecast(
        schema=_SCHEMA,
        name=study.name,
        scaling=study.scaling,
        vary=study.vary,
        trials=tuple(trials),
    )


def _series_of(study: Study, trial: Trial) -> dict[str, str]:
    """Return the settings that put a trial into its series."""
    size = _SIZE_KEYS | ({_BATCH_KEY} if study.scaling == "weak" else set())
    return {key: text for key, text in trial.settings.items() if key not in size}


def _series_key(series: Mapping[str, str]) -> _SeriesKey:
    return tuple(sorted(series.items()))


def _smallest_plans(study: Study, plans: _TrialPlans) -> dict[_SeriesKey, Plan]:
    """Return the plan with the fewest chips of each series."""
    smallest: dict[_SeriesKey, Plan] = {}
    for trial in study.trials:
        plan, key = plans.get(trial.number), _series_key(_series_of(study, trial))
        if isinstance(plan, Plan) and (key not in smallest or plan.chips < smallest[key].chips):
            smallest[key] = plan
    return smallest


def _planned_trial(plan: Plan, smallest: Plan) -> PlannedTrial:
    """Return a plan in figures, relative to the smallest of its series."""
    rate, least = _rate_per_chip(plan), _rate_per_chip(smallest)
    expected = None
    if rate.expected is not None and least.expected:
        expected = rate.expected / least.expected
    return PlannedTrial(
        plan_digest=plan.digest,
        pods=plan.pods,
        chips=plan.chips,
        sequences=plan.batch.sequences,
        mesh=plan.mesh,
        step_s=plan.forecast.step_s,
        mfu=plan.forecast.mfu,
        tokens_per_s_per_chip=rate,
        efficiency=Estimate(
            lower=rate.lower / least.lower,
            unoverlapped=rate.unoverlapped / least.unoverlapped,
            expected=expected,
        ),
        bound=plan.forecast.bound,
        days=plan.forecast.days,
        dollars=plan.forecast.dollars,
        warnings=plan.warnings,
    )


def _rate_per_chip(plan: Plan) -> Estimate:
    """Return tokens per second per chip."""
    rate, chips = plan.forecast.tokens_per_s, plan.chips
    return Estimate(
        lower=rate.lower / chips,
        unoverlapped=rate.unoverlapped / chips,
        expected=None if rate.expected is None else rate.expected / chips,
    )


# Which ledger lines grow over trials as the gap between measured and predicted does.


_MIN_TRIALS = 2  # every line explains a single gap
_MIN_SHARE = 0.5
_MAX_LINES = 3


def _explain_gaps(gaps: Sequence[tuple[Plan, float]]) -> tuple[GapExplanation, ...]:
    """Return the lines that explain most of the gaps, which are in seconds, one for each plan.

    The lines are those of the expected step or, without one, of the lower bound. For each line the
    multiple is found that leaves the least squared gaps; a negative multiple explains nothing.
    """
    if len(gaps) < _MIN_TRIALS:
        return ()
    gaps_s = [gap_s for _, gap_s in gaps]
    # Every ledger line with its seconds in each plan; 0 where a plan lacks it.
    lines: dict[tuple[str, str], list[float]] = {}
    has_expected = all(plan.forecast.expected_time for plan, _ in gaps)
    for i, (plan, _) in enumerate(gaps):
        for line in plan.forecast.expected_time if has_expected else plan.forecast.time:
            values = lines.setdefault((line.name, line.resource or ""), [0.0] * len(gaps))
            values[i] += line.value
    explanations = []
    for (name, resource), values in lines.items():
        pairs = list(zip(values, gaps_s, strict=True))
        # times = (v . g) / (v . v); share = 1 - |g - times v|^2 / |g|^2
        times = sum(value * gap_s for value, gap_s in pairs) / sum(v * v for v in values)
        left = sum((gap_s - times * value) ** 2 for value, gap_s in pairs)
        share = 1 - left / sum(gap_s * gap_s for gap_s in gaps_s)
        if times > 0 and share >= _MIN_SHARE:
            explanations.append(
                GapExplanation(line=name, resource=resource, times=times, share=share)
            )
    explanations.sort(key=lambda explanation: -explanation.share)
    return tuple(explanations[:_MAX_LINES])


# The measured scaling of a study, compared with the predicted one.


@dataclass(frozen=True)
class _TrialRun:
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


_RunsByTrial = Mapping[int, Sequence[_TrialRun]]


def read_trial_runs(journal: StudyJournal, clock: Clock = time.time) -> list[_TrialRun]:
    """Return the runs of a study in the order of their starts, without those that were removed."""
    runs = []
    for start in journal.trial_starts():
        trial = journal.trial_journal(start)
        try:
            report = make_report(trial, clock)
            plan = trial.plan(report.plan_digest)
            full_plan = trial.plan(report.rehearses) if report.rehearses else plan
        except JournalUnreadable:
            continue
        runs.append(_TrialRun(start.trial, start.repeat, report, plan, full_plan))
    return runs


def _make_scaling_report(key: str, study: Study, runs: Sequence[_TrialRun]) -> ScalingReport:
    """Return the results of the trials, each relative to the smallest of its series."""
    assert study.scaling
    # The newest run of each trial and repeat that succeeded and was measured.
    measured: dict[int, list[_TrialRun]] = {}
    for trial in study.trials:
        newest = {
            run.repeat: run
            for run in runs
            if run.trial == trial.number
            and run.report.state == "succeeded"
            and run.report.measured is not None
        }
        measured[trial.number] = [newest[repeat] for repeat in sorted(newest)]
    # The plan and the median gap on the devices of each trial that can be compared.
    gaps = []
    for done in measured.values():
        gaps_s = [run.report.gap.parts[0].s for run in done if run.report.gap]
        if gaps_s:
            gaps.append((done[-1].plan, median(gaps_s)))
    return ScalingReport(
        schema=_SCHEMA,
        study=key,
        name=study.name,
        scaling=study.scaling,
        vary=study.vary,
        repeats=study.repeats,
        rehearsal=any(run.report.rehearsal for run in runs),
        trials=_trial_reports(study, runs, measured),
        explanations=_explain_gaps(gaps),
    )


def _trial_reports(
    study: Study, runs: Sequence[_TrialRun], measured: _RunsByTrial
) -> tuple[TrialReport, ...]:
    plans = {number: done[-1].predicted for number, done in measured.items() if done}
    smallest = _smallest_plans(study, plans)
    # Tokens per second per chip of the smallest measured trial of each series.
    chips: dict[_SeriesKey, int] = {}
    rates: dict[_SeriesKey, float] = {}
    for trial in study.trials:
        key, done = _series_key(_series_of(study, trial)), measured[trial.number]
        if done and (key not in chips or done[-1].plan.chips < chips[key]):
            chips[key] = done[-1].plan.chips
            rates[key] = _spread(done, lambda run: run.tokens_per_s_per_chip).median
    trials = []
    for trial in study.trials:
        series, done = _series_of(study, trial), measured[trial.number]
        key, newest = _series_key(series), done[-1] if done else None
        own = [run for run in runs if run.trial == trial.number]
        succeeded = {run.repeat for run in own if run.report.state == "succeeded"}
        trials.append(
            TrialReport(
                number=trial.number,
                settings=trial.settings,
                series=series,
                chips=newest.plan.chips if newest else 0,
                done=len(done),
                unfinished={
                    run.report.run: run.report.state for run in own if run.repeat not in succeeded
                },
                predicted=_planned_trial(newest.predicted, smallest[key]) if newest else None,
                expected_s=_expected_s(newest.report) if newest else None,
                not_compared=newest.report.not_compared if newest else None,
                measured=_repeated(done, rates[key]) if newest else None,
            )
        )
    return tuple(trials)


def _expected_s(report: Report) -> float | None:
    return next((ratio.step_s for ratio in report.ratios if ratio.against == "expected"), None)


def _repeated(runs: Sequence[_TrialRun], smallest_rate: float) -> RepeatedTrial:
    has_mfu = all(run.report.measured and run.report.measured.mfu for run in runs)
    return RepeatedTrial(
        runs=tuple(run.report.run for run in runs),
        step_s=_spread(runs, lambda run: run.step_s.median),
        mfu=_spread(runs, lambda run: run.mfu.median if run.mfu else 0) if has_mfu else None,
        tokens_per_s_per_chip=_spread(runs, lambda run: run.tokens_per_s_per_chip),
        efficiency=_spread(runs, lambda run: run.tokens_per_s_per_chip / smallest_rate),
    )


def _spread(runs: Sequence[_TrialRun], figure: Callable[[Measurement], float]) -> Spread:
    """Return the median and the extremes of a figure over repeats."""
    values = [figure(run.report.measured) for run in runs if run.report.measured]
    return Spread(median=median(values), low=min(values), high=max(values))


# What a sweep costs, from the plans of its trials.


def _forecast_sweep(study: Study, plans: _TrialPlans) -> SweepForecast:
    """Return the plan of each trial, and the days and dollars of all."""
    trials, planned = [], []
    for trial in study.trials:
        plan = plans[trial.number]
        figures = planned_trial(trial, plan) if isinstance(plan, Plan) else None
        planned += [figures] if figures else []
        trials.append(
            SweepTrialForecast(
                number=trial.number,
                settings=trial.settings,
                planned=figures,
                infeasible=plan if isinstance(plan, str) else None,
            )
        )
    prices = [figures.dollars for figures in planned if figures.dollars]
    return SweepForecast(
        schema=_SCHEMA,
        name=study.name,
        vary=study.vary,
        repeats=study.repeats,
        trials=tuple(trials),
        days=_total([figures.days for figures in planned], study.repeats),
        dollars=_total(prices, study.repeats) if len(prices) == len(planned) else None,
    )


def planned_trial(trial: Trial, plan: Plan) -> PlannedSweepTrial:
    """Return a plan in figures. A trial has `run.steps`, or the steps that its tokens need."""
    forecast, steps = plan.forecast, trial.spec.run.steps or plan.total_steps
    share = steps / plan.total_steps
    return PlannedSweepTrial(
        plan_digest=plan.digest,
        pods=plan.pods,
        chips=plan.chips,
        sequences=plan.batch.sequences,
        mesh=plan.mesh,
        steps=steps,
        step_s=forecast.step_s,
        mfu=forecast.mfu,
        bound=forecast.bound,
        days=scale(forecast.days, share),
        dollars=scale(forecast.dollars, share) if forecast.dollars else None,
        warnings=plan.warnings,
    )


def _total(estimates: Sequence[Estimate], times: int) -> Estimate | None:
    """Return `times` the sum of estimates; a value that one of them lacks is None."""
    if not estimates:
        return None

    def total_of(name: str) -> float | None:
        values = [getattr(estimate, name) for estimate in estimates]
        return None if None in values else times * sum(values)

    return Estimate(
        lower=times * sum(estimate.lower for estimate in estimates),
        unoverlapped=times * sum(estimate.unoverlapped for estimate in estimates),
        expected=total_of("expected"),
        low=total_of("low"),
        high=total_of("high"),
    )


# The losses of a sweep's trials, read from their journals, and the best trial.


@dataclass(frozen=True, eq=False)
class _Losses:
    """The losses of a trial by the index of their steps, in order."""

    index: Integers
    loss: Floats

    @property
    def steps_done(self) -> int:
        return int(self.index[-1]) + 1 if len(self.index) else 0

    def mean(self, begin: int, end: int) -> float | None:
        """Return the mean loss of the steps from `begin` to before `end`."""
        chosen = (self.index >= begin) & (self.index < end)
        return float(self.loss[chosen].mean()) if chosen.any() else None


def _trial_losses(study: StudyJournal) -> dict[int, _Losses]:
    """Return the losses of the newest first repeat of each trial, of each step its last attempt.

    The other repeats have the same losses.
    """
    newest = {start.trial: start for start in study.trial_starts() if start.repeat == 1}
    losses = {}
    for number, start in newest.items():
        journal = study.trial_journal(start)
        try:
            attempts = journal.run().attempts
        except JournalUnreadable:  # it was removed, or never began
            continue
        tables = {attempt.number: read_table(journal.path, attempt)[0] for attempt in attempts}
        steps = counted_steps(tables)
        losses[number] = _Losses(steps.index, steps.loss)
    return losses


_MOST_POINTS = 100  # of a curve of losses
_LAST_SHARE = 10  # the loss of a trial is the mean over its last tenth


def _make_sweep_report(
    key: str, study: Study, runs: Sequence[_TrialRun], losses: Mapping[int, _Losses]
) -> SweepReport:
    """Return the results of all trials."""
    trials = tuple(_reported_trial(trial, runs, losses.get(trial.number)) for trial in study.trials)
    whole = [
        (trial.loss, trial.number)
        for trial in trials
        if trial.loss is not None and 0 < trial.steps == trial.steps_done
    ]
    return SweepReport(
        schema=_SCHEMA,
        study=key,
        name=study.name,
        vary=study.vary,
        rehearsal=any(run.report.rehearsal for run in runs),
        trials=trials,
        best=min(whole)[1] if whole else None,
    )


def _reported_trial(
    trial: Trial, runs: Sequence[_TrialRun], losses: _Losses | None
) -> SweepTrialReport:
    own = [run for run in runs if run.trial == trial.number]
    first = next((run.report for run in reversed(own) if run.repeat == 1), None)
    measured, steps = (first.measured, first.steps) if first else (None, 0)
    curve: tuple[tuple[int, float], ...] = ()
    if losses is None or first is None:  # without the run, the number of its steps is unknown
        done, loss = 0, None
    else:
        done, loss = losses.steps_done, _last_loss(losses, steps)
        curve = _loss_curve(losses, steps)
    return SweepTrialReport(
        number=trial.number,
        settings=trial.settings,
        runs={run.report.run: run.report.state for run in own},
        steps_done=done,
        steps=steps,
        loss=loss,
        losses=curve,
        step_s=measured.step_s if measured else None,
        expected_s=_expected_s(first) if first else None,
        mfu=measured.mfu.median if measured and measured.mfu else None,
    )


def _last_loss(losses: _Losses, steps: int) -> float | None:
    """Return the mean loss over the last tenth of all steps, as far as a trial came."""
    done = losses.steps_done
    return losses.mean(done - max(1, steps // _LAST_SHARE), done)


def _loss_curve(losses: _Losses, steps: int) -> tuple[tuple[int, float], ...]:
    """Return the mean losses of equal parts, each at its last step."""
    size, done = max(1, -(-steps // _MOST_POINTS)), losses.steps_done
    ends = [*range(size, done, size), done] if done else []
    means = ((end, losses.mean(end - size, end)) for end in ends)
    return tuple((end, mean) for end, mean in means if mean is not None)
