"""Keeps records of runs outside the journal, for example in MLflow.

A tracker takes a journal and brings its own record of the run up to date. The journal stays the
truth: a tracker may be slow, gone or lost, and the next sync sends what is missing. This package
may import the journal, reports and planned values; `tracking.mlflow` alone imports MLflow.
"""

from orchestrator.tracking.destinations import (
    NotRecorded,
    begin,
    destination,
    find_tracker,
    is_behind,
    read_sync_state,
)
from orchestrator.tracking.recorder import BackgroundRecorder, Recorder, in_background

__all__ = [
    "BackgroundRecorder",
    "NotRecorded",
    "Recorder",
    "begin",
    "destination",
    "find_tracker",
    "in_background",
    "is_behind",
    "read_sync_state",
]
