"""Studies: every trial planned, then carried out one after another."""

from orchestrator.errors import SpecError
from orchestrator.lifecycle.events import Count, Progress, silent, task
from orchestrator.plan.planner import make_plan
from orchestrator.study import forecast_study
from orchestrator.types.plan import Plan
from orchestrator.types.study import Study, StudyForecast


def plan_study(study: Study, progress: Progress | None = None) -> StudyForecast:
    """The predicted scaling of a study."""
    return forecast_study(study, plan_trials(study, progress or silent))


def plan_trials(study: Study, progress: Progress) -> dict[int, Plan | str]:
    """The plan of each trial by its number, or why there is none."""
    plans: dict[int, Plan | str] = {}
    with task(progress, "planning"):
        for trial in study.trials:
            try:
                plans[trial.number] = make_plan(trial.spec)
            except SpecError as error:
                plans[trial.number] = str(error)
            progress(
                Count(task="planning", done=len(plans), total=len(study.trials), unit="trials")
            )
    return plans
