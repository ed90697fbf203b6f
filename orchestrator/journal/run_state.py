"""Journal room: what a run's events tell, one after another. Pure: no files, no clock.

A writer is held to the rules. A reader is not refused: where a file in between was damaged, what
comes after it is believed as far as it makes sense, and what is wrong is noted.
"""

from dataclasses import dataclass, replace

from orchestrator.journal.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    Claimed,
    Ended,
    Pending,
    Stopping,
    Submitted,
)
from orchestrator.types.run import Attempt


@dataclass(frozen=True, kw_only=True)
class RunState:
    """What has happened so far. `last` is the number of the newest event, `writer` of the newest
    claim: 0 before the first.
    """

    submitted: Submitted
    last: int
    last_at_s: float
    claim: Claimed | None = None
    writer: int = 0
    attempts: tuple[Attempt, ...] = ()
    resumed_at: int = 1
    pending: Pending | None = None
    stopping: Stopping | None = None
    ended: Ended | None = None
    problems: tuple[str, ...] = ()

    @property
    def open_attempt(self) -> Attempt | None:
        """The attempt that goes on."""
        newest = self.attempts[-1] if self.attempts else None
        return newest if newest and newest.reason is None else None

    @property
    def next_attempt(self) -> int:
        """The number that the next attempt gets."""
        return self.attempts[-1].number + 1 if self.attempts else 1

    @property
    def settled_requests(self) -> int:
        """Requests up to this number no longer count."""
        return self.claim.settled_requests if self.claim else 0


def refusal(story: RunState, event: AnyEvent) -> str | None:
    """Why a writer may not write this event next; None when it may."""
    if isinstance(event, Submitted):
        return "the run was submitted before"
    if isinstance(event, Claimed):
        return None
    if story.ended:
        return f"the run has ended: {story.ended.state}"
    open_attempt = story.open_attempt
    if isinstance(event, AttemptEnded):
        number = open_attempt.number if open_attempt else None
        return None if event.attempt == number else f"attempt {event.attempt} does not go on"
    if isinstance(event, Stopping):
        return None
    if open_attempt:
        return f"attempt {open_attempt.number} goes on"
    if isinstance(event, AttemptStarted):
        return _refused_start(story, event)
    return None


def _refused_start(story: RunState, event: AttemptStarted) -> str | None:
    if not story.claim:
        return "no driver has taken the run"
    expected = story.next_attempt
    return None if event.attempt == expected else f"the next attempt is {expected}"


def told(story: RunState, number: int, event: AnyEvent) -> RunState:
    """The story with one more event. One that does not follow is noted, and believed only where it
    tells by itself what became of what was before.
    """
    why = refusal(story, event)
    if why:
        note = f"event {number} ({event.__struct_config__.tag}) does not follow: {why}"
        story = replace(story, problems=(*story.problems, note))
    if why is None or _tells_by_itself(story, event):
        story = replace(_changed(story, number, event), last_at_s=event.at_s)
    return replace(story, last=number)


def _tells_by_itself(story: RunState, event: AnyEvent) -> bool:
    if isinstance(event, AttemptStarted):
        return event.attempt >= story.next_attempt
    return isinstance(event, Ended)


def begun(submitted: Submitted) -> RunState:
    """The story with its first event."""
    return RunState(submitted=submitted, last=1, last_at_s=submitted.at_s)


def _changed(story: RunState, number: int, event: AnyEvent) -> RunState:
    match event:
        case Claimed():
            return _claimed(story, number, event)
        case Pending():
            return replace(story, pending=event)
        case AttemptStarted():
            return _started(story, event)
        case Stopping():
            return replace(story, stopping=event)
        case AttemptEnded():
            newest = replace(
                story.attempts[-1],
                ended_at_s=event.at_s,
                reason=event.reason,
                error=event.error,
                first_dead_rank=event.first_dead_rank,
            )
            return replace(story, attempts=(*story.attempts[:-1], newest))
        case Ended():
            attempts = _all_closed(story)
            return replace(story, attempts=attempts, ended=event, pending=None, stopping=None)
    return story


def _started(story: RunState, event: AttemptStarted) -> RunState:
    attempt = Attempt(
        number=event.attempt,
        plan_digest=event.plan_digest,
        pods=event.pods,
        slices=event.slices,
        started_at_s=event.at_s,
    )
    attempts = (*_all_closed(story), attempt)
    return replace(story, attempts=attempts, pending=None, stopping=None, ended=None)


def _claimed(story: RunState, number: int, claim: Claimed) -> RunState:
    return replace(
        story,
        claim=claim,
        writer=number,
        attempts=_all_closed(story),
        resumed_at=story.next_attempt if claim.resumes else story.resumed_at,
        pending=None,
        stopping=None,
        ended=None,
    )


def _all_closed(story: RunState) -> tuple[Attempt, ...]:
    """The attempts, none of which goes on: one whose end nobody told is lost."""
    if not story.open_attempt:
        return story.attempts
    return (*story.attempts[:-1], replace(story.attempts[-1], reason="lost"))
