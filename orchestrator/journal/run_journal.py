"""Reading a run from its folder. It needs no driver, no cluster and no network."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from orchestrator.errors import JournalUnreadable
from orchestrator.journal import driver_heartbeat, event_log, files, liveness, step_log
from orchestrator.journal.driver_heartbeat import DriverHeartbeat
from orchestrator.journal.events import (
    SCHEMA,
    AnyEvent,
    CancelRequest,
    Claimed,
    Submitted,
    decode_event,
    decode_request,
)
from orchestrator.journal.run_paths import RunPaths
from orchestrator.journal.run_state import RunState, apply, initial
from orchestrator.journal.run_status import Observation, StepSummary, build_run
from orchestrator.types import codec
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.run import Prediction, Run, Status, TimedStep, TrackedRun
from orchestrator.types.spec import Spec

T = TypeVar("T")
Clock = Callable[[], float]


@dataclass(frozen=True)
class Journal:
    """The folder of one run. Reading it changes nothing."""

    path: Path

    @property
    def key(self) -> str:
        """The name of the run: that of its folder."""
        return self.path.absolute().name

    @cached_property
    def paths(self) -> RunPaths:
        return RunPaths(self.path)

    # --- the run

    def run(self, clock: Clock = time.time) -> Run:
        """The run as it is now; `JournalUnreadable` when this is not the folder of a run."""
        state = self.state()
        observed = self._observe(state, clock)
        return build_run(self.key, str(self.path.absolute()), state, observed)

    def status(self) -> Status:
        """The run with the forecast of its plan."""
        run = self.run()
        try:
            forecast = prediction_of(self.plan(run.plan_digest))
        except JournalUnreadable:
            forecast = None
        fields = {name: getattr(run, name) for name in run.__dataclass_fields__}
        return Status(**fields, forecast=forecast)

    def steps(self, run: Run) -> list[TimedStep]:
        """Every step of the run in order; the last attempt at a step counts."""
        numbers = [attempt.number for attempt in run.attempts]
        return step_log.merge_attempts(step_log.StepReader(self.path, n).read() for n in numbers)

    # --- what it was made from

    def spec(self) -> Spec:
        return read_value(self.paths.spec, Spec)

    def plan(self, digest: str) -> Plan:
        """The plan with that digest, of those that the run has used."""
        return read_value(self.paths.plan(digest), Plan)

    def proof(self, plan_digest: str) -> Proof | None:
        """The proof of the plan with that digest; None if it was not proved."""
        path = self.paths.proof(plan_digest)
        return read_value(path, Proof) if os.path.lexists(path) else None

    # --- its events and requests

    def state(self) -> RunState:
        """What the events say; `JournalUnreadable` when this is not the folder of a run."""
        log = event_log.read(self.paths.events)
        if 1 not in log.contents:
            why = "; ".join(log.problems) or f"there is no {self._first}"
            raise JournalUnreadable(f"{self.path}: contains no run: {why}")
        events = _decode(log.contents, decode_event, self.paths.events.name)
        state, problems = self._initial(events), list(log.problems)
        for number in sorted(log.contents.keys() - {1}):
            event = events[number]
            if isinstance(event, str):
                problems.append(event)
            else:
                state = apply(state, number, event)
        # An unreadable event has a number too: nobody may write that number again.
        return replace(state, last=log.last, problems=(*problems, *state.problems))

    def cancel_request(self, settled: int) -> CancelRequest | None:
        """The request to stop that counts, of those after the first `settled`."""
        return _strongest(self._requests(settled)[0])

    @property
    def _first(self) -> str:
        return f"{self.paths.events.name}/{event_log.file_name(1)}"

    def _initial(self, events: dict[int, AnyEvent | str]) -> RunState:
        first = events[1]
        if not isinstance(first, Submitted):
            why = first if isinstance(first, str) else f"{self._first}: is not a submission"
            raise JournalUnreadable(f"{self.path}: {why}")
        if first.schema != SCHEMA:
            why = f"its schema is {first.schema}; this version of orch reads {SCHEMA}"
            raise JournalUnreadable(f"{self.path}: {why}")
        return initial(first)

    def _requests(self, settled: int) -> tuple[list[CancelRequest], list[str]]:
        """The requests after the first `settled`, oldest first, and what is wrong with others."""
        log = event_log.read(self.paths.requests)
        decoded = _decode(log.contents, decode_request, self.paths.requests.name)
        later = [decoded[number] for number in sorted(decoded) if number > settled]
        requests = [one for one in later if not isinstance(one, str)]
        return requests, [*log.problems, *(one for one in later if isinstance(one, str))]

    # --- what can be seen apart from them

    def _observe(self, state: RunState, clock: Clock) -> Observation:
        requests, problems = self._requests(state.settled_requests)
        steps: dict[int, StepSummary] = {}
        for attempt in state.attempts:
            steps[attempt.number], more = step_log.summarize_steps(self.path, attempt.number)
            problems += more
        claim = state.claim
        writer = claim.driver if claim else state.submitted.submission.submitter
        tracking, more = self._tracking()
        heartbeat = driver_heartbeat.read(self.paths.driver_heartbeat(state.writer))
        return Observation(
            heartbeat_at_s=heartbeat.at_s if heartbeat else None,
            silent_s=_silent_s(claim, heartbeat),
            writer_is_gone=not state.ended and liveness.is_gone(writer),
            writer_is_alive=not state.ended and liveness.is_alive(writer),
            cancel=_strongest(requests),
            tracking=tracking,
            steps=steps,
            problems=(*problems, *more),
            now_s=clock(),  # after all that was read, or heartbeats would come from the future
        )

    def _tracking(self) -> tuple[TrackedRun | None, list[str]]:
        path = self.paths.tracking
        try:
            return codec.from_json(files.read(path), TrackedRun), []
        except FileNotFoundError:
            return None, []
        except (msgspec.DecodeError, JournalUnreadable) as error:
            return None, [f"{path.name}: {error}"]


def _silent_s(claim: Claimed | None, heartbeat: DriverHeartbeat | None) -> float | None:
    """Seconds since a heartbeat of this machine; None for one of another."""
    if not (claim and heartbeat and heartbeat.uptime_s is not None):
        return None
    return liveness.uptime_s() - heartbeat.uptime_s if liveness.is_known(claim.driver) else None


def read_value(path: Path, kind: type[T]) -> T:
    """The value in a JSON file; `JournalUnreadable` when it cannot be read."""
    try:
        return codec.from_json(files.read(path), kind)
    except FileNotFoundError as error:
        raise JournalUnreadable(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise JournalUnreadable(f"{path}: is not a {kind.__name__}: {error}") from error


def prediction_of(plan: Plan) -> Prediction:
    """What a plan predicts for a step."""
    forecast = plan.forecast
    return Prediction(
        chip_profile=plan.chip_profile,
        step_s=forecast.step_s,
        mfu=forecast.mfu,
        mfu_definition=forecast.mfu_definition,
    )


def _decode(
    contents: dict[int, bytes], decode: Callable[[bytes], T], folder: str
) -> dict[int, T | str]:
    """The record in each file, or what is wrong with it."""
    records: dict[int, T | str] = {}
    for number, text in contents.items():
        try:
            records[number] = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            records[number] = f"{folder}/{event_log.file_name(number)}: {error}"
    return records


def _strongest(requests: list[CancelRequest]) -> CancelRequest | None:
    """The oldest request to stop at once, or else the oldest request."""
    return next((one for one in requests if one.at_once), requests[0] if requests else None)
