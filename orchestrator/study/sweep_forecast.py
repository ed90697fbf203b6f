"""What a sweep costs, from the plans of its trials. Pure."""

from collections.abc import Sequence

from orchestrator.plan.forecast import scale
from orchestrator.study.scaling_forecast import TrialPlans
from orchestrator.types.plan import Estimate, Plan
from orchestrator.types.study import Study, Trial
from orchestrator.types.sweep import PlannedSweepTrial, SweepForecast, SweepTrialForecast

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
