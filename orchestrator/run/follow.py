"""Follow a run by its journal, on a named cluster or on emulated slices of this machine. On a named
cluster the run goes on without its follower; a rehearsal ends with it.
"""

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from orchestrator.errors import JournalUnreadable, Superseded
from orchestrator.journal import liveness
from orchestrator.journal.ownership import Writer, request_cancel
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepReader
from orchestrator.launch import backend
from orchestrator.processes import MODULE
from orchestrator.run.progress import Notice, Progress, RunUpdate, TaskEnded, interrupt_name
from orchestrator.run.progress import collected_interrupts as interrupts
from orchestrator.storage.addresses import address
from orchestrator.values.plan import Plan
from orchestrator.values.run import LIVE, Run, StateReason

_POLL_S, _REHEARSAL_POLL_S = 0.5, 0.2
_ASK_EVERY_S = 5.0
_REPORT_LIMIT_S = 60.0
_GONE_LIMIT_S = 90.0  # for an emulated cluster to say why the driver is gone


class _RunWatch:
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
        steps = tuple(row.step for row in self.steps.read()) if self.steps else ()
        self.progress(RunUpdate(run=run, steps=steps))


@contextmanager
def _watch(journal: Journal, task: str, progress: Progress) -> Iterator[_RunWatch]:
    watch = _RunWatch(journal, progress)
    progress(Notice("following", task=task, attempts=watch.attempt))
    try:
        yield watch
    finally:
        progress(TaskEnded(task=task))


def follow(
    journal: Journal, jobs: backend.ClusterClient, job: str, driver_before: int, progress: Progress
) -> Run | None:
    """Report a run on a named cluster until it has ended; None when an interrupt came first."""
    with _watch(journal, "run", progress) as watch, interrupts() as signals:
        follower = _ClusterFollower(watch, jobs, job, driver_before)
        while not signals:
            if run := follower.look():
                return run
            time.sleep(_POLL_S)
    return None


def watch(journal: Journal, progress: Progress) -> Run | None:
    """Report a run that something else drives until it has ended; None when interrupted."""
    with _watch(journal, "run", progress) as watched, interrupts() as signals:
        while not signals:
            run = journal.run()
            watched.update(run)
            if run.state not in LIVE:
                return run
            time.sleep(_POLL_S)
    return None


@dataclass
class _ClusterFollower:
    watch: _RunWatch
    jobs: backend.ClusterClient
    job: str
    driver_before: int  # the claim of the run's driver before the job was started
    asked_at_s: float = 0.0
    trouble: str = "cleared"

    def look(self) -> Run | None:
        """Report what is new; return the run once nothing more will come."""
        try:
            run, driven = self.watch.journal.run(), self._is_driven()
        except JournalUnreadable as error:  # a mount that comes back is read on
            self._report("journal unreadable", str(error))
            return None
        if driven:
            self.watch.update(run)
            if run.state not in LIVE:
                return run
        if time.monotonic() - self.asked_at_s <= _ASK_EVERY_S:
            return None
        self.asked_at_s = time.monotonic()
        # Ask the cluster how the job is; return the run if its job ended without a driver.
        try:
            state = self.jobs.state(self.job)
            why = self.jobs.why(self.job) if state in backend.JOB_ENDED and not driven else None
        except backend.ClusterUnusable as error:
            self._report("cluster silent", str(error))
            return None
        self._report("cleared")
        if why is None or self._is_driven():
            return None
        self.watch.progress(Notice("trouble", kind="no driver", why=why))
        journal = self.watch.journal
        if self.driver_before == 0:  # a run that was to be resumed keeps the end it had
            with suppress(Superseded):  # a driver came at the last moment
                reason = StateReason(code="error", detail=why)
                Writer(journal, journal.state()).end_run("failed", reason)
        return journal.run()

    def _is_driven(self) -> bool:
        return self.watch.journal.state().writer != self.driver_before

    def _report(self, kind: str, why: str = "") -> None:
        if kind != self.trouble:
            self.watch.progress(Notice("trouble", kind=kind, why=why))
        self.trouble = kind


def drive(
    journal: Journal, plan: Plan, signals: list[int], progress: Progress, *how: str
) -> str | None:
    """Drive a run on emulated slices of this machine to its end; return why it was given up."""
    path = address(journal.path.absolute())
    local = backend.find_backend(journal.spec().cluster.backend)
    command = shlex.join([*MODULE, "orchestrator.drive", path, *how])
    with local.emulate(plan, command) as cluster, _watch(journal, "rehearsal", progress) as watch:
        return _RehearsalFollower(watch, cluster, signals, plan.hosts).follow()


@dataclass
class _RehearsalFollower:
    watch: _RunWatch
    cluster: backend.LocalCluster
    signals: list[int]
    nodes: int
    passed_on: int = 0
    gone_since_s: float | None = None

    def follow(self) -> str | None:
        """Report what happens until the run has ended, or nothing can end it; return why then."""
        journal, progress = self.watch.journal, self.watch.progress
        driver_before = journal.state().writer
        while True:
            state = self.cluster.next_event(_REHEARSAL_POLL_S)
            if state and state.nodes and not state.job:
                progress(Notice("nodes up", up=state.nodes, total=self.nodes))
            run, driven = journal.run(), journal.state().writer != driver_before
            if driven:
                self.watch.update(run)
                if run.ended_at_s is not None:
                    # The driver goes on to draw the report, which ends with its cluster.
                    until_s = time.monotonic() + _REPORT_LIMIT_S
                    while time.monotonic() < until_s and not self.signals:
                        if run.driver is None or liveness.is_gone(run.driver):
                            break
                        time.sleep(_REHEARSAL_POLL_S)
                    return None
            if why := (state and state.error) or self.gone(run, driven=driven):
                progress(Notice("trouble", kind="cluster failed", why=why))
                return why.splitlines()[0]
            if self.gives_up(driven=driven):
                return f"{interrupt_name(self.signals[0])}, before it began"

    def gone(self, run: Run, *, driven: bool) -> str | None:
        """Return that the driver is gone, where the cluster does not tell for long."""
        if not (driven and run.reason and run.reason.code == "driver_gone"):
            self.gone_since_s = None
            return None
        now_s = time.monotonic()
        self.gone_since_s = self.gone_since_s or now_s
        return run.reason.detail if now_s - self.gone_since_s > _GONE_LIMIT_S else None

    def gives_up(self, *, driven: bool) -> bool:
        """Pass interrupts on: first for a last checkpoint, if a step was done, then for an end."""
        journal, progress = self.watch.journal, self.watch.progress
        if self.signals and not driven:
            progress(Notice("stopping", how="before it began"))
            return True
        while self.passed_on < len(self.signals):
            unsaved = journal.run().state in ("running", "stopping")
            at_once = self.passed_on > 0 or not unsaved
            why = interrupt_name(self.signals[self.passed_on])
            request_cancel(journal, at_once=at_once, source=why)
            self.passed_on += 1
            if at_once:
                progress(Notice("stopping", how="at once" if unsaved else "nothing to save"))
                return True
            progress(Notice("stopping", how="with a checkpoint"))
        return False
