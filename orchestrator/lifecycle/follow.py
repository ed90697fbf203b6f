"""Follow a run by its journal.

On a named cluster the run goes on without whoever follows it. The cluster is asked only whether the
job is still there, and it need not answer.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, field

from orchestrator.errors import JournalUnreadable, Superseded
from orchestrator.journal import Journal, StepReader, Writer
from orchestrator.launch.backend import JOB_ENDED, ClusterClient, ClusterUnusable
from orchestrator.lifecycle import recording
from orchestrator.lifecycle.interrupts import collected_interrupts
from orchestrator.lifecycle.progress import Progress
from orchestrator.types.progress_events import (
    FollowStarted,
    LeftRunning,
    RunEnded,
    RunUpdate,
    TaskEnded,
    Trouble,
)
from orchestrator.types.run import LIVE, Run, StateReason

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
    progress(RunEnded(run=run, plan=plan, tracked=recording.tracked_at_end(journal)))
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
