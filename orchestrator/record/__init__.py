"""Record room: journal to MLflow, again and again with the same result. Alone knows MLflow."""

from orchestrator.record.following import Following, in_background
from orchestrator.record.marks import begin, is_behind, mark_of
from orchestrator.record.places import destination

__all__ = ["Following", "begin", "destination", "in_background", "is_behind", "mark_of"]
