"""Studies of one spec, trial by trial: predicted and measured scaling, and losses of sweeps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from orchestrator.errors import JournalUnreadable
from orchestrator.evidence.report import make_report
from orchestrator.journal.listing import StudyJournal
from orchestrator.journal.steps import Floats, Integers, counted_steps, read_table
from orchestrator.planning.forecast import add, scale
from orchestrator.values import study as values
from orchestrator.values.plan import Estimate, Plan
from orchestrator.values.report import Measurement, Report, Spread
from orchestrator.values.study import Study, SweepReport, Trial

_SCHEMA = 2  # of all forecasts and reports
# Settings that make a trial larger. Trials that differ in others belong to different series.
_SIZE_KEYS = frozenset({"resources.pods", "resources.topology"})
_BATCH_KEY = "experiment.batch.sequences"  # grows with the pods in weak scaling

_TrialPlans = Mapping[int, Plan | str]  # by the number of the trial: its plan, or the error
_SeriesKey = frozenset[tuple[str, str]]


def forecast_of(study: Study, plans: _TrialPlans) -> values.ScalingForecast | values.SweepForecast:
    return (_forecast_sweep if study.kind == "sweep" else _forecast_scaling)(study, plans)


def report_of_study(
    journal: StudyJournal, runs: Sequence["_TrialRun"] | None = None
) -> values.ScalingReport | SweepReport:
    """Return the measured scaling of a study and the predicted one, or the losses of a sweep."""
    study, runs = journal.submission().study, runs or read_trial_runs(journal)
    if study.kind == "sweep":
        return _make_sweep_report(journal.key, study, runs, _trial_losses(journal))
    return _make_scaling_report(journal.key, study, runs)


def _forecast_scaling(study: Study, plans: _TrialPlans) -> values.ScalingForecast:
    assert study.scaling
    smallest = _smallest_plans(study, plans)
    trials = []
    for trial in study.trials:
        series, plan = _series_of(study, trial), plans[trial.number]
        planned, error = None, plan if isinstance(plan, str) else None
        if isinstance(plan, Plan):
            planned = _planned_trial(plan, smallest[frozenset(series.items())])
        forecast = values.TrialForecast(
            number=trial.number,
            settings=trial.settings,
            series=series,
            planned=planned,
            infeasible=error,
        )
        trials.append(forecast)
    return values.ScalingForecast(
        schema=_SCHEMA,
        name=study.name,
        scaling=study.scaling,
        vary=study.vary,
        trials=tuple(trials),
    )


def _series_of(study: Study, trial: Trial) -> dict[str, str]:
    size = _SIZE_KEYS | ({_BATCH_KEY} if study.scaling == "weak" else set())
    return {key: text for key, text in trial.settings.items() if key not in size}


def _smallest_plans(study: Study, plans: _TrialPlans) -> dict[_SeriesKey, Plan]:
    smallest: dict[_SeriesKey, Plan] = {}
    for trial in study.trials:
        plan, key = plans.get(trial.number), frozenset(_series_of(study, trial).items())
        if isinstance(plan, Plan) and (key not in smallest or plan.chips < smallest[key].chips):
            smallest[key] = plan
    return smallest


def _planned_trial(plan: Plan, smallest: Plan) -> values.PlannedTrial:
    """Return a plan in figures, relative to the smallest of its series."""

    def ratio(amount: Estimate, divisors: Estimate | int) -> Estimate:
        """Return an estimate over a number, or over another estimate; neither has an interval."""
        if isinstance(divisors, int):
            divisors = Estimate(lower=divisors, unoverlapped=divisors, expected=divisors)
        expected = None
        if amount.expected is not None and divisors.expected:
            expected = amount.expected / divisors.expected
        return Estimate(
            lower=amount.lower / divisors.lower,
            unoverlapped=amount.unoverlapped / divisors.unoverlapped,
            expected=expected,
        )

    rate = ratio(plan.forecast.tokens_per_s, plan.chips)
    return values.PlannedTrial(
        **_figures(plan),
        tokens_per_s_per_chip=rate,
        efficiency=ratio(rate, ratio(smallest.forecast.tokens_per_s, smallest.chips)),
        days=plan.forecast.days,
        dollars=plan.forecast.dollars,
    )


def _figures(plan: Plan) -> dict[str, Any]:
    unchanged = {name: getattr(plan, name) for name in ("pods", "chips", "mesh", "warnings")}
    predicted = {name: getattr(plan.forecast, name) for name in ("step_s", "mfu", "bound")}
    return {
        **unchanged, **predicted, "plan_digest": plan.digest, "sequences": plan.batch.sequences,
    }  # fmt: skip


_MIN_TRIALS = 2  # every line explains a single gap
_MIN_SHARE = 0.5
_MAX_LINES = 3


def _explain_gaps(gaps: Sequence[tuple[Plan, float]]) -> tuple[values.GapExplanation, ...]:
    """Return the lines that explain most of the gaps, which are in seconds, one for each plan. A
    line's multiple leaves the least squared gaps; a negative one explains nothing.
    """
    if len(gaps) < _MIN_TRIALS:
        return ()
    gaps_s = [gap_s for _, gap_s in gaps]
    # Every ledger line with its seconds in each plan; 0 where a plan lacks it.
    lines: dict[tuple[str, str], list[float]] = {}
    has_expected = all(plan.forecast.expected_time for plan, _ in gaps)
    for i, (plan, _) in enumerate(gaps):
        for line in plan.forecast.expected_time if has_expected else plan.forecast.time:
            seconds = lines.setdefault((line.name, line.resource or ""), [0.0] * len(gaps))
            seconds[i] += line.value
    explanations = []
    for (name, resource), seconds in lines.items():
        pairs = list(zip(seconds, gaps_s, strict=True))
        # times = (v . g) / (v . v); share = 1 - |g - times v|^2 / |g|^2
        times = sum(s * gap_s for s, gap_s in pairs) / sum(s * s for s in seconds)
        left = sum((gap_s - times * s) ** 2 for s, gap_s in pairs)
        share = 1 - left / sum(gap_s * gap_s for gap_s in gaps_s)
        if times > 0 and share >= _MIN_SHARE:
            found = values.GapExplanation(line=name, resource=resource, times=times, share=share)
            explanations.append(found)
    explanations.sort(key=lambda explanation: -explanation.share)
    return tuple(explanations[:_MAX_LINES])


@dataclass(frozen=True)
class _TrialRun:
    """A run of a trial: its report, its plan, and that for chips, which differs in a rehearsal."""

    trial: int
    repeat: int
    report: Report
    plan: Plan
    full_plan: Plan

    @property
    def predicted(self) -> Plan:
        """The plan that the measurement is compared with, or the plan for chips."""
        return self.full_plan if self.report.not_compared else self.plan


def read_trial_runs(journal: StudyJournal) -> list[_TrialRun]:
    """Return the runs of a study in the order of their starts, without those that were removed."""
    runs = []
    for start in journal.trial_starts():
        trial = journal.trial_journal(start)
        try:
            report = make_report(trial)
            plan = trial.plan(report.plan_digest)
            full_plan = trial.plan(report.rehearses) if report.rehearses else plan
        except JournalUnreadable:
            continue
        runs.append(_TrialRun(start.trial, start.repeat, report, plan, full_plan))
    return runs


def _make_scaling_report(key: str, study: Study, runs: Sequence[_TrialRun]) -> values.ScalingReport:
    assert study.scaling
    # The newest run of each trial and repeat that succeeded and was measured; and the smallest such
    # trial of each series: its chips, and tokens per second per chip.
    measured: dict[int, list[_TrialRun]] = {}
    least: dict[_SeriesKey, tuple[int, float]] = {}
    for trial in study.trials:
        newest = {
            run.repeat: run
            for run in runs
            if run.trial == trial.number and run.report.state == "succeeded" and run.report.measured
        }
        measured[trial.number] = done = [newest[repeat] for repeat in sorted(newest)]
        same = frozenset(_series_of(study, trial).items())
        if done and (same not in least or done[-1].plan.chips < least[same][0]):
            rate = _spread(done, lambda run: run.tokens_per_s_per_chip).median
            least[same] = done[-1].plan.chips, rate
    plans = {number: done[-1].predicted for number, done in measured.items() if done}
    smallest, trials = _smallest_plans(study, plans), []
    for trial in study.trials:
        series, done = _series_of(study, trial), measured[trial.number]
        same, last = frozenset(series.items()), done[-1] if done else None
        own = [run for run in runs if run.trial == trial.number]
        succeeded = {run.repeat for run in own if run.report.state == "succeeded"}
        report = values.TrialReport(
            number=trial.number,
            settings=trial.settings,
            series=series,
            chips=last.plan.chips if last else 0,
            done=len(done),
            unfinished={
                run.report.run: run.report.state for run in own if run.repeat not in succeeded
            },
            predicted=_planned_trial(last.predicted, smallest[same]) if last else None,
            expected_s=_expected_s(last.report) if last else None,
            not_compared=last.report.not_compared if last else None,
            measured=_repeated(done, least[same][1]) if last else None,
        )
        trials.append(report)
    # The plan and the median gap on the devices of each trial that can be compared.
    gaps = []
    for done in measured.values():
        gaps_s = [run.report.gap.parts[0].s for run in done if run.report.gap]
        if gaps_s:
            gaps.append((done[-1].plan, median(gaps_s)))
    return values.ScalingReport(
        schema=_SCHEMA,
        study=key,
        name=study.name,
        scaling=study.scaling,
        vary=study.vary,
        repeats=study.repeats,
        rehearsal=any(run.report.rehearsal for run in runs),
        trials=tuple(trials),
        explanations=_explain_gaps(gaps),
    )


def _expected_s(report: Report) -> float | None:
    return next((ratio.step_s for ratio in report.ratios if ratio.against == "expected"), None)


def _repeated(runs: Sequence[_TrialRun], smallest_rate: float) -> values.RepeatedTrial:
    has_mfu = all(run.report.measured and run.report.measured.mfu for run in runs)
    return values.RepeatedTrial(
        runs=tuple(run.report.run for run in runs),
        step_s=_spread(runs, lambda run: run.step_s.median),
        mfu=_spread(runs, lambda run: run.mfu.median if run.mfu else 0) if has_mfu else None,
        tokens_per_s_per_chip=_spread(runs, lambda run: run.tokens_per_s_per_chip),
        efficiency=_spread(runs, lambda run: run.tokens_per_s_per_chip / smallest_rate),
    )


def _spread(runs: Sequence[_TrialRun], figure: Callable[[Measurement], float]) -> Spread:
    figures = [figure(run.report.measured) for run in runs if run.report.measured]
    return Spread(median=median(figures), low=min(figures), high=max(figures))


def _forecast_sweep(study: Study, plans: _TrialPlans) -> values.SweepForecast:
    trials, planned = [], []
    for trial in study.trials:
        plan, figures = plans[trial.number], None
        if isinstance(plan, Plan):
            # A trial has `run.steps`, or the steps that its tokens need.
            steps, forecast = trial.spec.run.steps or plan.total_steps, plan.forecast
            share = steps / plan.total_steps
            figures = values.PlannedSweepTrial(
                **_figures(plan),
                steps=steps,
                days=scale(forecast.days, share),
                dollars=scale(forecast.dollars, share) if forecast.dollars else None,
            )
            planned.append(figures)
        trials.append(
            values.SweepTrialForecast(
                number=trial.number,
                settings=trial.settings,
                planned=figures,
                infeasible=plan if isinstance(plan, str) else None,
            )
        )
    days = [figures.days for figures in planned]
    prices = [figures.dollars for figures in planned if figures.dollars]
    return values.SweepForecast(
        schema=_SCHEMA,
        name=study.name,
        vary=study.vary,
        repeats=study.repeats,
        trials=tuple(trials),
        days=scale(add(days), study.repeats) if days else None,
        dollars=scale(add(prices), study.repeats) if len(prices) == len(days) > 0 else None,
    )


# The losses of a sweep's trials, read from their journals, and the best trial.

_Losses = tuple[Integers, Floats]  # the steps of a trial by index, in order, and their losses


def _trial_losses(study: StudyJournal) -> dict[int, _Losses]:
    """Return the losses of each trial's newest first repeat: the other repeats have the same."""
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
        losses[number] = steps.index, steps.loss
    return losses


_MOST_POINTS = 100  # of a curve of losses
_LAST_SHARE = 10  # the loss of a trial is the mean over its last tenth


def _make_sweep_report(
    key: str, study: Study, runs: Sequence[_TrialRun], losses: Mapping[int, _Losses]
) -> SweepReport:
    trials = []
    for trial in study.trials:
        own = [run for run in runs if run.trial == trial.number]
        first = next((run.report for run in reversed(own) if run.repeat == 1), None)
        measured, steps = (first.measured, first.steps) if first else (None, 0)
        # Without the run, the number of its steps is unknown.
        known = losses.get(trial.number) if first else None
        done = int(known[0][-1]) + 1 if known and len(known[0]) else 0
        last, curve = _loss_figures(known, steps) if known else (None, ())
        report = values.SweepTrialReport(
            number=trial.number,
            settings=trial.settings,
            runs={run.report.run: run.report.state for run in own},
            steps_done=done,
            steps=steps,
            loss=last,
            losses=curve,
            step_s=measured.step_s if measured else None,
            expected_s=_expected_s(first) if first else None,
            mfu=measured.mfu.median if measured and measured.mfu else None,
        )
        trials.append(report)
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
        trials=tuple(trials),
        best=min(whole)[1] if whole else None,
    )


def _loss_figures(
    losses: _Losses, steps: int
) -> tuple[float | None, tuple[tuple[int, float], ...]]:
    """Return the mean loss of the last tenth, and those of equal parts, each at its last step."""
    index, loss = losses
    done = int(index[-1]) + 1 if len(index) else 0

    def mean(begin: int, end: int) -> float | None:
        chosen = (index >= begin) & (index < end)
        return float(loss[chosen].mean()) if chosen.any() else None

    size = max(1, -(-steps // _MOST_POINTS))
    ends = [*range(size, done, size), done] if done else []
    means = ((end, mean(end - size, end)) for end in ends)
    curve = tuple((end, value) for end, value in means if value is not None)
    return mean(done - max(1, steps // _LAST_SHARE), done), curve
