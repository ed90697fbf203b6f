"""Study room: trials of one spec held against each other."""

from orchestrator.study.forecast import forecast, series_of
from orchestrator.study.gather import gather
from orchestrator.study.report import Ran, study_report

__all__ = ["Ran", "forecast", "gather", "series_of", "study_report"]
