"""Follow a run by its journal.

On a named cluster the run goes on without whoever follows it. The cluster is asked only whether the
job is still there, and it need not answer.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import tracking
from orchestrator.errors import ForeignRun, JournalUnreadable, JournalUnwritable, Superseded
from orchestrator.journal.listing import list_journals, list_runs
from orchestrator.journal.ownership import Writer, check_own, owner_of
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepReader
from orchestrator.launch.backend import JOB_ENDED, ClusterClient, ClusterUnusable
from orchestrator.run.next_commands import run_command
from orchestrator.run.progress import (
    FollowStarted,
    LeftRunning,
    Progress,
    RunEnded,
    RunUpdate,
    Stage,
    TaskEnded,
    Tracked,
    Trouble,
    UnitsDone,
    collected_interrupts,
    interruptible,
)
from orchestrator.storage.addresses import is_copy
from orchestrator.tracking.recorder import LOCK_LIMIT_S, ONCE_LIMIT_S, Recorder
from orchestrator.values.run import LIVE, Destination, Run, StateReason, SyncResult
from orchestrator.values.run_options import TrackingOptions

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


POLL_S = 0.5
ASK_EVERY_S = 5.0
TASK = "run"


class RunWatch:
    """Reports a run and its new steps; what happened before it began to watch is not reported."""

    def __init__(self, journal: Journal, progress: Progress) -> None:
        self.journal, self.progress = journal, progress
        self.steps: StepReader | None = None
        state = journal.state()
        self.attempt = len(state.attempts)
        if state.open_attempt:
            self.steps = StepReader(journal.path, self.attempt)
            self.steps.skip()

    def update(self, run: Run) -> None:
        if run.attempts and run.attempts[-1].number != self.attempt:
            self.attempt = run.attempts[-1].number
            self.steps = StepReader(self.journal.path, self.attempt)
        steps = tuple(one.step for one in self.steps.read()) if self.steps else ()
        self.progress(RunUpdate(run=run, steps=steps))


def follow_to_end(
    journal: Journal, jobs: ClusterClient, job: str, driver_before: int, progress: Progress
) -> Run:
    """Follow a run on a named cluster; the run as it stands when it ended or was left."""
    run = follow(journal, jobs, job, driver_before, progress)
    if run is None:
        progress(LeftRunning(run=journal.run()))
        return journal.run()
    plan = journal.plan(run.plan_digest)
    progress(RunEnded(run=run, plan=plan, tracked=tracked_at_end(journal)))
    return run


def follow(
    journal: Journal, jobs: ClusterClient, job: str, driver_before: int, progress: Progress
) -> Run | None:
    """Report a run until it has ended; None when an interrupt ends the following."""
    watch = RunWatch(journal, progress)
    progress(FollowStarted(task=TASK, attempts=watch.attempt))
    try:
        with collected_interrupts() as signals:
            follower = ClusterFollower(watch, jobs, job, driver_before)
            while not signals:
                if run := follower.look():
                    return run
                time.sleep(POLL_S)
        return None
    finally:
        progress(TaskEnded(task=TASK))


@dataclass
class ClusterFollower:
    """Follows a run on a named cluster. `driver_before` is the number of the driver that the run
    had before the job was started.
    """

    watch: RunWatch
    jobs: ClusterClient
    job: str
    driver_before: int
    asked_at_s: float = 0.0
    trouble: Trouble = field(default=Trouble(kind="cleared"))

    @property
    def journal(self) -> Journal:
        return self.watch.journal

    def look(self) -> Run | None:
        """Report what is new; the run once nothing more will come."""
        try:
            run, driven = self.journal.run(), self._is_driven()
        except JournalUnreadable as error:  # a mount that comes back is read on
            self._note(Trouble(kind="journal unreadable", why=str(error)))
            return None
        if driven:
            self.watch.update(run)
            if run.state not in LIVE:
                return run
        if time.monotonic() - self.asked_at_s > ASK_EVERY_S:
            self.asked_at_s = time.monotonic()
            return self._ask(driven=driven)
        return None

    def _is_driven(self) -> bool:
        return self.journal.state().writer != self.driver_before

    def _ask(self, *, driven: bool) -> Run | None:
        """Ask the cluster how the job is; the run when the job ended before its driver came."""
        try:
            state = self.jobs.state(self.job)
            why = self.jobs.why(self.job) if state in JOB_ENDED and not driven else None
        except ClusterUnusable as error:
            self._note(Trouble(kind="cluster silent", why=str(error)))
            return None
        self._note(Trouble(kind="cleared"))
        if why is None or self._is_driven():
            return None
        self.watch.progress(Trouble(kind="no driver", why=why))
        return self._conclude(why)

    def _conclude(self, why: str) -> Run:
        """Write down why no driver came. A run that was to be resumed keeps the end it had."""
        if self.driver_before == 0:
            with suppress(Superseded):  # a driver came at the last moment
                writer = Writer(self.journal, self.journal.state())
                writer.end_run("failed", StateReason(code="error", detail=why))
        return self.journal.run()

    def _note(self, trouble: Trouble) -> None:
        """Report a trouble once, and once that it is over."""
        if trouble.kind != self.trouble.kind:
            self.watch.progress(trouble)
        self.trouble = trouble
