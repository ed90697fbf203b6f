"""Bring MLflow up to the journals: now, in the background, or before a run's last lines."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator import tracking
from orchestrator.errors import ForeignRun, JournalUnreadable, JournalUnwritable
from orchestrator.journal import Journal, check_own, list_journals, list_runs
from orchestrator.journal.run_owner import owner_of
from orchestrator.lifecycle.interrupts import interruptible
from orchestrator.lifecycle.progress import Progress
from orchestrator.render.next_commands import run_command
from orchestrator.storage import is_copy
from orchestrator.tracking.recorder import LOCK_LIMIT_S, ONCE_LIMIT_S, Recorder
from orchestrator.types.progress_events import Stage, TaskEnded, Tracked, UnitsDone
from orchestrator.types.run import LIVE, Run
from orchestrator.types.run_options import TrackingOptions
from orchestrator.types.tracking import Destination, SyncResult

# A try that failed is not made again by every command that looks.
AGAIN_AFTER_S = 30.0
MOST_AT_ONCE = 100
SILENT_S = 2.0  # so long nobody wonders


def sync(journals: Sequence[Journal], progress: Progress) -> list[SyncResult]:
    """Record runs; one that cannot be recorded has a `problem`."""
    recorder = Recorder(os.environ)
    return [_sync_run(recorder, one, progress) for one in journals]


def own_runs(storage: Path) -> list[Journal]:
    """The runs in a storage whose folders belong to this user."""
    every = list_journals(storage)
    if is_copy(storage):  # files of a bucket have no owners: those that this user submitted
        return [one for one in every if tracking.read_sync_state(one)]
    return [one for one in every if owner_of(one) == os.geteuid()]


def _sync_run(recorder: Recorder, journal: Journal, progress: Progress) -> SyncResult:
    """Record a run. An earlier command may be recording one that has ended, and soon ends; a run
    that goes on is recorded by its own driver.
    """
    key = journal.key
    progress(Stage(task=key, stage="asking the tracker what it has"))
    try:
        limit_s = LOCK_LIMIT_S if journal.run().state in LIVE else ONCE_LIMIT_S
        return recorder.record(journal, _counted(key, progress), _waiting(key, progress), limit_s)
    except (JournalUnreadable, JournalUnwritable) as error:
        return SyncResult(run=key, destination=None, run_id=None, recorded=None, problem=str(error))
    finally:
        progress(TaskEnded(task=key))


def _counted(key: str, progress: Progress) -> Callable[[int], None]:
    return lambda steps: progress(UnitsDone(task=key, done=steps, unit="steps recorded"))


def _waiting(key: str, progress: Progress) -> Callable[[float], None]:
    def waiting(waited_s: float) -> None:
        if waited_s >= SILENT_S:
            progress(Stage(task=key, stage="waiting for another process that records it"))

    return waiting


def tracked_at_end(journal: Journal) -> Tracked:
    """Where a run that has just ended is recorded; what is missing is recorded first."""
    storage = journal.path.parent
    catch_up(storage, [one for one in list_runs(storage)[0] if one.run != journal.key])
    note = tracking.read_sync_state(journal)
    if note and note.problem is None and not tracking.is_behind(journal.run(), note):
        return _tracked(note.destination, None)
    ended = f"recording {journal.key}", "it has ended, and nothing of it is left running"
    with interruptible(*ended, run_command("sync", journal.key, storage)):
        result = Recorder(os.environ).record(journal)
    return _tracked(result.destination, result.problem)


def _tracked(where: Destination | None, problem: str | None) -> Tracked:
    if where is None:
        return Tracked(tracker=TrackingOptions().tracker, place="", problem=problem)
    return Tracked(tracker=where.tracker, place=where.label, problem=problem)


def catch_up(storage: Path, runs: Sequence[Run]) -> None:
    """Record in the background what runs that have ended left unrecorded."""
    ended = [(Journal(storage / one.run), one) for one in runs if one.state not in LIVE]
    if behind := [journal for journal, run in ended if _is_due(journal, run)]:
        tracking.in_background(behind[:MOST_AT_ONCE])


def record_files(journal: Journal) -> None:
    """Record in the background the files that were just written for a run."""
    if tracking.read_sync_state(journal) and _is_own(journal):
        tracking.in_background([journal])


def _is_due(journal: Journal, run: Run) -> bool:
    """Whether MLflow lacks something of a run, and the last try was not just now."""
    note = tracking.read_sync_state(journal)
    if note is None or not tracking.is_behind(run, note) or not _is_own(journal):
        return False
    return note.problem is None or time.time() - _tried_at_s(journal) > AGAIN_AFTER_S


def _is_own(journal: Journal) -> bool:
    """Whether a run is this user's, and can be written: the lock of a sync lies beside it."""
    with suppress(ForeignRun):
        check_own(journal)
        return os.access(journal.path, os.W_OK)
    return False


def _tried_at_s(journal: Journal) -> float:
    try:
        return journal.paths.sync_state.stat().st_mtime
    except OSError:
        return 0.0
