"""Studies of one spec, trial by trial: predicted and measured scaling, and sweeps of losses.

`forecast_of` compares plans, `make_scaling_report` the reports of runs. The package imports
`report`, `journal`, `plan` and `types`.
"""

from collections.abc import Sequence

from orchestrator.journal import StudyJournal
from orchestrator.study.scaling_forecast import TrialPlans, forecast_scaling
from orchestrator.study.scaling_report import TrialRun, make_scaling_report, read_trial_runs
from orchestrator.study.sweep_forecast import forecast_sweep
from orchestrator.study.sweep_report import make_sweep_report
from orchestrator.study.trial_losses import trial_losses
from orchestrator.types.scaling import ScalingForecast, ScalingReport
from orchestrator.types.study import Study
from orchestrator.types.sweep import SweepForecast, SweepReport

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
