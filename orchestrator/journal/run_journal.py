"""Reading a run from its folder. It needs no driver, no cluster and no network."""

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from orchestrator.errors import JournalDamaged, JournalUnreadable, OtherVersion
from orchestrator.formatting import DAY_S
from orchestrator.goodput.outlook import SoFar, outlook
from orchestrator.journal import events as event_chain
from orchestrator.journal import events as event_log
from orchestrator.journal import files, liveness
from orchestrator.journal import steps as step_log
from orchestrator.journal.events import (
    SCHEMA,
    AnyEvent,
    CancelRequest,
    Claimed,
    Fault,
    Submitted,
    decode_event,
    decode_request,
)
from orchestrator.journal.liveness import DriverHeartbeat
from orchestrator.journal.run_paths import TRACKED_HERE, RunPaths, as_meant
from orchestrator.journal.run_state import (
    Observation,
    RunState,
    StepSummary,
    apply,
    build_run,
    first_line,
    initial,
)
from orchestrator.storage import copies
from orchestrator.storage.addresses import address
from orchestrator.values import codec
from orchestrator.values.goodput import Outlook
from orchestrator.values.plan import PLAN_SCHEMA, Plan
from orchestrator.values.proof import PROOF_SCHEMA, Proof
from orchestrator.values.run import Prediction, Run, SavedCheckpoint, Status, TimedStep, TrackedRun
from orchestrator.values.spec import Spec

# Values in JSON files of a run, and whether this version of orch reads them.


T = TypeVar("T")

SCHEMAS: dict[type, int] = {Plan: PLAN_SCHEMA, Proof: PROOF_SCHEMA}


class _Numbered(msgspec.Struct):
    schema: int | None = None


def read_value(path: Path, kind: type[T]) -> T:
    """The value in a JSON file; `JournalUnreadable` when it cannot be read."""
    return decoded(path, content_of(path), kind)


def content_of(path: Path) -> bytes:
    try:
        return files.read(path)
    except FileNotFoundError as error:
        raise JournalUnreadable(path, f"cannot be read: {error.strerror}") from error


def decoded(path: Path, content: bytes, kind: type[T], *, unchanged: bool = False) -> T:
    """The value. `unchanged`: the file is as it was written, so whoever wrote it had other keys."""
    written, read = schema_in(content), SCHEMAS.get(kind)
    other = OtherVersion(path, kind.__name__.lower(), written=written, read=read)
    if None not in (written, read) and written != read:
        raise other
    try:
        return codec.from_json(content, kind)
    except msgspec.DecodeError as error:
        if unchanged:
            raise other from error
        raise JournalUnreadable(path, f"is not a {kind.__name__}: {error}") from error


def schema_in(content: bytes) -> int | None:
    """The number of the schema that a text says it has."""
    try:
        return codec.from_json(content, _Numbered).schema
    except msgspec.DecodeError:
        return None


def check_schema(path: Path, what: str, value: Any, read: int) -> None:
    """Refuse a value of another version."""
    if value.schema != read:
        raise OtherVersion(path, what, written=value.schema, read=read)


# What is left of a run, from its journal. Pure.


UNITS = {"d": DAY_S, "h": 3600.0}


def outlook_of(
    run: Run, plan: Plan, deadline: str | None, median_step_s: float | None = None
) -> Outlook | None:
    """What is left, with the median of all steps, or else of the last ones.

    The forecast of a rehearsal is about chips unless its plan has a profile of this machine.
    """
    recent_s = run.recent.step_s if run.recent else None
    begins = run.last_step is not None and run.last_step.step.startup is not None
    started_s = run.attempts[0].started_at_s if run.attempts else run.read_at_s
    so_far = SoFar(
        now_s=run.read_at_s,
        running_s=max(run.read_at_s - started_s, 0.0),
        steps_done=run.steps_done,
        steps=run.steps,
        median_step_s=median_step_s or recent_s,
        measured_steps=run.steps_done - begins,
        starts=max(len(run.attempts), 1),
        ended=run.ended_at_s is not None or run.state == "lost",
    )
    about_devices = not run.rehearsal or plan.chip_profile is not None
    at_s = None if deadline is None else deadline_at_s(deadline, run.submitted_at_s)
    return outlook(plan, so_far, at_s, forecast=about_devices and plan.ledger_describes_trainer)


def deadline_at_s(deadline: str, submitted_at_s: float) -> float:
    """A date, or a duration since the run was submitted, in seconds since 1970-01-01 UTC."""
    if "-" in deadline:
        return datetime.fromisoformat(deadline).replace(tzinfo=UTC).timestamp()
    return submitted_at_s + float(deadline[:-1]) * UNITS[deadline[-1]]


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
        return build_run(self.key, address(self.path.absolute()), state, observed)

    def status(self) -> Status:
        """The run with the forecast of its plan."""
        run = self.run()
        forecast, left, stage = None, None, None
        problems = (*run.problems, *self.spec_problems())
        try:
            plan = self.plan(run.plan_digest)
            newest = plan.stage_of(max(run.steps_done - 1, 0))
            stage, forecast = newest.stage, prediction_of(newest)
            left = outlook_of(run, plan, self.deadline())
        except JournalUnreadable as error:
            problems = (*problems, first_line(str(error)))
        fields = {name: getattr(run, name) for name in run.__dataclass_fields__}
        fields |= {"problems": problems, "stage": stage}
        return Status(**fields, forecast=forecast, outlook=left)

    def steps(self, run: Run) -> list[TimedStep]:
        """Every step of the run in order; the last attempt at a step counts."""
        from orchestrator.journal import steps  # noqa: PLC0415  few commands need numpy

        numbers = [attempt.number for attempt in run.attempts]
        done = {number: step_log.StepReader(self.path, number).read() for number in numbers}
        return steps.counted_timed_steps(done)

    def damaged(self, place: object, why: str) -> JournalDamaged:
        """The error that a file is missing or not as it was written."""
        command = shlex.join(["orch", "doctor", address(self.path)])
        return JournalDamaged(place, why, next_command=command)

    # --- what it was made from

    def spec(self) -> Spec:
        """The spec; `JournalDamaged` when it is not what was submitted."""
        return self._original(self.paths.spec, Spec)

    def deadline(self) -> str | None:
        """When the run should end by its spec; None where that cannot be read."""
        try:
            return self.spec().run.deadline
        except JournalUnreadable:
            return None

    def spec_problems(self) -> tuple[str, ...]:
        """What is wrong with the spec."""
        try:
            self.spec()
        except JournalUnreadable as error:
            return (first_line(str(error)),)
        return ()

    def plan(self, digest: str) -> Plan:
        """The plan with that digest, of those that the run has used; `JournalDamaged` when it is
        not what was written.
        """
        return self._original(self.paths.plan(digest), Plan)

    def current_plan(self, run: Run) -> Plan:
        """The plan of the newest attempt, or of the stage that its newest step was of."""
        return self.plan(run.plan_digest).stage_of(max(run.steps_done - 1, 0))

    def full_plan(self, run: Run) -> Plan:
        """The same; of a rehearsal the plan that it copies, or that stage of it."""
        current = self.current_plan(run)
        if run.rehearses is None:
            return current
        return self.plan(run.rehearses).each_stage[current.stage.number - 1 if current.stage else 0]

    def has_checkpoint(self, saved: SavedCheckpoint) -> bool:
        """Whether anything is left of a checkpoint."""
        with files.looking(self.paths.checkpoints):
            copied = copies.names_in(self.paths.checkpoints)
        if copied is not None:
            return saved.folder in copied
        return self.paths.checkpoint(saved).is_dir()

    def sums(self, state: RunState) -> dict[str, str]:
        """The sha256 of each file that an event has it of; a file stays as it was first written."""
        plans = {self.paths.name_of(self.paths.plan(d)): s for d, s in state.plan_sums.items()}
        return plans | state.submitted.submission.sums

    def _original(self, path: Path, kind: type[T]) -> T:
        """The value in a file of which an event has the sha256."""
        name = self.paths.name_of(path)
        expected = self._submitted().submission.sums.get(name) or self.sums(self.state()).get(name)
        content = content_of(path)
        if expected and event_chain.digest(content) != expected:
            raise self.damaged(path, "was changed after it was written")
        return decoded(path, content, kind, unchanged=bool(expected))

    def _submitted(self) -> Submitted:
        """The first event."""
        log = event_log.read_one(self.paths.events, 1)
        return self._initial(_decode(log, decode_event, self.paths.events)).submitted

    def proof(self, plan_digest: str) -> Proof | None:
        """The proof of the plan with that digest; None if it was not proved."""
        path = self.paths.proof(plan_digest)
        return self.read_proof(path) if os.path.lexists(path) else None

    def read_proof(self, path: Path) -> Proof:
        """The proof in a file of the run."""
        return read_value(path, Proof)

    # --- its events and requests

    def state(self) -> RunState:
        """What the events say; `JournalUnreadable` when this is not the folder of a run."""
        folder = self.paths.events
        newest = event_chain.read_newest(self.paths)
        log = event_log.read(folder)
        if 1 not in log.contents:
            why = "; ".join(log.problems) or f"there is no {self._first}"
            raise JournalUnreadable(self.path, f"contains no run: {why}")
        events = _decode(log.contents, decode_event, folder)
        state, faults = self._initial(events), list(log.faults)
        for number, event in islice(events.items(), 1, None):
            if isinstance(event, Fault):
                faults.append(event)
            else:
                state = apply(state, number, event)
        faults += event_chain.faults(folder, log, events, newest)
        return replace(
            state,
            last=log.last,  # an unreadable event has a number too: nobody may write it again
            digest=event_chain.end_of(log, newest),
            damage=tuple(fault for fault in faults if fault.number > state.repaired),
            problems=(*log.unexpected, *map(str, faults), *state.problems),
        )

    def cancel_request(self, settled: int) -> CancelRequest | None:
        """The request to stop that counts, of those after the first `settled`."""
        return _strongest(self._requests(settled)[0])

    @property
    def _first(self) -> str:
        return event_log.record_name(self.paths.events, 1)

    def _initial(self, events: dict[int, AnyEvent | Fault]) -> RunState:
        first = events.get(1, event_log.missing(self.paths.events, 1))
        if not isinstance(first, Submitted):
            why = f"{first}" if isinstance(first, Fault) else f"{self._first}: is not a submission"
            raise JournalUnreadable(self.path, why)
        check_schema(self.path, "journal", first, SCHEMA)
        return initial(first)

    def _requests(self, settled: int) -> tuple[list[CancelRequest], list[str]]:
        """The requests after the first `settled`, oldest first, and what is wrong with others."""
        log = event_log.read(self.paths.requests)
        decoded = _decode(log.contents, decode_request, self.paths.requests)
        later = [decoded[number] for number in sorted(decoded) if number > settled]
        requests = [one for one in later if not isinstance(one, Fault)]
        return requests, [*log.problems, *(str(one) for one in later if isinstance(one, Fault))]

    # --- what can be seen apart from them

    def _observe(self, state: RunState, clock: Clock) -> Observation:
        requests, problems = self._requests(state.settled_requests)
        steps: dict[int, StepSummary] = {}
        for attempt in state.attempts:
            steps[attempt.number], more = step_log.summarize_steps(self.path, attempt)
            problems += map(str, more)
        claim = state.claim
        writer = claim.driver if claim else state.submitted.submission.submitter
        tracking, of_tracking = self._tracking()
        heartbeat = liveness.read(self.paths.driver_heartbeat(state.writer))
        return Observation(
            heartbeat_at_s=heartbeat.at_s if heartbeat else None,
            silent_s=_silent_s(claim, heartbeat),
            writer_is_gone=not state.ended and liveness.is_gone(writer),
            writer_is_alive=not state.ended and liveness.is_alive(writer),
            cancel=_strongest(requests),
            tracking=tracking,
            steps=steps,
            problems=(*problems, *of_tracking),
            now_s=clock(),  # after all that was read, or heartbeats would come from the future
        )

    def _tracking(self) -> tuple[TrackedRun | None, list[str]]:
        for path in (self.paths.tracking, self.paths.root / TRACKED_HERE):
            try:
                stored = codec.from_json(files.read(path), TrackedRun)
                return as_meant(stored, self.path.parent), []
            except FileNotFoundError:
                continue
            except (msgspec.DecodeError, JournalUnreadable) as error:
                return None, [f"{path.name}: {error}"]
        return None, []


def _silent_s(claim: Claimed | None, heartbeat: DriverHeartbeat | None) -> float | None:
    """Seconds since a heartbeat of this machine; None for one of another."""
    if not (claim and heartbeat and heartbeat.uptime_s is not None):
        return None
    return liveness.uptime_s() - heartbeat.uptime_s if liveness.is_known(claim.driver) else None


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
    contents: dict[int, bytes], decode: Callable[[bytes], T], folder: Path
) -> dict[int, T | Fault]:
    """The record in each file, or what is wrong with it."""
    records: dict[int, T | Fault] = {}
    for number, text in contents.items():
        try:
            records[number] = decode(text)
        except msgspec.DecodeError as error:
            records[number] = Fault(event_log.record_name(folder, number), str(error), number)
    return records


def _strongest(requests: list[CancelRequest]) -> CancelRequest | None:
    """The oldest request to stop at once, or else the oldest request."""
    return next((one for one in requests if one.at_once), requests[0] if requests else None)
