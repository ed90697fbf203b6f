"""Journal room: a run as its directory tells it. Needs no driver, no cluster, no network."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from orchestrator.errors import JournalUnreadable
from orchestrator.journal import event_log, liveness, steps
from orchestrator.journal.events import (
    SCHEMA,
    AnyEvent,
    CancelRequest,
    Submitted,
    event_of,
    request_of,
)
from orchestrator.journal.run_paths import RunPaths
from orchestrator.journal.run_state import RunState, begun, told
from orchestrator.journal.run_status import Observation, Trace, folded
from orchestrator.types import codec
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.run import Prediction, Run, Status, TimedStep, TrackedRun
from orchestrator.types.spec import Spec

T = TypeVar("T")
Clock = Callable[[], float]


@dataclass(frozen=True)
class Journal:
    """The directory of one run. Reading it changes nothing."""

    path: Path

    @property
    def key(self) -> str:
        """What the run is called: the name of its directory."""
        return self.path.absolute().name

    @property
    def places(self) -> RunPaths:
        return RunPaths(self.path)

    def story(self) -> RunState:
        """What the events tell; `JournalUnreadable` when this is no run's directory."""
        try:
            shelf = event_log.read(self.places.events)
        except OSError as error:
            raise JournalUnreadable(f"{self.path}: cannot be read: {error.strerror}") from error
        if 1 not in shelf.contents:
            why = "; ".join(shelf.problems) or f"there is no {self._first}"
            raise JournalUnreadable(f"{self.path}: holds no run: {why}")
        events = _decoded(shelf.contents, event_of, self.places.events.name)
        story, problems = self._begun(events), list(shelf.problems)
        for number in sorted(shelf.contents.keys() - {1}):
            event = events[number]
            if isinstance(event, str):
                problems.append(event)
            else:
                story = told(story, number, event)
        return _ending_at(story, shelf.last, problems)

    def run(self, clock: Clock = time.time) -> Run:
        """The run as it stands."""
        story = self.story()
        try:
            sight = self._sight(story, clock)
        except OSError as error:
            raise JournalUnreadable(
                f"{error.filename}: cannot be read: {error.strerror}"
            ) from error
        return folded(self.key, str(self.path.absolute()), story, sight)

    def status(self) -> Status:
        """The run as it stands, beside the forecast of its plan."""
        run = self.run()
        try:
            forecast = foretold(self.plan(run.plan_digest))
        except JournalUnreadable:
            forecast = None
        fields = {name: getattr(run, name) for name in run.__dataclass_fields__}
        return Status(**fields, forecast=forecast)

    def proof(self, plan_digest: str) -> Proof:
        """The proof of the plan of that digest."""
        return station(self.places.proof(plan_digest), Proof)

    def spec(self) -> Spec:
        """What was asked."""
        return station(self.places.spec, Spec)

    def plan(self, digest: str) -> Plan:
        """The plan of that digest, of those that the run has used."""
        return station(self.places.plan(digest), Plan)

    def steps(self, run: Run) -> list[TimedStep]:
        """Every step of the run in its order: of one that was redone, the newest."""
        numbers = [attempt.number for attempt in run.attempts]
        return steps.history(steps.StepReader(self.path, n).read() for n in numbers)

    def cancel_request(self, settled: int) -> CancelRequest | None:
        """The request to stop that counts, of those after the settled ones."""
        return _strongest(self._requests(settled)[0])

    def _requests(self, settled: int) -> tuple[list[CancelRequest], list[str]]:
        """The requests after the settled ones, oldest first, and what is wrong with others."""
        shelf = event_log.read(self.places.requests)
        read = _decoded(shelf.contents, request_of, self.places.requests.name)
        later = [read[number] for number in sorted(read) if number > settled]
        requests = [request for request in later if not isinstance(request, str)]
        return requests, [*shelf.problems, *(fault for fault in later if isinstance(fault, str))]

    @property
    def _first(self) -> str:
        return f"{self.places.events.name}/{event_log.name_of(1)}"

    def _begun(self, events: dict[int, AnyEvent | str]) -> RunState:
        first = events[1]
        if isinstance(first, Submitted) and first.schema <= SCHEMA:
            return begun(first)
        why = first if isinstance(first, str) else f"{self._first}: is no submission"
        if isinstance(first, Submitted):
            why = f"its schema is {first.schema}, and this orch reads up to {SCHEMA}"
        raise JournalUnreadable(f"{self.path}: {why}")

    def _sight(self, story: RunState, clock: Clock) -> Observation:
        requests, problems = self._requests(story.settled_requests)
        traces: dict[int, Trace] = {}
        for attempt in story.attempts:
            traces[attempt.number], faults = steps.trace(self.path, attempt.number)
            problems += faults
        claim = story.claim
        process = claim.driver if claim else story.submitted.submission.submitter
        tracking, tracking_faults = self._tracking()
        return Observation(
            signed_at_s=self._signed_at_s(story.writer),
            writer_is_gone=not story.ended and liveness.is_gone(process),
            writer_is_alive=not story.ended and liveness.is_alive(process),
            cancel=_strongest(requests),
            tracking=tracking,
            traces=traces,
            problems=(*problems, *tracking_faults),
            now_s=clock(),  # after all that was read, or signs would come from the future
        )

    def _signed_at_s(self, writer: int) -> float | None:
        """When the writer last gave a sign. Opening makes a shared file system ask its server."""
        try:
            with self.places.sign(writer).open("rb") as file:
                return os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None

    def _tracking(self) -> tuple[TrackedRun | None, list[str]]:
        path = self.places.tracking
        try:
            return codec.from_json(path.read_bytes(), TrackedRun), []
        except FileNotFoundError:
            return None, []
        except msgspec.DecodeError as error:
            return None, [f"{path.name}: {error}"]


def station(path: Path, kind: type[T]) -> T:
    """The station in a file; `JournalUnreadable` says why it cannot be had."""
    try:
        return codec.from_json(path.read_bytes(), kind)
    except OSError as error:
        raise JournalUnreadable(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise JournalUnreadable(f"{path}: is no {kind.__name__}: {error}") from error


def foretold(plan: Plan) -> Prediction:
    """What a plan says that a step should take, and on whose word."""
    forecast = plan.forecast
    return Prediction(
        chip_profile=plan.chip_profile,
        step_s=forecast.step_s,
        mfu=forecast.mfu,
        mfu_definition=forecast.mfu_definition,
    )


def _decoded(
    contents: dict[int, bytes], decode: Callable[[bytes], T], folder: str
) -> dict[int, T | str]:
    """What each file says, or what is wrong with it."""
    read: dict[int, T | str] = {}
    for number, text in contents.items():
        try:
            read[number] = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            read[number] = f"{folder}/{event_log.name_of(number)}: {error}"
    return read


def _ending_at(story: RunState, last: int, problems: list[str]) -> RunState:
    """A file that cannot be read has its number all the same: nobody may write that one again."""
    return replace(story, last=last, problems=(*problems, *story.problems))


def _strongest(requests: list[CancelRequest]) -> CancelRequest | None:
    """The oldest request to stop at once, or else the oldest."""
    return next((one for one in requests if one.at_once), requests[0] if requests else None)
