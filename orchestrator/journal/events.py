"""Journal room: the changes of a run's state, as they are written down. Plain values."""

import msgspec

from orchestrator.types.run import EndState, ProcessIdentity, Reason, Submission

SCHEMA = 1


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A change of state. What comes after a field's default was added later, or is often empty."""

    at_s: float


class Submitted(Event, frozen=True, kw_only=True, tag="submitted"):
    """The first event of every journal."""

    submission: Submission
    schema: int = SCHEMA


class Claimed(Event, frozen=True, kw_only=True, tag="claimed"):
    """A driver has taken the run, and with it the right to write.

    It gives a sign every `beat_s`. To resume is to take up a run that a person wants to go on, with
    fresh budgets; the requests up to `settled_requests` no longer count.
    """

    driver: ProcessIdentity
    beat_s: float
    resumes: bool = False
    settled_requests: int = 0


class Pending(Event, frozen=True, kw_only=True, tag="pending"):
    """The run waits for something, as `why` says."""

    why: str


class AttemptStarted(Event, frozen=True, kw_only=True, tag="attempt started"):
    """An attempt has its slices, and its processes are being started."""

    attempt: int
    plan_digest: str
    pods: int
    slices: tuple[str, ...] = ()


class Stopping(Event, frozen=True, kw_only=True, tag="stopping"):
    """The attempt was told to stop."""

    why: str


class AttemptEnded(Event, frozen=True, kw_only=True, tag="attempt ended"):
    """No process of the attempt is left."""

    attempt: int
    reason: Reason
    error: str | None = None
    first_dead_rank: int | None = None


class Ended(Event, frozen=True, kw_only=True, tag="ended"):
    """Nothing more will be tried, unless a person resumes the run."""

    state: EndState
    why: str | None = None


AnyEvent = Submitted | Claimed | Pending | AttemptStarted | Stopping | AttemptEnded | Ended


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="cancel"):
    """Somebody wants the run to stop: after a last checkpoint, or at once. `why` says how it was
    asked.
    """

    at_s: float
    by: ProcessIdentity
    at_once: bool = False
    why: str = "somebody asked"


def event_of(text: bytes) -> AnyEvent:
    """The event in a file; `msgspec.DecodeError` says what is wrong with it."""
    event: AnyEvent = msgspec.json.decode(text, type=AnyEvent)
    return event


def request_of(text: bytes) -> CancelRequest:
    """The request in a file; `msgspec.DecodeError` says what is wrong with it."""
    return msgspec.json.decode(text, type=CancelRequest)


def text_of(event: AnyEvent | CancelRequest) -> bytes:
    """What the file of an event holds: one line."""
    return msgspec.json.encode(event) + b"\n"
