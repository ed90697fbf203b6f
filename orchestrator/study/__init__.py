"""Studies of one spec, trial by trial: predicted and measured scaling, and sweeps of losses.

`forecast_of` compares plans, `make_scaling_report` the reports of runs. The package imports
`report`, `journal`, `plan` and `types`.
"""

from orchestrator.study.scaling_forecast import TrialPlans, forecast_scaling
from orchestrator.study.scaling_report import TrialRun, make_scaling_report, read_trial_runs
from orchestrator.study.sweep_forecast import forecast_sweep
from orchestrator.study.sweep_report import make_sweep_report
from orchestrator.types.scaling import ScalingForecast
from orchestrator.types.study import Study
from orchestrator.types.sweep import SweepForecast

__all__ = [
    "TrialRun",
    "forecast_of",
    "forecast_scaling",
    "forecast_sweep",
    "make_scaling_report",
    "make_sweep_report",
    "read_trial_runs",
]


def forecast_of(study: Study, plans: TrialPlans) -> ScalingForecast | SweepForecast:
    """The forecast of a study by its kind."""
    return (forecast_sweep if study.kind == "sweep" else forecast_scaling)(study, plans)
