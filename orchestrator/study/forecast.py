"""Study room: the plans of all trials to a predicted scaling."""

from collections.abc import Mapping

from orchestrator.types.plan import Estimate, Plan
from orchestrator.types.study import PlannedTrial, Study, StudyForecast, Trial, TrialForecast

SCHEMA = 2
# What makes a trial larger; all else that is varied makes another series. The batch that follows
# the pods in weak scaling is among it.
SIZES = frozenset({"resources.pods", "resources.topology"})
FOLLOWS = "experiment.batch.sequences"

Made = Mapping[int, Plan | str]  # of each trial, by its number: its plan, or why there is none


def forecast(study: Study, made: Made) -> StudyForecast:
    """What each trial should come to, beside the smallest of its series."""
    least = smallest(study, made)
    return StudyForecast(
        schema=SCHEMA,
        name=study.name,
        scaling=study.scaling,
        vary=study.vary,
        trials=tuple(_trial(study, one, made[one.number], least) for one in study.trials),
    )


def series_of(study: Study, trial: Trial) -> dict[str, str]:
    """The settings by which a trial belongs to its series."""
    follows = {FOLLOWS} if study.scaling == "weak" else set()
    kept = trial.settings.keys() - SIZES - follows
    return {key: trial.settings[key] for key in trial.settings if key in kept}


def name_of(series: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A series as a key of a mapping."""
    return tuple(sorted(series.items()))


def per_chip(plan: Plan) -> Estimate:
    """Tokens per second and chip."""
    rate, chips = plan.forecast.tokens_per_s, plan.chips
    return Estimate(
        lower=rate.lower / chips,
        unoverlapped=rate.unoverlapped / chips,
        expected=None if rate.expected is None else rate.expected / chips,
    )


def efficiency(rate: Estimate, least: Estimate) -> Estimate:
    """A rate over that of the smallest trial; what is expected where both have it."""
    known = rate.expected is not None and least.expected
    return Estimate(
        lower=rate.lower / least.lower,
        unoverlapped=rate.unoverlapped / least.unoverlapped,
        expected=(rate.expected or 0) / (least.expected or 1) if known else None,
    )


def smallest(study: Study, made: Made) -> dict[tuple[tuple[str, str], ...], Plan]:
    """Of each series the plan with the fewest chips."""
    found: dict[tuple[tuple[str, str], ...], Plan] = {}
    for trial in study.trials:
        plan, name = made.get(trial.number), name_of(series_of(study, trial))
        if isinstance(plan, Plan) and (name not in found or plan.chips < found[name].chips):
            found[name] = plan
    return found


def _trial(
    study: Study,
    trial: Trial,
    plan: Plan | str,
    least: dict[tuple[tuple[str, str], ...], Plan],
) -> TrialForecast:
    series = series_of(study, trial)
    return TrialForecast(
        number=trial.number,
        settings=trial.settings,
        series=series,
        planned=planned(plan, least[name_of(series)]) if isinstance(plan, Plan) else None,
        refused=plan if isinstance(plan, str) else None,
    )


def planned(plan: Plan, smallest_plan: Plan) -> PlannedTrial:
    """What a plan comes to beside the smallest of its series."""
    rate, least = per_chip(plan), per_chip(smallest_plan)
    return PlannedTrial(
        plan_digest=plan.digest,
        pods=plan.pods,
        chips=plan.chips,
        sequences=plan.batch.sequences,
        mesh=plan.mesh,
        step_s=plan.forecast.step_s,
        mfu=plan.forecast.mfu,
        tokens_per_s_per_chip=rate,
        efficiency=efficiency(rate, least),
        bound=plan.forecast.bound,
        days=plan.forecast.days,
        dollars=plan.forecast.dollars,
        warnings=plan.warnings,
    )
