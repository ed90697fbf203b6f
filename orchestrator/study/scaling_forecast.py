"""The predicted scaling of a study, from the plans of its trials. Pure."""

from collections.abc import Mapping

from orchestrator.types.plan import Estimate, Plan
from orchestrator.types.scaling import PlannedTrial, ScalingForecast, TrialForecast
from orchestrator.types.study import Study, Trial

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
