"""The state of a run, derived from its events and from signs of life, and whether to try again.
Pure: no files, no clock. A writer must follow the rules. A reader goes on where a file was damaged:
it applies later events as far as they make sense, and notes what is wrong.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import msgspec
from msgspec import field

from orchestrator.journal import events
from orchestrator.journal.files import FileFault
from orchestrator.values import run as values
from orchestrator.values.codec import Value
from orchestrator.values.slowdowns import HostCheck, Slowdown
from orchestrator.values.spec import RetryLimits

HEARTBEAT_S = 2.0
# A driver counts as gone after this many missing heartbeats.
MISSING_HEARTBEATS = 5
# A cluster may need this long to start the driver of a submitted run.
UNCLAIMED_S = 600.0
_ATTEMPT_ENDS: dict[values.AttemptReason, str] = {
    "failure": "failed",
    "preemption": "was preempted",
    "resized": "gave way to one with more pods",
    "hang": "hung",
    "finished": "finished",
    "cancelled": "was stopped",
}
# Addresses, digests and numbers differ between two occurrences of the same error.
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{12,}\b|\d+")


# Events of the attempt that is running, and of no other.
_OF_RUNNING = (
    events.AttemptEnded, events.CheckpointSaved, events.SlowdownSeen, events.HostsChecked,
    events.TraceAsked,
)  # fmt: skip
# Events of which the state keeps the newest, by the name of its field.
_NEWEST: dict[type, str] = {
    events.Pending: "pending",
    events.Stopping: "stopping",
    events.TraceAsked: "trace",
}


class RunState(Value):
    submitted: events.Submitted
    last: int  # the number of the newest event
    last_at_s: float
    digest: str = ""  # of the file of the newest event
    claim: events.Claimed | None = None
    writer: int = 0  # the number of the newest claim, 0 before the first
    attempts: tuple[values.Attempt, ...] = ()
    resumed_at: int = 1
    pending: events.Pending | None = None
    stopping: events.Stopping | None = None
    ended: events.Ended | None = None
    saves: tuple[values.SavedCheckpoint, ...] = ()  # that count, the newest last
    trace: events.TraceAsked | None = None  # the newest
    plan_sums: dict[str, str] = field(default_factory=dict)
    slowdowns: dict[tuple[int, int], Slowdown] = field(default_factory=dict)  # by attempt, number
    host_checks: tuple[HostCheck, ...] = ()
    repaired: int = 0
    damage: tuple[FileFault, ...] = ()  # that nobody has accepted
    problems: tuple[str, ...] = ()

    @property
    def open_attempt(self) -> values.Attempt | None:
        newest = self.attempts[-1] if self.attempts else None
        return newest if newest and newest.reason is None else None

    @property
    def next_attempt(self) -> int:
        return self.attempts[-1].number + 1 if self.attempts else 1

    @property
    def settled_requests(self) -> int:
        return self.claim.settled_requests if self.claim else 0


def initial(submitted: events.Submitted) -> RunState:
    return RunState(submitted=submitted, last=1, last_at_s=submitted.at_s)


def violation(state: RunState, event: events.AnyEvent) -> str | None:
    """Return the rule that this event breaks when it comes next; None when it may."""
    if isinstance(event, events.Submitted):
        return "the run was submitted before"
    if isinstance(event, events.Claimed | events.Repaired):
        return None
    if state.ended:
        return f"the run has ended: {state.ended.state}"
    running = state.open_attempt.number if state.open_attempt else None
    if isinstance(event, events.CheckpointSaved) and event.checkpoint.claim != state.writer:
        return f"claim {event.checkpoint.claim} is superseded by claim {state.writer}"
    if isinstance(event, _OF_RUNNING):
        return None if event.attempt == running else f"attempt {event.attempt} is not running"
    if isinstance(event, events.Stopping):
        return None
    if running is not None:
        return f"attempt {running} is running"
    if isinstance(event, events.AttemptStarted) and not state.claim:
        return "no driver has claimed the run"
    if isinstance(event, events.AttemptStarted) and event.attempt != state.next_attempt:
        return f"the next attempt is {state.next_attempt}"
    return None


def apply(state: RunState, number: int, event: events.AnyEvent) -> RunState:
    """Return the state after one more event. One that breaks a rule is noted."""
    broken = violation(state, event)
    if broken:
        note = f"event {number} ({event.__struct_config__.tag}) is out of order: {broken}"
        state = replace(state, problems=(*state.problems, note))
    later_start = isinstance(event, events.AttemptStarted) and event.attempt >= state.next_attempt
    if broken is None or later_start or isinstance(event, events.Ended):
        state = replace(_changed(state, number, event), last_at_s=event.at_s)
    return replace(state, last=number)


def _changed(state: RunState, number: int, event: events.AnyEvent) -> RunState:
    state = _with_found(state, event)
    # Where nobody wrote down how a running attempt ended, it is lost.
    closed = _with_newest(state, reason="lost") if state.open_attempt else state.attempts
    idle = replace(state, attempts=closed, pending=None, stopping=None)
    match event:
        case events.Claimed():
            resumed_at = state.next_attempt if event.resumes else state.resumed_at
            return replace(idle, claim=event, writer=number, resumed_at=resumed_at, ended=None)
        case events.Pending() | events.Stopping() | events.TraceAsked():
            newest: dict[str, Any] = {_NEWEST[type(event)]: event}
            return replace(state, **newest)
        case events.AttemptStarted():
            attempt = values.Attempt(
                number=event.attempt,
                plan_digest=event.plan_digest,
                pods=event.pods,
                slices=event.slices,
                started_at_s=event.at_s,
            )
            # The first attempt with a plan has written its file.
            sha256 = state.plan_sums.get(event.plan_digest, event.plan_sha256)
            plan_sums = state.plan_sums | {event.plan_digest: sha256}
            return replace(idle, attempts=(*closed, attempt), plan_sums=plan_sums, ended=None)
        case events.AttemptEnded():
            attempts = _with_newest(
                state,
                ended_at_s=event.at_s,
                written=event.steps,
                reason=event.reason,
                error=event.error,
                first_dead_rank=event.first_dead_rank,
            )
            return replace(state, attempts=attempts)
        case events.Ended():
            return replace(idle, ended=event)
        case events.Repaired():
            return replace(state, repaired=number)
    return state


def _with_found(state: RunState, event: events.AnyEvent) -> RunState:
    """Return the state with what an event says of the attempt that is running."""
    saved = event.checkpoint if isinstance(event, events.CheckpointSaved) else None
    if isinstance(event, events.Claimed):
        saved = event.adopted
    if saved and state.open_attempt:
        saves = (*state.saves, saved)
        return replace(state, attempts=_with_newest(state, saved_steps=saved.step), saves=saves)
    if isinstance(event, events.SlowdownSeen):
        key = event.attempt, event.slowdown.number
        return replace(state, slowdowns=state.slowdowns | {key: event.slowdown})
    if isinstance(event, events.HostsChecked):
        return replace(state, host_checks=(*state.host_checks, event.check))
    return state


def _with_newest(state: RunState, **changes: Any) -> tuple[values.Attempt, ...]:
    return (*state.attempts[:-1], replace(state.attempts[-1], **changes))


@dataclass(frozen=True)
class StepSummary:
    startup: values.Startup | None = None
    last_steps: tuple[values.TimedStep, ...] = ()

    @property
    def steps_done(self) -> int:
        return self.last_steps[-1].step.index + 1 if self.last_steps else 0


class Observation(Value):
    """What a reader sees apart from events, at `now_s`, of the driver or else the submitter."""

    now_s: float
    heartbeat_at_s: float | None = None
    # Since the last heartbeat of a driver on this machine: no adjustment of a clock changes it.
    silent_s: float | None = None
    writer_is_gone: bool = False  # its process is known to have ended
    writer_is_alive: bool = False  # its process is known to exist
    last_words: str = ""  # of the driver, where the journal took no event any more
    cancel: events.CancelRequest | None = None  # the request that counts
    tracking: values.TrackedRun | None = None
    steps: dict[int, StepSummary] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def newest_steps(self) -> StepSummary:
        stepped = [number for number, summary in self.steps.items() if summary.last_steps]
        return self.steps[max(stepped)] if stepped else StepSummary()


def build_run(key: str, journal: str, state: RunState, observed: Observation) -> values.Run:
    submission = state.submitted.submission
    name, reason = _current_state(state, observed)
    attempts = []
    for attempt in state.attempts:
        summary = observed.steps.get(attempt.number, StepSummary())
        restored = summary.startup.steps_done if summary.startup else 0
        attempts.append(replace(attempt, restored_steps=restored, steps_done=summary.steps_done))
    if attempts and attempts[-1].reason is None and name in ("lost", "cancelled"):
        attempts[-1] = replace(attempts[-1], reason="lost")  # with its driver
    newest = attempts[-1] if attempts else None
    steps = observed.newest_steps
    last = steps.last_steps[-1] if steps.last_steps else None
    newest_first = sorted(observed.steps.items(), reverse=True)
    ends = (timed.step for _, summary in newest_first for timed in summary.last_steps[-1:])
    return values.Run(
        id=submission.id,
        name=submission.name,
        rehearsal=submission.rehearsal,
        rehearses=submission.rehearses,
        spec_digest=submission.spec_digest,
        steps=submission.steps,
        environment=submission.environment,
        profile=submission.profile,
        study=submission.study,
        run=key,
        state=name,
        reason=reason,
        plan_digest=newest.plan_digest if newest else submission.plan_digest,
        journal=journal,
        tracking=observed.tracking,
        submitted_at_s=state.submitted.at_s,
        ended_at_s=state.ended.at_s if state.ended else None,
        read_at_s=observed.now_s,
        cancel_requested_at_s=observed.cancel.at_s if observed.cancel else None,
        pods=newest.pods if newest else submission.pods,
        requested_pods=submission.pods,
        steps_done=steps.steps_done,
        last_step=last,
        evaluation=next((step.evaluation for step in ends if step.evaluation), None),
        since_last_step_s=max(0.0, observed.now_s - last.at_s) if last else None,
        since_last_heartbeat_s=_silence_s(state, observed),
        recent=_recent_steps(steps.last_steps),
        driver=state.claim.driver if state.claim else None,
        resumed_at=state.resumed_at,
        attempts=tuple(attempts),
        problems=(*state.problems, *observed.problems),
        slowdowns=tuple(state.slowdowns.values()),
        host_checks=state.host_checks,
    )


def _recent_steps(steps: tuple[values.TimedStep, ...]) -> values.RecentSteps | None:
    """Return medians over the steps after warm-up of the newest stage that has any."""
    warm: list[values.Step] = []
    for timed in reversed(steps):
        if timed.step.startup is None:
            warm.append(timed.step)
        elif warm:
            break
    if not warm:
        return None
    return values.RecentSteps(
        steps=len(warm),
        step_s=median(step.step_s for step in warm),
        mfu=_median([step.mfu for step in warm]),
        tokens_per_s_per_chip=_median([step.tokens_per_s_per_chip for step in warm]),
    )


def _median(figures: list[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return median(known) if known else None


def _current_state(
    state: RunState, observed: Observation
) -> tuple[values.State, values.StateReason | None]:
    """Return the state of the run, and what it waits for or why it ended or is lost."""
    if state.ended:
        return state.ended.state, state.ended.reason
    if absence := _driver_absence(state, observed):
        if not (cancel := observed.cancel):
            return "lost", absence
        stopped = cancel_reason(cancel, observed.newest_steps.steps_done)
        return "cancelled", stopped if cancel.at_once else absence
    if state.stopping:
        return "stopping", state.stopping.reason
    if open_attempt := state.open_attempt:
        stepped = observed.steps.get(open_attempt.number, StepSummary()).last_steps
        return ("running" if stepped else "starting"), None
    if state.pending:
        return "pending", state.pending.reason
    if state.attempts and state.attempts[-1].reason == "finished":
        return "running", None  # its driver has yet to write that the run ended
    if state.claim:
        detail = last_attempt_text(state.attempts)
        return "starting", _reason("after_attempt", detail) if detail else None
    waited_s = max(0.0, observed.now_s - state.submitted.at_s)
    if observed.writer_is_alive:
        submitter = process_name(state.submitted.submission.submitter)
        detail = f"orch submit ({submitter}) has been starting its driver for {waited_s:,.0f} s"
        return "submitted", _reason("driver_starting", detail)
    return "submitted", _reason("unclaimed", f"no driver has claimed it for {waited_s:,.0f} s")


def _driver_absence(state: RunState, observed: Observation) -> values.StateReason | None:
    """Return why no process drives the run any more; None while one does or still may."""
    silent_s = _silence_s(state, observed)
    submission = state.submitted.submission
    if state.claim:
        driver = f"its driver ({process_name(state.claim.driver)})"
        if observed.writer_is_gone:
            why = ": ".join(filter(None, [f"{driver} is gone", first_line(observed.last_words)]))
            return _reason("driver_gone", why)
        if silent_s > state.claim.heartbeat_s * MISSING_HEARTBEATS:
            return _reason("driver_silent", f"{driver} has sent no heartbeat for {silent_s:,.0f} s")
    # A real run may wait for its driver without its submitter; a rehearsal cannot.
    elif observed.writer_is_gone and submission.rehearsal:
        return _reason("driver_gone", f"orch submit ({process_name(submission.submitter)}) is gone")
    elif silent_s > UNCLAIMED_S:
        return _reason("unclaimed", f"no driver has claimed it for {silent_s:,.0f} s")
    return None


def _silence_s(state: RunState, observed: Observation) -> float:
    """Return the seconds since the last event or heartbeat of the writer. Steps do not count."""
    if observed.silent_s is not None:
        return max(0.0, observed.silent_s)
    return max(0.0, observed.now_s - max(state.last_at_s, observed.heartbeat_at_s or 0.0))


def cancel_reason(
    request: events.CancelRequest, steps_done: int, *, saved: bool = False
) -> values.StateReason:
    when = f"after step {steps_done:,}" if steps_done else "before its first step"
    at_once = ", at once" if request.at_once and steps_done else ""
    checkpoint = "; its checkpoint is saved" if saved else ""
    return _reason("cancel_requested", f"{request.source}{at_once}, {when}{checkpoint}")


def last_attempt_text(attempts: tuple[values.Attempt, ...]) -> str | None:
    """Return how the newest attempt ended, in one line; None before the first."""
    if not attempts:
        return None
    last = attempts[-1]
    if last.reason is None or last.reason == "lost":
        return f"attempt {last.number} was lost with its driver"
    error = first_line(last.error)
    return f"attempt {last.number} {_ATTEMPT_ENDS[last.reason]}" + (f": {error}" if error else "")


def process_name(process: values.ProcessIdentity) -> str:
    return f"process {process.pid} on {process.host}"


def first_line(text: str | None) -> str:
    return next(iter((text or "").strip().splitlines()), "")


def _reason(code: values.ReasonCode, detail: str) -> values.StateReason:
    return values.StateReason(code=code, detail=detail)


# --- whether to start another attempt


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    retry: bool
    reason: values.StateReason


def decide_retry(run: values.Run, retries: RetryLimits, *, repeats: bool = False) -> Decision:
    """Decide what to do after the newest attempt; the run ends if its error always `repeats`.
    Failures and hangs count against one budget and preemptions against another, each since the last
    attempt that got further than all before it. The same error at the same step ends the run
    whatever the budgets are, except before the first step of an attempt whose plan has done steps:
    on many chips two failures in a row strike there. An attempt that was lost with its driver, or
    that gave way to one with more pods, costs nothing.
    """
    attempts = run.attempts
    if not attempts or attempts[-1].reason is None:
        raise ValueError(f"{run.run}: no attempt has ended")
    last = attempts[-1]
    ending = last_attempt_text(attempts) or ""
    code: values.ReasonCode = "repeated_error"
    if last.reason in ("finished", "cancelled"):
        code, detail = "not_retried", ending
    elif run.cancel_requested_at_s is not None:
        code, detail = "cancel_requested", f"{ending}; cancel was requested"
    elif repeats:
        detail = f"{ending}; every attempt would end so"
    elif previous := _previous_occurrence(attempts):
        ended = _ATTEMPT_ENDS["hang" if last.reason == "hang" else "failure"]
        when = f"after step {last.steps_done:,}" if last.steps_done else "before the first step"
        both = f"attempts {previous.number} and {last.number} both {ended} {when}"
        detail = f"{both}, so the run is not retried: {first_line(last.error)}"
    elif last.reason in ("lost", "resized"):
        code, detail = "retried", ending
    else:
        # The budget for this kind of ending, and the attempts against it since the last progress.
        preempted = last.reason == "preemption"
        counted = ("preemption",) if preempted else ("failure", "hang")
        furthest = used = 0
        for attempt in attempts:
            if attempt.steps_done > furthest:
                furthest, used = attempt.steps_done, 0
            used += attempt.reason in counted and attempt.number >= run.resumed_at
        budget = retries.preemptions if preempted else retries.failures
        kind = "preemption" if preempted else "failure"
        detail = f"{ending} ({kind} {used} without progress; the limit is {budget})"
        code = "retried" if used <= budget else "retries_exhausted"
    return Decision(retry=code == "retried", reason=_reason(code, detail))


def _previous_occurrence(attempts: Sequence[values.Attempt]) -> values.Attempt | None:
    """Return the previous failure, if the last attempt failed with the same error at that step."""
    failures = [attempt for attempt in attempts if attempt.reason in ("failure", "hang")]
    if len(failures) < 2 or failures[-1] is not attempts[-1]:
        return None
    previous, last = failures[-2:]
    if not last.error:
        return None  # two unexplained deaths may have two causes
    earlier = attempts[: attempts.index(previous)]
    plan_has_started = any(
        attempt.steps_done for attempt in earlier if attempt.plan_digest == last.plan_digest
    )
    if not last.steps_done and plan_has_started:
        return None  # nothing in the plan stops every start
    same = (previous.reason, previous.steps_done) == (last.reason, last.steps_done)
    errors = [_VARYING.sub("#", attempt.error or "") for attempt in (previous, last)]
    return previous if same and errors[0] == errors[1] else None
