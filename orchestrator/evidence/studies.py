"""Studies of one spec, trial by trial: predicted and measured scaling, and sweeps of losses.

`forecast_of` compares plans, `make_scaling_report` the reports of runs. The package imports
`report`, `journal`, `plan` and `types`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import JournalUnreadable
from orchestrator.evidence.scaling import (
    TrialPlans,
    TrialRun,
    forecast_scaling,
    make_scaling_report,
    read_trial_runs,
)
from orchestrator.journal.steps import Floats, Integers, counted_steps, read_table
from orchestrator.journal.study_journal import StudyJournal
from orchestrator.planning.forecast import scale
from orchestrator.values.plan import Estimate, Plan
from orchestrator.values.study import (
    PlannedSweepTrial,
    ScalingForecast,
    ScalingReport,
    Study,
    SweepForecast,
    SweepReport,
    SweepTrialForecast,
    SweepTrialReport,
    Trial,
)

# What a sweep costs, from the plans of its trials. Pure.


SCHEMA = 2


def forecast_sweep(study: Study, plans: TrialPlans) -> SweepForecast:
    """The plan of each trial, and the days and dollars of all."""
    trials = tuple(_trial(one, plans[one.number]) for one in study.trials)
    planned = [one.planned for one in trials if one.planned]
    prices = [one.dollars for one in planned if one.dollars]
    return SweepForecast(
        schema=SCHEMA,
        name=study.name,
        vary=study.vary,
        repeats=study.repeats,
        trials=trials,
        days=total([one.days for one in planned], study.repeats),
        dollars=total(prices, study.repeats) if len(prices) == len(planned) else None,
    )


def _trial(trial: Trial, plan: Plan | str) -> SweepTrialForecast:
    return SweepTrialForecast(
        number=trial.number,
        settings=trial.settings,
        planned=planned_trial(trial, plan) if isinstance(plan, Plan) else None,
        infeasible=plan if isinstance(plan, str) else None,
    )


def planned_trial(trial: Trial, plan: Plan) -> PlannedSweepTrial:
    """A plan in figures. A trial has `run.steps`, or as many as its tokens need."""
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


def total(estimates: Sequence[Estimate], times: int = 1) -> Estimate | None:
    """The sum of estimates, so many times; a value that one of them lacks is None."""
    if not estimates:
        return None

    def of(name: str) -> float | None:
        values = [getattr(one, name) for one in estimates]
        return None if None in values else times * sum(values)

    return Estimate(
        lower=times * sum(one.lower for one in estimates),
        unoverlapped=times * sum(one.unoverlapped for one in estimates),
        expected=of("expected"),
        low=of("low"),
        high=of("high"),
    )


# The losses of a sweep's trials, read from their journals.


FIRST = 1  # the repeat whose losses are shown: the others have the same


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of a trial by the index of their steps, in order."""

    index: Integers
    loss: Floats

    @property
    def steps_done(self) -> int:
        return int(self.index[-1]) + 1 if len(self.index) else 0

    def mean(self, begin: int, end: int) -> float | None:
        """The mean loss of the steps from `begin` up to but not including `end`."""
        chosen = (self.index >= begin) & (self.index < end)
        return float(self.loss[chosen].mean()) if chosen.any() else None


def trial_losses(study: StudyJournal) -> dict[int, Losses]:
    """The losses of the newest first repeat of each trial, of each step its last attempt."""
    newest = {one.trial: one for one in study.trial_starts() if one.repeat == FIRST}
    losses = {}
    for number, start in newest.items():
        journal = study.trial_journal(start)
        try:
            attempts = journal.run().attempts
        except JournalUnreadable:  # it was removed, or never began
            continue
        steps = counted_steps({one.number: read_table(journal.path, one)[0] for one in attempts})
        losses[number] = Losses(steps.index, steps.loss)
    return losses


# The losses of a sweep, and the best trial.


SWEEP_REPORT_SCHEMA = 2
MOST_POINTS = 100  # of a curve of losses
LAST_SHARE = 10  # the loss of a trial is the mean over its last tenth


def make_sweep_report(
    key: str,
    study: Study,
    runs: Sequence[TrialRun],
    losses: Mapping[int, Losses],
) -> SweepReport:
    """The results of all trials."""
    trials = tuple(_reported_trial(one, runs, losses.get(one.number)) for one in study.trials)
    ended = [(one.loss, one.number) for one in trials if one.loss is not None and is_whole(one)]
    return SweepReport(
        schema=SWEEP_REPORT_SCHEMA,
        study=key,
        name=study.name,
        vary=study.vary,
        rehearsal=any(one.report.rehearsal for one in runs),
        trials=trials,
        best=min(ended)[1] if ended else None,
    )


def is_whole(trial: SweepTrialReport) -> bool:
    """Whether a trial did all its steps."""
    return 0 < trial.steps == trial.steps_done


def _reported_trial(
    trial: Trial, runs: Sequence[TrialRun], losses: Losses | None
) -> SweepTrialReport:
    own = [one for one in runs if one.trial == trial.number]
    first = next((one.report for one in reversed(own) if one.repeat == 1), None)
    losses = losses if first else None  # of how many steps they are is unknown
    measured = first.measured if first else None
    steps = first.steps if first else 0
    done = losses.steps_done if losses else 0
    expected = (one.step_s for one in first.ratios if one.against == "expected") if first else ()
    return SweepTrialReport(
        number=trial.number,
        settings=trial.settings,
        runs={one.report.run: one.report.state for one in own},
        steps_done=done,
        steps=steps,
        loss=last_loss(losses, steps) if losses else None,
        losses=curve(losses, steps) if losses else (),
        step_s=measured.step_s if measured else None,
        expected_s=next(iter(expected), None),
        mfu=measured.mfu.median if measured and measured.mfu else None,
    )


def last_loss(losses: Losses, steps: int) -> float | None:
    """The mean loss over the last tenth of all steps, as far as a trial came."""
    done = losses.steps_done
    return losses.mean(done - max(1, steps // LAST_SHARE), done)


def curve(losses: Losses, steps: int) -> tuple[tuple[int, float], ...]:
    """The mean losses of equal parts, each at its last step."""
    size = max(1, -(-steps // MOST_POINTS))
    ends = [*range(size, losses.steps_done, size), losses.steps_done] if losses.steps_done else []
    means = ((end, losses.mean(end - size, end)) for end in ends)
    return tuple((end, mean) for end, mean in means if mean is not None)


__all__ = [
    "TrialRun",
    "forecast_of",
    "forecast_scaling",
    "forecast_sweep",
    "make_scaling_report",
    "make_sweep_report",
    "read_trial_runs",
    "report_of_runs",
    "report_of_study",
]


def forecast_of(study: Study, plans: TrialPlans) -> ScalingForecast | SweepForecast:
    """The forecast of a study by its kind."""
    return (forecast_sweep if study.kind == "sweep" else forecast_scaling)(study, plans)


def report_of_study(study: StudyJournal) -> ScalingReport | SweepReport:
    """The measured scaling of a study beside the predicted one, or the losses of a sweep."""
    return report_of_runs(study, read_trial_runs(study))


def report_of_runs(study: StudyJournal, runs: Sequence[TrialRun]) -> ScalingReport | SweepReport:
    """The report of a study by its kind."""
    of = study.submission().study
    if of.kind == "sweep":
        return make_sweep_report(study.key, of, runs, trial_losses(study))
    return make_scaling_report(study.key, of, runs)
