"""Study room: trials of one spec held against each other. Pure: plans and reports come in."""

from orchestrator.study.forecast import forecast, series_of

__all__ = ["forecast", "series_of"]
