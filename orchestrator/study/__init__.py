"""Studies: the predicted and the measured scaling of one spec varied, trial by trial.

`forecast_study` compares plans, `make_study_report` the reports of runs. The package imports
`report`, `journal` and `types`.
"""

from orchestrator.study.study_forecast import forecast_study
from orchestrator.study.study_report import TrialRun, make_study_report, read_trial_runs

__all__ = ["TrialRun", "forecast_study", "make_study_report", "read_trial_runs"]
