"""Run a rehearsal on a local cluster, from its journal to its end."""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from orchestrator import tracking
from orchestrator.errors import Superseded
from orchestrator.journal.ownership import RunRequest, Writer, create_run, request_cancel
from orchestrator.journal.run_journal import Journal
from orchestrator.launch.backend import LocalCluster, find_backend
from orchestrator.planning.rehearsal import Rehearsal
from orchestrator.run.follow import RunWatch
from orchestrator.run.progress import (
    FollowStarted,
    NodesUp,
    Progress,
    StopSent,
    TaskEnded,
    Trouble,
    collected_interrupts,
    interrupt_name,
)
from orchestrator.run.requests import Provenance
from orchestrator.storage.addresses import address, folder
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.run import ReasonCode, Run, StateReason

POLL_S = 0.2
# The cluster has this long to say why the driver is gone.
GONE_LIMIT_S = 90.0
TASK = "rehearsal"


def run_rehearsal(
    rehearsal: Rehearsal,
    full: Plan,
    proofs: Sequence[Proof],
    provenance: Provenance,
    key: str | None,
    progress: Progress,
) -> Run:
    """Run a rehearsal on a local cluster, which is gone when this returns; how it ended.

    Its key is the one given, or made from the plan.
    """
    request = RunRequest(
        spec=rehearsal.spec,
        plan=rehearsal.plan,
        steps=rehearsal.steps,
        rehearsal=True,
        rehearses=full,
        **provenance.fields,
    )
    storage = folder(rehearsal.spec.run.storage)
    where = tracking.destination(rehearsal.spec.tracking, storage, os.environ)
    with collected_interrupts() as signals:
        writer = create_run(storage, request, key)
        tracking.begin(writer.journal, where)
        for proof in proofs:
            writer.save_proof(proof)
        error = drive(writer.journal, rehearsal.plan, signals, progress)
    _end_without_driver(writer, error, interrupted=bool(signals))
    return writer.run()


def _end_without_driver(writer: Writer, error: str | None, *, interrupted: bool) -> None:
    """End a run whose driver never came."""
    run = writer.run()
    if run.ended_at_s is not None or run.driver is not None:
        return
    code: ReasonCode = "cancel_requested" if interrupted else "error"
    with suppress(Superseded):  # a driver came at the last moment: it is lost, as all can see
        reason = StateReason(code=code, detail=error or "")
        writer.end_run("cancelled" if interrupted else "failed", reason)


def drive(
    journal: Journal, plan: Plan, signals: list[int], progress: Progress, *how: str
) -> str | None:
    """Drive a run on a local cluster with the slices of a plan, and follow it to its end.

    The result says why the run was given up before its end; None where it was not. `signals` are
    the interrupts that came.
    """
    path, backend = address(journal.path.absolute()), find_backend(journal.spec().cluster.backend)
    command = shlex.join([sys.executable, "-m", "orchestrator.drive", path, *how])
    with backend.emulate(plan, command) as cluster:
        return RehearsalFollower(journal, cluster, signals, plan.hosts, progress).to_the_end()


@dataclass
class RehearsalFollower:
    """Follows a rehearsal, and passes interrupts on to it."""

    journal: Journal
    cluster: LocalCluster
    signals: list[int]
    nodes: int
    progress: Progress
    passed_on: int = 0
    gone_since_s: float | None = None

    def __post_init__(self) -> None:
        self.driver_before = self.journal.state().writer

    def to_the_end(self) -> str | None:
        """Report what happens until the run has ended, or nothing can end it; then why."""
        watch = RunWatch(self.journal, self.progress)
        self.progress(FollowStarted(task=TASK, attempts=watch.attempt))
        try:
            return self._watched(watch)
        finally:
            self.progress(TaskEnded(task=TASK))

    def _watched(self, watch: RunWatch) -> str | None:
        while True:
            state = self.cluster.next_event(POLL_S)
            if state and state.nodes and not state.job:
                self.progress(NodesUp(up=state.nodes, total=self.nodes))
            run, driven = self.journal.run(), self._is_driven()
            if driven:
                watch.update(run)
            if driven and run.ended_at_s is not None:
                return None
            if why := (state and state.error) or self.gone(run, driven=driven):
                self.progress(Trouble(kind="cluster failed", why=why))
                return why.splitlines()[0]
            if self.gives_up(driven=driven):
                return f"{interrupt_name(self.signals[0])}, before it began"

    def _is_driven(self) -> bool:
        """Whether the driver that was started for this has come."""
        return self.journal.state().writer != self.driver_before

    def gone(self, run: Run, *, driven: bool) -> str | None:
        """That the driver is known to be gone, where the cluster does not tell for long."""
        if not (driven and run.reason and run.reason.code == "driver_gone"):
            self.gone_since_s = None
            return None
        if self.gone_since_s is None:
            self.gone_since_s = time.monotonic()
        late = time.monotonic() - self.gone_since_s > GONE_LIMIT_S
        return run.reason.detail if late else None

    def gives_up(self, *, driven: bool) -> bool:
        """Pass interrupts on: the first asks for a last checkpoint, the second for an end.

        While there is no driver, or no step of the attempt is done, there is nothing to save.
        """
        if self.signals and not driven:
            self.progress(StopSent(how="before it began"))
            return True
        while self.passed_on < len(self.signals):
            unsaved = self.journal.run().state in ("running", "stopping")
            at_once = self.passed_on > 0 or not unsaved
            why = interrupt_name(self.signals[self.passed_on])
            request_cancel(self.journal, at_once=at_once, source=why)
            self.passed_on += 1
            if at_once:
                self.progress(StopSent(how="at once" if unsaved else "nothing to save"))
                return True
            self.progress(StopSent(how="with a checkpoint"))
        return False
