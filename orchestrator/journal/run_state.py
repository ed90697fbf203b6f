"""The state of a run, derived from its events one after another. Pure: no files, no clock.

A writer must follow the rules. A reader goes on where a file was damaged: it applies later events
as far as they make sense, and notes what is wrong.
"""

from dataclasses import dataclass, field, replace

from orchestrator.journal.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    Claimed,
    Ended,
    Pending,
    Repaired,
    Stopping,
    Submitted,
)
from orchestrator.journal.file_fault import FileFault
from orchestrator.types.run import Attempt, SavedCheckpoint


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
