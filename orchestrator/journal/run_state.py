"""The state of a run, derived from its events one after another. Pure: no files, no clock.

A writer must follow the rules. A reader goes on where a file was damaged: it applies later events
as far as they make sense, and notes what is wrong.
"""

from dataclasses import dataclass, field, replace
from statistics import median

from orchestrator.journal.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CancelRequest,
    CheckpointSaved,
    Claimed,
    Ended,
    Pending,
    Repaired,
    Stopping,
    Submitted,
)
from orchestrator.journal.files import FileFault
from orchestrator.values.run import (
    Attempt,
    AttemptReason,
    Evaluation,
    ProcessIdentity,
    ReasonCode,
    RecentSteps,
    Run,
    SavedCheckpoint,
    Startup,
    State,
    StateReason,
    Step,
    TimedStep,
    TrackedRun,
)


@dataclass(frozen=True, kw_only=True)
class RunState:
    """What the events say so far.

    `last` is the number of the newest event, `digest` that of its file, and `writer` the number of
    the newest claim, 0 before the first. `saves` are the checkpoints that count, the newest last.
    `damage` lists faults of the events that nobody has accepted.
    """

    submitted: Submitted
    last: int
    last_at_s: float
    digest: str = ""
    claim: Claimed | None = None
    writer: int = 0
    attempts: tuple[Attempt, ...] = ()
    resumed_at: int = 1
    pending: Pending | None = None
    stopping: Stopping | None = None
    ended: Ended | None = None
    saves: tuple[SavedCheckpoint, ...] = ()
    plan_sums: dict[str, str] = field(default_factory=dict)
    repaired: int = 0
    damage: tuple[FileFault, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def open_attempt(self) -> Attempt | None:
        """The attempt that is running."""
        newest = self.attempts[-1] if self.attempts else None
        return newest if newest and newest.reason is None else None

    @property
    def next_attempt(self) -> int:
        """The number of the next attempt."""
        return self.attempts[-1].number + 1 if self.attempts else 1

    @property
    def settled_requests(self) -> int:
        """Requests up to this number no longer count."""
        return self.claim.settled_requests if self.claim else 0


def initial(submitted: Submitted) -> RunState:
    """The state after the first event."""
    return RunState(submitted=submitted, last=1, last_at_s=submitted.at_s)


def violation(state: RunState, event: AnyEvent) -> str | None:
    """The rule that this event breaks when it comes next; None when it may."""
    if isinstance(event, Submitted):
        return "the run was submitted before"
    if isinstance(event, Claimed | Repaired):
        return None
    if state.ended:
        return f"the run has ended: {state.ended.state}"
    open_attempt = state.open_attempt
    if isinstance(event, CheckpointSaved):
        return _save_violation(state, event.checkpoint)
    if isinstance(event, AttemptEnded):
        number = open_attempt.number if open_attempt else None
        return None if event.attempt == number else f"attempt {event.attempt} is not running"
    if isinstance(event, Stopping):
        return None
    if open_attempt:
        return f"attempt {open_attempt.number} is running"
    if isinstance(event, AttemptStarted):
        return _start_violation(state, event)
    return None


def _save_violation(state: RunState, saved: SavedCheckpoint) -> str | None:
    """A checkpoint counts only for the newest claim, and while its attempt is running."""
    if saved.claim != state.writer:
        return f"claim {saved.claim} is superseded by claim {state.writer}"
    number = state.open_attempt.number if state.open_attempt else None
    return None if saved.attempt == number else f"attempt {saved.attempt} is not running"


def _start_violation(state: RunState, event: AttemptStarted) -> str | None:
    if not state.claim:
        return "no driver has claimed the run"
    expected = state.next_attempt
    return None if event.attempt == expected else f"the next attempt is {expected}"


def apply(state: RunState, number: int, event: AnyEvent) -> RunState:
    """The state after one more event.

    An event that breaks a rule is noted. It is applied only if it implies how what came before it
    ended.
    """
    broken = violation(state, event)
    if broken:
        note = f"event {number} ({event.__struct_config__.tag}) is out of order: {broken}"
        state = replace(state, problems=(*state.problems, note))
    if broken is None or _stands_alone(state, event):
        state = replace(_changed(state, number, event), last_at_s=event.at_s)
    return replace(state, last=number)


def _stands_alone(state: RunState, event: AnyEvent) -> bool:
    if isinstance(event, AttemptStarted):
        return event.attempt >= state.next_attempt
    return isinstance(event, Ended)


def _changed(state: RunState, number: int, event: AnyEvent) -> RunState:
    match event:
        case Claimed():
            return _after_claim(state, number, event)
        case Pending():
            return replace(state, pending=event)
        case AttemptStarted():
            return _after_start(state, event)
        case CheckpointSaved():
            return _with_save(state, event.checkpoint)
        case Stopping():
            return replace(state, stopping=event)
        case AttemptEnded():
            return _after_attempt(state, event)
        case Ended():
            attempts = _closed_attempts(state)
            return replace(state, attempts=attempts, ended=event, pending=None, stopping=None)
        case Repaired():
            return replace(state, repaired=number)
    return state


def _after_claim(state: RunState, number: int, claim: Claimed) -> RunState:
    if claim.adopted and state.open_attempt:
        state = _with_save(state, claim.adopted)
    return replace(
        state,
        claim=claim,
        writer=number,
        attempts=_closed_attempts(state),
        resumed_at=state.next_attempt if claim.resumes else state.resumed_at,
        pending=None,
        stopping=None,
        ended=None,
    )


def _with_save(state: RunState, saved: SavedCheckpoint) -> RunState:
    newest = replace(state.attempts[-1], saved_steps=saved.step)
    return replace(state, attempts=(*state.attempts[:-1], newest), saves=(*state.saves, saved))


def _after_start(state: RunState, event: AttemptStarted) -> RunState:
    attempt = Attempt(
        number=event.attempt,
        plan_digest=event.plan_digest,
        pods=event.pods,
        slices=event.slices,
        started_at_s=event.at_s,
    )
    attempts = (*_closed_attempts(state), attempt)
    plan_sums = state.plan_sums
    if event.plan_digest not in plan_sums:
        plan_sums = plan_sums | {event.plan_digest: event.plan_sha256}
    return replace(
        state, attempts=attempts, plan_sums=plan_sums, pending=None, stopping=None, ended=None
    )


def _after_attempt(state: RunState, event: AttemptEnded) -> RunState:
    newest = replace(
        state.attempts[-1],
        ended_at_s=event.at_s,
        reason=event.reason,
        error=event.error,
        first_dead_rank=event.first_dead_rank,
        written=event.steps,
    )
    return replace(state, attempts=(*state.attempts[:-1], newest))


def _closed_attempts(state: RunState) -> tuple[Attempt, ...]:
    """The attempts, with a running one `lost`: nobody wrote down how it ended."""
    if not state.open_attempt:
        return state.attempts
    return (*state.attempts[:-1], replace(state.attempts[-1], reason="lost"))


# The status of a run, from its events and from signs of life. Pure: no files, no clock.


HEARTBEAT_S = 2.0
# A driver counts as gone after this many missing heartbeats.
MISSING_HEARTBEATS = 5
# A cluster may need this long to start the driver of a submitted run.
UNCLAIMED_S = 600.0
ATTEMPT_ENDS: dict[AttemptReason, str] = {
    "failure": "failed",
    "preemption": "was preempted",
    "resized": "gave way to one with more pods",
    "hang": "hung",
    "finished": "finished",
    "cancelled": "was stopped",
}


@dataclass(frozen=True)
class StepSummary:
    """The first and the last steps of an attempt."""

    startup: Startup | None = None
    last_steps: tuple[TimedStep, ...] = ()

    @property
    def steps_done(self) -> int:
        return self.last_steps[-1].step.index + 1 if self.last_steps else 0

    @property
    def evaluation(self) -> Evaluation | None:
        return self.last_steps[-1].step.evaluation if self.last_steps else None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a reader of the journal sees apart from the events, at `now_s`.

    The writer is the driver, or the submitter before a driver has claimed the run.
    `writer_is_gone` means that its process is known to have ended, `writer_is_alive` that it is
    known to exist. `cancel` is the request to stop that counts. `silent_s` is the time since the
    last heartbeat of a driver on the reader's machine: no adjustment of a clock changes it.
    """

    now_s: float
    heartbeat_at_s: float | None = None
    silent_s: float | None = None
    writer_is_gone: bool = False
    writer_is_alive: bool = False
    cancel: CancelRequest | None = None
    tracking: TrackedRun | None = None
    steps: dict[int, StepSummary] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def newest_steps(self) -> StepSummary:
        """The steps of the newest attempt that did one."""
        stepped = [number for number, summary in self.steps.items() if summary.last_steps]
        return self.steps[max(stepped)] if stepped else StepSummary()

    @property
    def newest_evaluation(self) -> Evaluation | None:
        """The newest evaluation, of the newest attempt that has one."""
        of_attempts = [self.steps[number].evaluation for number in sorted(self.steps, reverse=True)]
        return next((one for one in of_attempts if one), None)


def build_run(key: str, journal: str, state: RunState, observed: Observation) -> Run:
    """The run at the time of the observation."""
    submission = state.submitted.submission
    name, reason = current_state(state, observed)
    attempts = _attempts(state, observed, name)
    newest = attempts[-1] if attempts else None
    steps = observed.newest_steps
    last = steps.last_steps[-1] if steps.last_steps else None
    return Run(
        run=key,
        id=submission.id,
        name=submission.name,
        state=name,
        reason=reason,
        rehearsal=submission.rehearsal,
        rehearses=submission.rehearses,
        spec_digest=submission.spec_digest,
        plan_digest=newest.plan_digest if newest else submission.plan_digest,
        journal=journal,
        tracking=observed.tracking,
        submitted_at_s=state.submitted.at_s,
        ended_at_s=state.ended.at_s if state.ended else None,
        read_at_s=observed.now_s,
        cancel_requested_at_s=observed.cancel.at_s if observed.cancel else None,
        pods=newest.pods if newest else submission.pods,
        requested_pods=submission.pods,
        steps=submission.steps,
        steps_done=steps.steps_done,
        last_step=last,
        evaluation=observed.newest_evaluation,
        since_last_step_s=max(0.0, observed.now_s - last.at_s) if last else None,
        since_last_heartbeat_s=silence_s(state, observed),
        recent=recent_steps(steps.last_steps),
        driver=state.claim.driver if state.claim else None,
        resumed_at=state.resumed_at,
        attempts=attempts,
        environment=submission.environment,
        profile=submission.profile,
        study=submission.study,
        problems=(*state.problems, *observed.problems),
    )


def _attempts(state: RunState, observed: Observation, name: State) -> tuple[Attempt, ...]:
    """The attempts with their steps. A running one is lost together with its driver."""
    attempts = tuple(_with_steps(one, observed.steps) for one in state.attempts)
    if attempts and attempts[-1].reason is None and name in ("lost", "cancelled"):
        return (*attempts[:-1], replace(attempts[-1], reason="lost"))
    return attempts


def _with_steps(attempt: Attempt, steps: dict[int, StepSummary]) -> Attempt:
    summary = steps.get(attempt.number, StepSummary())
    restored = summary.startup.steps_done if summary.startup else 0
    return replace(attempt, restored_steps=restored, steps_done=summary.steps_done)


def recent_steps(steps: tuple[TimedStep, ...]) -> RecentSteps | None:
    """Medians over the steps after warm-up; None when there are none. They are of one stage: the
    newest that has any.
    """
    warm: list[Step] = []
    for timed in reversed(steps):
        if timed.step.startup is None:
            warm.append(timed.step)
        elif warm:
            break
    if not warm:
        return None
    return RecentSteps(
        steps=len(warm),
        step_s=median(step.step_s for step in warm),
        mfu=_median([step.mfu for step in warm]),
        tokens_per_s_per_chip=_median([step.tokens_per_s_per_chip for step in warm]),
    )


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


# --- the state and its reason


def current_state(state: RunState, observed: Observation) -> tuple[State, StateReason | None]:
    """The state of the run, and what it waits for or why it ended or is lost."""
    if state.ended:
        return state.ended.state, state.ended.reason
    if absence := driver_absence(state, observed):
        return _abandoned(absence, observed)
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
    return "submitted", _unclaimed(state, observed)


def _abandoned(absence: StateReason, observed: Observation) -> tuple[State, StateReason]:
    """The state without a driver: a run that somebody asked to cancel is cancelled."""
    if not observed.cancel:
        return "lost", absence
    if not observed.cancel.at_once:
        return "cancelled", absence
    return "cancelled", cancel_reason(observed.cancel, observed.newest_steps.steps_done)


def _unclaimed(state: RunState, observed: Observation) -> StateReason:
    waited_s = max(0.0, observed.now_s - state.submitted.at_s)
    if observed.writer_is_alive:
        submitter = process_name(state.submitted.submission.submitter)
        detail = f"orch submit ({submitter}) has been starting its driver for {waited_s:,.0f} s"
        return _reason("driver_starting", detail)
    return _reason("unclaimed", f"no driver has claimed it for {waited_s:,.0f} s")


def driver_absence(state: RunState, observed: Observation) -> StateReason | None:
    """Why no process drives the run any more; None while one does or still may."""
    silent_s = silence_s(state, observed)
    submission = state.submitted.submission
    if state.claim:
        driver = f"its driver ({process_name(state.claim.driver)})"
        if observed.writer_is_gone:
            return _reason("driver_gone", f"{driver} is gone")
        if silent_s > state.claim.heartbeat_s * MISSING_HEARTBEATS:
            return _reason("driver_silent", f"{driver} has sent no heartbeat for {silent_s:,.0f} s")
    # A real run may wait for its driver without its submitter; a rehearsal cannot.
    elif observed.writer_is_gone and submission.rehearsal:
        return _reason("driver_gone", f"orch submit ({process_name(submission.submitter)}) is gone")
    elif silent_s > UNCLAIMED_S:
        return _reason("unclaimed", f"no driver has claimed it for {silent_s:,.0f} s")
    return None


def silence_s(state: RunState, observed: Observation) -> float:
    """Seconds since the last event or heartbeat of the writer.

    Steps do not count: processes without a driver may go on for a while.
    """
    if observed.silent_s is not None:
        return max(0.0, observed.silent_s)
    return max(0.0, observed.now_s - max(state.last_at_s, observed.heartbeat_at_s or 0.0))


def cancel_reason(request: CancelRequest, steps_done: int, *, saved: bool = False) -> StateReason:
    """Why a cancelled run ended, after how many steps, and whether its checkpoint has them all."""
    when = f"after step {steps_done:,}" if steps_done else "before its first step"
    at_once = ", at once" if request.at_once and steps_done else ""
    checkpoint = "; its checkpoint is saved" if saved else ""
    return _reason("cancel_requested", f"{request.source}{at_once}, {when}{checkpoint}")


def last_attempt_text(attempts: tuple[Attempt, ...]) -> str | None:
    """How the newest attempt ended, in one line; None before the first."""
    if not attempts:
        return None
    last = attempts[-1]
    if last.reason is None or last.reason == "lost":
        return f"attempt {last.number} was lost with its driver"
    error = first_line(last.error)
    return f"attempt {last.number} {ATTEMPT_ENDS[last.reason]}" + (f": {error}" if error else "")


def process_name(process: ProcessIdentity) -> str:
    return f"process {process.pid} on {process.host}"


def first_line(text: str | None) -> str:
    """The first line of an error, which says what happened."""
    return next(iter((text or "").strip().splitlines()), "")


def _reason(code: ReasonCode, detail: str) -> StateReason:
    return StateReason(code=code, detail=detail)
