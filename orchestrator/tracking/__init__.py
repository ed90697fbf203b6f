"""Keeps records of runs outside the journal, which stays the truth: a sync repairs a tracker."""

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
