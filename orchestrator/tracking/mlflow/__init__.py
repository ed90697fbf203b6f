"""Record room: journal to MLflow, again and again with the same result. Alone knows MLflow."""

from orchestrator.tracking.mlflow.background import BackgroundRecorder, in_background
from orchestrator.tracking.mlflow.sync_state import begin, is_behind, mark_of
from orchestrator.tracking.mlflow.tracking_uri import destination

__all__ = ["BackgroundRecorder", "begin", "destination", "in_background", "is_behind", "mark_of"]
