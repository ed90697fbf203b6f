"""The driver of a run: it starts attempt after attempt until the run has ended."""

import os
import sys
import traceback
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod

import psutil

from orchestrator import errors, tracking
from orchestrator.drive.monitor import Clock, Monitor, ReadHeartbeats
from orchestrator.drive.worker import redirect_output
from orchestrator.goodput.slowdowns import slices_to_avoid
from orchestrator.journal import heartbeat, liveness
from orchestrator.journal.heartbeat import read_heartbeats
from orchestrator.journal.ownership import Writer, claim_run
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.run_state import (
    Decision,
    RunState,
    cancel_reason,
    decide_retry,
    last_attempt_text,
)
from orchestrator.launch.backend import AttemptHandle, AttemptSpec, Backend, Slice, WorkerArgs
from orchestrator.network.mesh_axes import MODEL_OVER_DCN, sizes
from orchestrator.planning.planner import plan_on
from orchestrator.storage.addresses import address, is_copy
from orchestrator.values.codec import Value
from orchestrator.values.goodput import SPARE_WAIT_S, heartbeat_interval_s
from orchestrator.values.plan import Plan
from orchestrator.values.run import EndState, StateReason
from orchestrator.values.spec import Pods

# --- what a superseded claim left on this machine: its driver, what that started, and its ranks

_EXIT_LIMIT_S = 5.0
_START_LIMIT_S = 5.0
POLL_S = 0.2
_REAL_CLOCK = Clock()


def _evict(journal: Journal, before: RunState) -> None:
    """End the processes of the claim before, the driver first: it would start others."""
    driver = before.claim.driver if before.claim else None
    if driver and driver != liveness.this_process() and liveness.is_alive(driver):
        what = f"ending process {driver.pid}, whose claim is superseded"
        print(what, file=sys.stderr, flush=True)
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(driver.pid)
            tree = [process, *process.children(recursive=True)]
            for child in tree:
                if child.pid != os.getpid():
                    with suppress(psutil.Error):
                        child.kill()  # it refuses where another process has the number by now
    if before.attempts:
        _end_ranks(journal, before.attempts[-1].number)


def _end_ranks(
    journal: Journal,
    attempt: int,
    *,
    expected: Set[int] = frozenset(),
    clock: Clock = _REAL_CLOCK,
    read: ReadHeartbeats = heartbeat.read_heartbeats,
) -> None:
    """Wait until no rank of the attempt is left on this machine, and kill those that stay. An
    `expected` rank may be starting: it is awaited, up to a limit. Ranks elsewhere end by
    themselves.
    """
    began_s = clock.now_s()
    while True:
        # Read in every turn: a rank may have started since.
        beats = read(journal.path, attempt)
        here = [beat.process for beat in beats.values() if liveness.is_known(beat.process)]
        left = [process for process in here if not liveness.is_gone(process)]
        waited_s = clock.now_s() - began_s
        # A rank that has sent no heartbeat is on this machine only where the others are.
        awaited = bool(here or not beats) and not expected <= beats.keys()
        if not left and (not awaited or waited_s > _START_LIMIT_S):
            return
        for process in left if waited_s > _EXIT_LIMIT_S else ():
            with suppress(psutil.Error):  # the end of one may have ended another
                psutil.Process(process.pid).kill()
        clock.sleep(POLL_S)


# --- the slices that an attempt takes, among those that the backend shows: pure


class _SliceRequest(Value):
    """The slices that a run needs, a multiple of `sharing`, which have one copy of the weights. A
    run that has `started`, or on a `private` cluster, which adds no slice, may go on with fewer.
    """

    pods: Pods
    kind: str
    started: bool
    private: bool
    sharing: int = 1


def _select(
    slices: Sequence[Slice],
    request: _SliceRequest,
    previous: Sequence[str],
    waited_s: float,
    avoided: Set[str] = frozenset(),
) -> tuple[str, ...]:
    """The slices to take, previous ones first and avoided ones last; none to wait.
    `SpecError`: waiting cannot help.
    """
    free = [shown.name for shown in slices if shown.whole and shown.free and shown.settled]
    ranked = sorted(free, key=lambda name: (name in avoided, name not in previous, name))
    if len(free) >= request.pods.max:
        return tuple(sorted(ranked[: request.pods.max]))
    settled = all(shown.settled for shown in slices)
    whole = sum(shown.whole for shown in slices)
    if request.private and settled and whole < request.pods.min:
        raise errors.SpecError(f"{_wait_text(slices, request)}; this cluster gets no more")
    nothing_comes = request.private and settled and len(free) == whole
    fewer = len(free) // request.sharing * request.sharing
    enough = (request.started or nothing_comes) and fewer >= request.pods.min
    goes_on = enough and (nothing_comes or waited_s > SPARE_WAIT_S)
    return tuple(sorted(ranked[:fewer])) if goes_on else ()


def _wait_text(slices: Sequence[Slice], request: _SliceRequest, ahead: Sequence[str] = ()) -> str:
    """What the run waits for: the slices by number, the runs ahead of it, and broken slices."""
    whole = [shown for shown in slices if shown.whole]
    free = sum(shown.free for shown in whole)
    pods = request.pods
    requested = f"{pods.max}" if pods.min == pods.max else f"{pods.min} to {pods.max}"
    wanted = "slice" if pods.max == 1 else "slices"
    text = f"{requested} {wanted} of {request.kind} requested, {len(whole)} whole, {free} free"
    incomplete = [shown for shown in slices if not shown.whole]
    broken = [f"{shown.name} has {shown.hosts} of {shown.size} hosts" for shown in incomplete]
    names = ", ".join(path.rpartition("/")[2] for path in ahead)
    queue = [f"first come, first served: {names} is ahead"] if ahead else []
    return "; ".join([text, *queue, *broken])


_WORKER = "orchestrator.drive.worker:work"
_PENDING_AFTER_S = 2.0
# Google Cloud Storage takes an object once a second.
_BUCKET_HEARTBEAT_S = 1.0
# So many checkpoints more than are kept may be on disk while one replaces another.
_MORE_SAVES = 2
# After a loss before an attempt the next try waits so long, then twice as long, and so on.
FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0


class _Cancelled(errors.OrchError):
    """Somebody cancelled the run while it waited for slices."""


class _AttemptLost(errors.OrchError):
    """The processes that were to carry out an attempt ended before it began."""


def drive(
    journal: Journal,
    backend: Backend,
    *,
    resumes: bool,
    pods: int | None,
    checks_only: bool = False,
) -> int:
    """Claim the run and try until it has ended, recording as it goes; the exit code. A driver that
    `checks_only` times the hosts once, and leaves the run as it was.
    """
    writer = claim_run(journal, resumes=resumes)
    redirect_output(journal.paths.driver_log(writer.number))
    with tracking.BackgroundRecorder(journal):
        code = run_to_end(Driver(writer, backend, pods, checks_only=checks_only))
        run = journal.run()
        ended = run.ended_at_s is not None and not checks_only
        if ended and (run.steps_done or not run.rehearsal):
            try:
                from orchestrator.show import pages  # noqa: PLC0415  most of a run does not draw

                pages.keep_report(journal)
            except Exception:  # noqa: BLE001  whatever is wrong with the report, the run has ended
                traceback.print_exc()
        return code


def run_to_end(driver: "Driver") -> int:
    """Drive until the run has ended, and note the reason in the journal; the exit code."""
    writer = driver.writer
    try:
        return driver.run()
    except _Cancelled as cancelled:
        detail = f"{cancelled}, while it waited for slices"
        writer.end_run("cancelled", StateReason(code="cancel_requested", detail=detail))
        return 0
    except (errors.JournalUnreadable, errors.JournalUnwritable, errors.Superseded) as error:
        # The journal cannot take it, and on a full disk the log neither.
        liveness.leave(driver.journal.paths.driver_heartbeat(writer.number), str(error))
        with suppress(OSError):
            print(error, file=sys.stderr, flush=True)
        return error.exit_code
    except errors.OrchError as error:
        print(error, file=sys.stderr)
        writer.end_run("failed", StateReason(code="error", detail=str(error)))
        return error.exit_code


@dataclass
class Driver:
    writer: Writer
    backend: Backend
    pods: int | None = None
    worker: str = _WORKER
    clock: Clock = field(default_factory=Clock)
    read: ReadHeartbeats = read_heartbeats
    checks_only: bool = False

    def __post_init__(self) -> None:
        self.journal = self.writer.journal
        self.spec = self.journal.spec()
        self.submission = self.journal.state().submitted.submission
        self.first_plan = self.journal.plan(self.submission.plan_digest)
        self._pods = self.spec.resources.pods
        if self.pods is not None:
            self._pods = Pods(min=self.pods, max=self.pods)

    def run(self) -> int:
        """Start attempts until the run has ended, and return the exit code."""
        losses = 0
        with self.writer.background_heartbeat():
            if self.writer.before:
                _evict(self.journal, self.writer.before)
            while True:
                try:
                    decision = self._run_attempt()
                except _AttemptLost as lost:
                    losses += 1
                    # Wait before the next try, unless too many were lost in a row.
                    limit = self.spec.run.retries.failures
                    if losses > limit:
                        raise lost
                    wait_s = min(FIRST_WAIT_S * 2 ** (losses - 1), _LONGEST_WAIT_S)
                    detail = f"{lost}; tried again in {wait_s:.0f} s ({losses} of {limit})"
                    self.writer.record_pending(StateReason(code="joining_again", detail=detail))
                    deadline = self.clock.now_s() + wait_s
                    while self.clock.now_s() < deadline:
                        self._check_not_cancelled()
                        self.clock.sleep(POLL_S)
                    continue
                losses = 0
                if self.checks_only:
                    return self._end_check()
                if not decision.retry:
                    return self._end_run(decision.reason)

    def _check_not_cancelled(self) -> None:
        if cancel := self.writer.heartbeat():
            raise _Cancelled(cancel.source)

    def _run_attempt(self) -> Decision:
        path, claim = address(self.journal.path), self.writer.number
        spec = AttemptSpec(run=path, claim=claim, worker=self.worker)
        with self.backend.attempt(spec) as attempt:
            plan, slices = self._wait_for_slices(attempt)
            number = self.writer.start_attempt(plan, slices)
            limit_s, most_pods = self.spec.run.hang_limit_s, self._pods.max
            heartbeat_s = heartbeat_interval_s(plan.hosts, limit_s)
            if is_copy(self.journal.path):
                heartbeat_s = max(heartbeat_s, _BUCKET_HEARTBEAT_S)
            args = WorkerArgs(
                run=path,
                claim=claim,
                attempt=number,
                plan_digest=plan.digest,
                heartbeat_s=heartbeat_s,
                saves=self.writer.newest_saves(self.spec.run.checkpoint.keep + _MORE_SAVES),
                checks_only=self.checks_only,
            )
            attempt.start(args, slices)
            monitor = Monitor(
                self.writer, attempt, args, slices, limit_s, most_pods, self.clock, self.read
            )
            end = monitor.wait_for_end()
        expected = set(range(plan.hosts)) - {end.first_dead_rank}
        _end_ranks(self.journal, number, expected=expected, clock=self.clock, read=self.read)
        monitor.read_heartbeats()  # a last checkpoint may have become whole
        self.writer.end_attempt(end.reason, error=end.error, first_dead_rank=end.first_dead_rank)
        # A rank that starts even later either sees that its attempt has ended, or is seen here: it
        # sends a heartbeat before it reads the journal, and this reads heartbeats after the event.
        _end_ranks(self.journal, number, clock=self.clock, read=self.read)
        return decide_retry(self.writer.run(), self.spec.run.retries, repeats=end.repeats)

    def _wait_for_slices(self, attempt: AttemptHandle) -> tuple[Plan, tuple[str, ...]]:
        """Wait until enough slices are free, and plan for as many; note what the run waits for."""
        started_s, run = self.clock.now_s(), self.writer.run()
        previous = run.attempts[-1].slices if run.attempts else ()
        avoided = slices_to_avoid(run.host_checks)
        request = _SliceRequest(
            pods=self._pods,
            kind=self.first_plan.slice_kind,
            started=bool(run.attempts),
            private=self.submission.rehearsal,
            sharing=prod(sizes(self.first_plan.mesh, MODEL_OVER_DCN).values()),
        )
        slices: tuple[Slice, ...] | None = None
        ahead: tuple[str, ...] = ()
        while True:
            self._check_not_cancelled()
            if event := attempt.next_event(POLL_S):
                if event.ended:
                    kind = errors.OrchError if event.repeats else _AttemptLost
                    raise kind(f"the cluster cannot be joined: {event.error}")
                slices, ahead = event.slices, event.ahead
            if slices is None:
                continue
            waited_s = self.clock.now_s() - started_s
            if not ahead and (chosen := _select(slices, request, previous, waited_s, avoided)):
                if left := avoided.intersection(seen.name for seen in slices) - {*chosen}:
                    slow = f"a host of {', '.join(sorted(left))} was slow in two checks"
                    print(f"{slow}: other slices are taken", file=sys.stderr, flush=True)
                return plan_on(self.spec, self.first_plan, len(chosen)), chosen
            if waited_s > _PENDING_AFTER_S:
                detail = _wait_text(slices, request, ahead)
                self.writer.record_pending(StateReason(code="waiting_for_slices", detail=detail))

    def _end_check(self) -> int:
        """Leave the run as it was before its hosts were checked; the exit code."""
        last, before = self.writer.run().attempts[-1], self.writer.before
        detail = "its hosts were checked, and no step was asked for"
        if last.reason not in ("finished", "cancelled"):
            detail = f"its hosts could not be checked: {last_attempt_text((last,))}"
        state: EndState = "cancelled"
        reason = StateReason(code="hosts_checked", detail=detail)
        if before and before.ended and last.reason == "finished":
            state, reason = before.ended.state, before.ended.reason or reason
        self.writer.end_run(state, reason)
        return int(last.reason != "finished")

    def _end_run(self, reason: StateReason) -> int:
        """Note how the run has ended; the exit code. `reason` says why nothing more is tried."""
        try:  # first: what ends a run also records it
            from orchestrator.run.profile import measure_traces  # noqa: PLC0415  few have traces

            measure_traces(self.journal)
        except Exception:  # noqa: BLE001  whatever is wrong with a trace, the run has ended
            traceback.print_exc()
        run = self.writer.run()
        if run.steps_done >= run.steps:
            self.writer.end_run("succeeded")
            return 0
        cancel, last = self.writer.heartbeat(), run.attempts[-1]
        if cancel is None:
            self.writer.end_run("failed", reason)
            return 1
        if last.reason == "cancelled":
            # Ranks that end by themselves save a last checkpoint.
            saved = last.steps_done > 0 and not cancel.at_once
            reason = cancel_reason(cancel, run.steps_done, saved=saved)
        self.writer.end_run("cancelled", reason)
        return 0
