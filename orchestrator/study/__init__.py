"""Study room: trials of one spec held against each other."""

from orchestrator.study.forecast import forecast
from orchestrator.study.gather import gather
from orchestrator.study.report import study_report

__all__ = ["forecast", "gather", "study_report"]
