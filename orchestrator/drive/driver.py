"""Drive room: the driver of a run: attempt after attempt, until it has ended."""

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from orchestrator import journal, tracking
from orchestrator.drive import select_slices
from orchestrator.drive.monitor import AttemptEnd, Monitor
from orchestrator.drive.worker import write_to
from orchestrator.errors import JournalUnreadable, JournalUnwritable, OrchError, Superseded
from orchestrator.journal import heartbeat, liveness
from orchestrator.journal.run_status import cancel_reason
from orchestrator.launch.ray.attempt_process import AttemptProcess
from orchestrator.launch.ray.protocol import AttemptCommand, Slice, WorkerArgs
from orchestrator.plan.elastic import plan_on
from orchestrator.types.plan import Plan
from orchestrator.types.run import StateReason
from orchestrator.types.spec import Pods

POLL_S = 0.2
PATIENCE_S = 2.0
LEAVE_S = 5.0


class Cancelled(OrchError):
    """Somebody asked the run to stop while it had no slices."""


def drive(recorded: journal.Journal, *, resumes: bool, pods: int | None) -> int:
    """Take the run up, and try until it has ended, recording as it goes; the exit code."""
    writer = journal.claim_run(recorded, resumes=resumes)
    write_to(recorded.paths.driver_log(writer.number))
    with tracking.BackgroundRecorder(recorded):
        return _driven(writer, pods)


def _driven(writer: journal.Writer, pods: int | None) -> int:
    try:
        return Driver(writer, pods).to_the_end()
    except Cancelled as asked:
        detail = f"{asked}, while it waited for slices"
        writer.end_run("cancelled", StateReason(code="cancel_requested", detail=detail))
        return 0
    except (JournalUnreadable, JournalUnwritable, Superseded) as error:
        print(error, file=sys.stderr)  # there is nowhere else to say it
        return error.exit_code
    except OrchError as error:
        print(error, file=sys.stderr)
        writer.end_run("failed", StateReason(code="error", detail=str(error)))
        return error.exit_code


@dataclass
class Driver:
    """A run as its driver sees it."""

    writer: journal.Writer
    pods: int | None

    def __post_init__(self) -> None:
        self.recorded = self.writer.journal
        self.spec = self.recorded.spec()
        self.submission = self.recorded.state().submitted.submission
        self.first = self.recorded.plan(self.submission.plan_digest)

    def to_the_end(self) -> int:
        """Try until nothing more is to be tried."""
        with self.writer.background_heartbeat():
            while True:
                decision = self._attempt()
                if not decision.retry:
                    return self._concluded(decision.reason)

    def _attempt(self) -> journal.Decision:
        """One attempt, from its slices to the end of its last process."""
        with self._crew() as crew:
            plan, slices = self._slices(crew)
            number = self.writer.start_attempt(plan, slices)
            every_s = heartbeat.heartbeat_interval_s(plan.hosts, self.spec.run.hang_limit_s)
            path = str(self.recorded.path)
            share = WorkerArgs(run=path, attempt=number, plan_digest=plan.digest, beat_s=every_s)
            crew.tell(AttemptCommand(share=share, slices=slices))
            watch = Monitor(self.writer, crew, share, slices, self.spec.run.hang_limit_s)
            ending = watch.to_the_end()
        self._leave(number)
        self._end(ending)
        return journal.decide_retry(self.writer.run(), self.spec.run.retries)

    def _crew(self) -> AttemptProcess:
        module = ("-m", "orchestrator.drive")
        return AttemptProcess([sys.executable, *module, str(self.recorded.path), "--crew"])

    def _slices(self, crew: AttemptProcess) -> tuple[Plan, tuple[str, ...]]:
        """Wait for slices, and for how many a plan is; say what is waited for."""
        began_s, run = time.monotonic(), self.writer.run()
        had = run.attempts[-1].slices if run.attempts else ()
        wanted = select_slices.SliceSelection(
            pods=self._pods(),
            kind=f"{self.first.chip} {self.first.topology}",
            began=bool(run.attempts),
            alone=self.submission.rehearsal,
        )
        seen: tuple[Slice, ...] | None = None
        before: tuple[str, ...] = ()
        while True:
            if wish := self.writer.heartbeat():
                raise Cancelled(wish.source)
            if said := crew.heard(POLL_S):
                if said.over:
                    raise OrchError(f"the cluster cannot be joined: {said.error}")
                seen, before = said.slices, said.before
            if seen is None:
                continue
            waited_s = time.monotonic() - began_s
            if not before and (taken := select_slices.chosen(seen, wanted, had, waited_s)):
                return plan_on(self.spec, self.first, len(taken)), taken
            if waited_s > PATIENCE_S:
                detail = select_slices.waiting(seen, wanted, before)
                self.writer.record_pending(StateReason(code="waiting_for_slices", detail=detail))

    def _pods(self) -> Pods:
        if self.pods is None:
            return self.spec.resources.pods
        return Pods(min=self.pods, max=self.pods)

    def _leave(self, number: int) -> None:
        """Wait until no process of the attempt is left; end those that stay on this machine.

        On others they end by themselves: they see the next attempt begin.
        """
        processes = [
            one.process for one in heartbeat.read_heartbeats(self.recorded.path, number).values()
        ]
        deadline = time.monotonic() + LEAVE_S
        here = [one for one in processes if one.machine == liveness.this_machine()]
        while left := [one for one in here if not liveness.is_gone(one)]:
            if time.monotonic() > deadline:
                for one in left:
                    with suppress(ProcessLookupError):
                        os.kill(one.pid, signal.SIGKILL)
            time.sleep(POLL_S)

    def _end(self, ending: AttemptEnd) -> None:
        self.writer.end_attempt(
            ending.reason, error=ending.error, first_dead_rank=ending.first_dead_rank
        )

    def _concluded(self, reason: StateReason) -> int:
        run = self.writer.run()
        if run.steps_done >= run.steps:
            self.writer.end_run("succeeded")
            return 0
        wish, last = self.writer.heartbeat(), run.attempts[-1]
        if wish is None:
            self.writer.end_run("failed", reason)
            return 1
        if last.reason == "cancelled":
            # Its ranks were let end by themselves, which they do with a checkpoint.
            saved = last.steps_done > 0 and not wish.at_once
            reason = cancel_reason(wish, run.steps_done, saved=saved)
        self.writer.end_run("cancelled", reason)
        return 0
