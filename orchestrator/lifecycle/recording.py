"""Bring MLflow up to the journals: now, in the background, or before a run's last lines."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator import journal, tracking
from orchestrator.lifecycle.interrupts import interruptible
from orchestrator.lifecycle.progress import Progress
from orchestrator.render.next_commands import run_command
from orchestrator.tracking.recorder import LOCK_LIMIT_S, ONCE_LIMIT_S, Recorder
from orchestrator.types.events import Count, Stage, TaskEnded, Tracked
from orchestrator.types.run import LIVE, Run
from orchestrator.types.tracking import SyncResult

# A try that failed is not made again by every command that looks.
AGAIN_AFTER_S = 30.0
MOST_AT_ONCE = 100
SILENT_S = 2.0  # so long nobody wonders


def sync(recorded: Sequence[journal.Journal], progress: Progress) -> list[SyncResult]:
    """Record runs; one that cannot be recorded has a `problem`."""
    recorder = Recorder(os.environ)
    return [_sync_run(recorder, one, progress) for one in recorded]


def _sync_run(recorder: Recorder, recorded: journal.Journal, progress: Progress) -> SyncResult:
    """Record a run. An earlier command may be recording one that has ended, and soon ends; a run
    that goes on is recorded by its own driver.
    """
    limit_s = LOCK_LIMIT_S if recorded.run().state in LIVE else ONCE_LIMIT_S
    key = recorded.key
    try:
        return recorder.record(recorded, _counted(key, progress), _waiting(key, progress), limit_s)
    finally:
        progress(TaskEnded(task=key))


def _counted(key: str, progress: Progress) -> Callable[[int], None]:
    return lambda steps: progress(Count(task=key, done=steps, unit="steps recorded"))


def _waiting(key: str, progress: Progress) -> Callable[[float], None]:
    def waiting(waited_s: float) -> None:
        if waited_s >= SILENT_S:
            progress(Stage(task=key, stage="waiting for another process that records it"))

    return waiting


def tracked_at_end(recorded: journal.Journal) -> Tracked:
    """Where a run that has just ended is recorded; what is missing is recorded first."""
    storage = recorded.path.parent
    catch_up(storage, [one for one in journal.list_runs(storage)[0] if one.run != recorded.key])
    mark = tracking.read_sync_state(recorded)
    if mark and mark.problem is None and not tracking.is_behind(recorded.run(), mark):
        return Tracked(place=mark.destination.label)
    ended = f"recording {recorded.key}", "it has ended, and nothing of it is left running"
    with interruptible(*ended, run_command("sync", recorded.key, storage)):
        result = Recorder(os.environ).record(recorded)
    return Tracked(place=result.destination.label, problem=result.problem)


def catch_up(storage: Path, runs: Sequence[Run]) -> None:
    """Record in the background what runs that have ended left unrecorded."""
    ended = [(journal.Journal(storage / one.run), one) for one in runs if one.state not in LIVE]
    if behind := [recorded for recorded, run in ended if _is_due(recorded, run)]:
        tracking.in_background(behind[:MOST_AT_ONCE])


def record_files(recorded: journal.Journal) -> None:
    """Record in the background the files that were just written for a run."""
    if tracking.read_sync_state(recorded):
        tracking.in_background([recorded])


def _is_due(recorded: journal.Journal, run: Run) -> bool:
    """Whether MLflow lacks something of a run, and the last try was not just now."""
    mark = tracking.read_sync_state(recorded)
    if mark is None or not tracking.is_behind(run, mark):
        return False
    return mark.problem is None or time.time() - _tried_at_s(recorded) > AGAIN_AFTER_S


def _tried_at_s(recorded: journal.Journal) -> float:
    try:
        return recorded.paths.sync_state.stat().st_mtime
    except OSError:
        return 0.0
