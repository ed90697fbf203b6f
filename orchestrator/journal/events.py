"""The events of a run and the requests to its driver, as they are written down. Plain values."""

import msgspec

from orchestrator.types import codec
from orchestrator.types.run import (
    AttemptReason,
    EndState,
    ProcessIdentity,
    SavedCheckpoint,
    StateReason,
    Submission,
    WrittenSteps,
)

SCHEMA = 4


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A change of a run's state. `previous` is the sha256 of the file of the event before."""

    at_s: float
    previous: str = ""


class Submitted(Event, frozen=True, kw_only=True, tag="submitted"):
    """The first event of every journal."""

    submission: Submission
    schema: int = SCHEMA


class Claimed(Event, frozen=True, kw_only=True, tag="claimed"):
    """A driver has taken the run, and with it the right to write.

    It sends a heartbeat every `heartbeat_s`. `resumes` means that a person wants the run to go on:
    its retry budgets start again, and requests up to `settled_requests` no longer count. `adopted`
    is a checkpoint that the attempt before saved, and that its driver did not come to record.
    """

    driver: ProcessIdentity
    heartbeat_s: float
    resumes: bool = False
    settled_requests: int = 0
    adopted: SavedCheckpoint | None = None


class Pending(Event, frozen=True, kw_only=True, tag="pending"):
    """The run waits for something."""

    reason: StateReason


class AttemptStarted(Event, frozen=True, kw_only=True, tag="attempt started"):
    """An attempt has its slices, and its processes are starting."""

    attempt: int
    plan_digest: str
    pods: int
    slices: tuple[str, ...] = ()
    plan_sha256: str = ""  # of its file


class CheckpointSaved(Event, frozen=True, kw_only=True, tag="checkpoint saved"):
    """A checkpoint of the attempt that is running is whole, and counts from now on."""

    checkpoint: SavedCheckpoint


class Stopping(Event, frozen=True, kw_only=True, tag="stopping"):
    """The attempt was asked to stop."""

    reason: StateReason


class AttemptEnded(Event, frozen=True, kw_only=True, tag="attempt ended"):
    """No process of the attempt is left. `steps` is what it wrote of its steps."""

    attempt: int
    reason: AttemptReason
    error: str | None = None
    first_dead_rank: int | None = None
    steps: WrittenSteps | None = None


class Ended(Event, frozen=True, kw_only=True, tag="ended"):
    """The run has ended, unless a person resumes it."""

    state: EndState
    reason: StateReason | None = None


class Repaired(Event, frozen=True, kw_only=True, tag="repaired"):
    """A person goes on without events that are missing or damaged: all faults before this one."""

    by: ProcessIdentity
    faults: tuple[str, ...]


AnyEvent = (
    Submitted
    | Claimed
    | Pending
    | AttemptStarted
    | CheckpointSaved
    | Stopping
    | AttemptEnded
    | Ended
    | Repaired
)


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="cancel"):
    """A request to stop the run, after a last checkpoint or at once. `source` names its origin."""

    at_s: float
    by: ProcessIdentity
    at_once: bool = False
    source: str = "cancel was requested"

    @property
    def reason(self) -> StateReason:
        return StateReason(code="cancel_requested", detail=self.source)


def decode_event(text: bytes) -> AnyEvent:
    """The event in a file; `msgspec.DecodeError` when it holds none."""
    with codec.decoding():
        event: AnyEvent = msgspec.json.decode(text, type=AnyEvent)
        return event


def decode_request(text: bytes) -> CancelRequest:
    """The request in a file; `msgspec.DecodeError` when it holds none."""
    return codec.from_json(text, CancelRequest)


def encode(record: AnyEvent | CancelRequest) -> bytes:
    """The one line of a record's file."""
    return msgspec.json.encode(record) + b"\n"
