"""Reading a run from its folder. It needs no driver, no cluster and no network."""

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import structs

from orchestrator.errors import JournalDamaged, JournalUnreadable, OtherVersion
from orchestrator.formatting import DAY_S, HOUR_S
from orchestrator.goodput.losses import SoFar, outlook
from orchestrator.journal import boundary, files, liveness, run_state
from orchestrator.journal import events as event_log
from orchestrator.journal import steps as step_log
from orchestrator.journal.events import CancelRequest, Fault, Submitted, TraceRequest
from orchestrator.journal.files import TRACKED, TRACKED_HERE, RunPaths
from orchestrator.storage import copies
from orchestrator.storage.addresses import address
from orchestrator.values import codec
from orchestrator.values import run as values
from orchestrator.values.goodput import Outlook
from orchestrator.values.plan import PLAN_SCHEMA, Plan
from orchestrator.values.proof import PROOF_SCHEMA, Proof
from orchestrator.values.spec import Spec

T = TypeVar("T")
Clock = Callable[[], float]

# --- values in JSON files of a run, and whether this version of orch reads them

_SCHEMAS: dict[type, int] = {Plan: PLAN_SCHEMA, Proof: PROOF_SCHEMA}


class _Numbered(msgspec.Struct):
    schema: int | None = None


def read_value(path: Path, kind: type[T]) -> T:
    return _value_in(path, _content_of(path), kind)


def _content_of(path: Path) -> bytes:
    try:
        return files.read(path)
    except FileNotFoundError as error:
        raise JournalUnreadable(path, f"cannot be read: {error.strerror}") from error


def _value_in(path: Path, content: bytes, kind: type[T], *, unchanged: bool = False) -> T:
    """Return the value. An `unchanged` file is as it was written: other keys were its writer's."""
    try:
        written = codec.from_json(content, _Numbered).schema
    except msgspec.DecodeError:
        written = None
    read = _SCHEMAS.get(kind)
    other = OtherVersion(path, kind.__name__.lower(), written=written, read=read)
    if None not in (written, read) and written != read:
        raise other
    try:
        return codec.from_json(content, kind)
    except msgspec.DecodeError as error:
        if unchanged:
            raise other from error
        raise JournalUnreadable(path, f"is not a {kind.__name__}: {error}") from error


# --- addresses inside a storage directory, stored relative to it: a moved or copied folder then
# means its own files, and never those of the place where it came from.

_HERE, _HERE_QUOTED = "{storage}", "{storage-uri}"  # a path, and a file URI with its quoting
_SCHEME = r"((?:[a-z][a-z0-9+.-]*:(?:///)?)?)"  # `sqlite:///` before an absolute path, or nothing


def relative_uri(uri: str, storage: Path) -> str:
    """Return the address as it is stored; one outside the storage stays as it is."""
    for path in dict.fromkeys((storage.absolute(), storage.resolve())):
        if uri.startswith(f"{path.as_uri()}/"):
            return _HERE_QUOTED + uri.removeprefix(path.as_uri())
        if match := re.match(rf"{_SCHEME}{re.escape(str(path))}(/.*)", uri, re.DOTALL):
            return f"{match[1]}{_HERE}{match[2]}"
    return uri


def absolute_uri(stored: str, storage: Path) -> str:
    """Return the address that a storage directory means by what is stored."""
    path = storage.absolute()
    if stored.startswith(_HERE_QUOTED):
        return path.as_uri() + stored.removeprefix(_HERE_QUOTED)
    match = re.match(rf"{_SCHEME}{re.escape(_HERE)}(/.*)", stored, re.DOTALL)
    return f"{match[1]}{path}{match[2]}" if match else stored


def noted_tracking(
    folder: Path, names: tuple[str, ...] = (TRACKED, TRACKED_HERE)
) -> values.TrackedRun | None:
    """Return where a tracker keeps its record of a run or study; None while none is noted."""
    settled = boundary.settled(folder)
    for name in names:
        path = settled / name
        try:
            stored = codec.from_json(files.read(path), values.TrackedRun)
        except FileNotFoundError:
            continue
        except msgspec.DecodeError as error:
            raise JournalUnreadable(path, str(error)) from error
        return replace(stored, uri=absolute_uri(stored.uri, folder.parent))
    return None


@dataclass(frozen=True)
class Journal:
    """The folder of one run. Reading it changes nothing."""

    path: Path

    @property
    def key(self) -> str:
        return self.path.absolute().name

    @cached_property
    def paths(self) -> RunPaths:
        return RunPaths(self.path)

    def run(self, clock: Clock = time.time) -> values.Run:
        """Return the run as it is now; `JournalUnreadable` if this is not the folder of a run."""
        state = self.state()
        cancel, _, problems = self.requested(state.settled_requests)
        steps: dict[int, run_state.StepSummary] = {}
        for attempt in state.attempts:
            steps[attempt.number], faults = step_log.summarize_steps(self.path, attempt)
            problems += map(str, faults)
        tracking, silent_s = None, None
        try:
            tracking = noted_tracking(self.path)
        except JournalUnreadable as error:
            problems.append(f"{Path(str(error.args[0])).name}: {error.why}")
        claim = state.claim
        writer = claim.driver if claim else state.submitted.submission.submitter
        heartbeat = self.paths.driver_heartbeat(state.writer)
        heartbeat_at_s, beat_s, last_words = liveness.read(heartbeat) or (None, None, "")
        if claim and beat_s is not None and liveness.is_known(writer):
            silent_s = liveness.uptime_s() - beat_s
        observed = run_state.Observation(
            heartbeat_at_s=heartbeat_at_s,
            silent_s=silent_s,
            writer_is_gone=not state.ended and liveness.is_gone(writer),
            last_words=last_words,
            writer_is_alive=not state.ended and liveness.is_alive(writer),
            cancel=cancel,
            tracking=tracking,
            steps=steps,
            problems=tuple(problems),
            now_s=clock(),  # after all that was read, or heartbeats would come from the future
        )
        return run_state.build_run(self.key, address(self.path.absolute()), state, observed)

    def status(self) -> values.Status:
        run = self.run()
        forecast, left, stage, batch = None, None, None, None
        problems = (*run.problems, *self.spec_problems())
        try:
            plan = self.plan(run.plan_digest)
            newest = plan.stage_of(max(run.steps_done - 1, 0))
            stage, batch, forecast = newest.stage, newest.batch, prediction_of(newest)
            left = outlook_of(run, plan, self.deadline())
        except JournalUnreadable as error:
            problems = (*problems, run_state.first_line(str(error)))
        fields = structs.asdict(run) | {"problems": problems, "stage": stage, "batch": batch}
        return values.Status(**fields, forecast=forecast, outlook=left)

    def steps(self, run: values.Run) -> list[values.TimedStep]:
        """Return every step of the run in order; the last attempt at a step counts."""
        counted: dict[int, values.TimedStep] = {}
        for number in sorted(attempt.number for attempt in run.attempts):
            steps = step_log.StepReader(self.path, number).read()
            done = {timed.step.index: timed for timed in steps}
            if done:  # an attempt undoes the steps after those that it restored
                first = min(done)
                counted = {index: timed for index, timed in counted.items() if index < first} | done
        return [counted[index] for index in sorted(counted)]

    def damaged(self, place: object, why: str) -> JournalDamaged:
        command = shlex.join(["orch", "doctor", address(self.path)])
        return JournalDamaged(place, why, next_command=command)

    def spec(self) -> Spec:
        return self._original(self.paths.spec, Spec)

    def deadline(self) -> str | None:
        try:
            return self.spec().run.deadline
        except JournalUnreadable:
            return None

    def spec_problems(self) -> tuple[str, ...]:
        try:
            self.spec()
        except JournalUnreadable as error:
            return (run_state.first_line(str(error)),)
        return ()

    def plan(self, digest: str) -> Plan:
        """Return a plan that the run has used; `JournalDamaged` when it is not what was written."""
        return self._original(self.paths.plan(digest), Plan)

    def current_plan(self, run: values.Run) -> Plan:
        return self.plan(run.plan_digest).stage_of(max(run.steps_done - 1, 0))

    def full_plan(self, run: values.Run) -> Plan:
        """Return the current plan; for a rehearsal the plan, or its stage, that it is a copy of."""
        current = self.current_plan(run)
        if run.rehearses is None:
            return current
        return self.plan(run.rehearses).each_stage[current.stage.number - 1 if current.stage else 0]

    def proof(self, plan_digest: str) -> Proof | None:
        path = self.paths.proof(plan_digest)
        return read_value(path, Proof) if os.path.lexists(path) else None

    def has_checkpoint(self, saved: values.SavedCheckpoint) -> bool:
        """Return whether anything is left of a checkpoint."""
        with files.looking(self.paths.checkpoints):
            copied = copies.names_in(self.paths.checkpoints)
        if copied is not None:
            return saved.folder in copied
        return self.paths.checkpoint(saved).is_dir()

    def sums(self, state: run_state.RunState) -> dict[str, str]:
        """Return the sha256 of each file that the events have: it stays as it was first written."""
        plans = {self.paths.name_of(self.paths.plan(d)): s for d, s in state.plan_sums.items()}
        return plans | state.submitted.submission.sums

    def submission(self) -> values.Submission:
        folder = self.paths.events
        first = event_log.decoded(folder, event_log.read_one(folder, 1), event_log.decode_event)
        return self._submitted(first).submission

    def _original(self, path: Path, kind: type[T]) -> T:
        """Return the value in a file of which an event has the sha256."""
        name = self.paths.name_of(path)
        expected = self.submission().sums.get(name)
        expected = expected or self.sums(self.state()).get(name)
        content = _content_of(path)
        if expected and event_log.digest(content) != expected:
            raise self.damaged(path, "was changed after it was written")
        return _value_in(path, content, kind, unchanged=bool(expected))

    def state(self) -> run_state.RunState:
        """Return what the events say; `JournalUnreadable` if this is not the folder of a run."""
        folder = self.paths.events
        newest = event_log.read_newest(self.paths)
        log = event_log.read(folder)
        if 1 not in log.contents:
            why = "; ".join(log.problems) or f"there is no {event_log.fault(folder, 1, '').file}"
            raise JournalUnreadable(self.path, f"contains no run: {why}")
        events = event_log.decoded(folder, log.contents, event_log.decode_event)
        state, faults = run_state.initial(self._submitted(events)), list(log.faults)
        for number, event in islice(events.items(), 1, None):
            if isinstance(event, Fault):
                faults.append(event)
            else:
                state = run_state.apply(state, number, event)
        faults += event_log.faults(folder, log, events, newest)
        last = log.contents.get(log.last)
        digest = event_log.digest(last) if last is not None else ""
        if isinstance(newest, event_log.Newest) and newest.number == log.last:
            digest = newest.sha256
        return replace(
            state,
            last=log.last,  # an unreadable event has a number too: nobody may write it again
            digest=digest,
            damage=tuple(fault for fault in faults if fault.number > state.repaired),
            problems=(*log.unexpected, *map(str, faults), *state.problems),
        )

    def _submitted(self, events: Mapping[int, event_log.AnyEvent | Fault]) -> Submitted:
        first = events.get(1, event_log.fault(self.paths.events, 1, "is missing"))
        if not isinstance(first, Submitted | Fault):
            first = event_log.fault(self.paths.events, 1, "is not a submission")
        if isinstance(first, Fault):
            raise JournalUnreadable(self.path, str(first))
        if first.schema != event_log.SCHEMA:
            raise OtherVersion(self.path, "journal", written=first.schema, read=event_log.SCHEMA)
        return first

    def requested(
        self, settled: int
    ) -> tuple[CancelRequest | None, tuple[int, TraceRequest] | None, list[str]]:
        """Return the first request to stop at once, else the first; the newest for a trace, with
        its number; and what others have wrong. Those that are settled count no more.
        """
        folder = self.paths.requests
        log = event_log.read(folder)
        records = event_log.decoded(folder, log.contents, event_log.decode_request)
        later = [record for number, record in records.items() if number > settled]
        problems = [*log.problems, *(str(record) for record in later if isinstance(record, Fault))]
        requests = [record for record in later if isinstance(record, CancelRequest)]
        at_once = (request for request in requests if request.at_once)
        traces = [(n, each) for n, each in records.items() if isinstance(each, TraceRequest)]
        trace = traces[-1] if traces and traces[-1][0] > settled else None
        return next(at_once, requests[0] if requests else None), trace, problems


# --- what its plan predicts, and what is left of it


def prediction_of(plan: Plan) -> values.Prediction:
    forecast = plan.forecast
    return values.Prediction(
        chip_profile=plan.chip_profile,
        step_s=forecast.step_s,
        mfu=forecast.mfu,
        mfu_definition=forecast.mfu_definition,
    )


def outlook_of(
    run: values.Run, plan: Plan, deadline: str | None, median_step_s: float | None = None
) -> Outlook | None:
    """Return what is left, with the median of all steps, or else of the last ones."""
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
    # The forecast of a rehearsal is about chips unless its plan has a profile of this machine.
    about_devices = not run.rehearsal or plan.chip_profile is not None
    at_s = None
    if deadline and "-" in deadline:  # a date
        at_s = datetime.fromisoformat(deadline).replace(tzinfo=UTC).timestamp()
    elif deadline:  # a duration since the submission
        unit_s = {"d": DAY_S, "h": HOUR_S}[deadline[-1]]
        at_s = run.submitted_at_s + float(deadline[:-1]) * unit_s
    return outlook(plan, so_far, at_s, forecast=about_devices and plan.ledger_describes_trainer)


# --- its logs, by attempt and rank: they remain when the cluster is gone

_RANK_LOG = re.compile(r"rank-(\d+)\.log")
_DRIVER_LOG = re.compile(r"driver-(\d{6,})\.log")


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """The log of a rank of an attempt or, without them, of a driver."""

    path: Path
    attempt: int | None = None
    rank: int | None = None
    first_dead: bool = False

    @property
    def empty(self) -> bool:
        with files.reading(self.path):
            return boundary.status_of(self.path).st_size == 0


class LogTail(msgspec.Struct, frozen=True, kw_only=True):
    log: Log
    lines: list[values.LogLine]


def list_logs(path: Path, run: values.Run, *, attempt: int | None) -> list[Log]:
    """Return the logs of an attempt: of the rank that died first, of the others, of the driver."""
    paths = RunPaths(path)
    number = attempt or len(run.attempts)
    first_dead = {each.number: each.first_dead_rank for each in run.attempts}.get(number)
    ranks = [
        Log(path=file, attempt=number, rank=rank, first_dead=rank == first_dead)
        for rank, file in _numbered_files(paths.logs(number), _RANK_LOG)
    ]
    drivers = [Log(path=file) for _, file in _numbered_files(paths.driver_logs, _DRIVER_LOG)]
    return sorted(ranks, key=lambda log: not log.first_dead) + drivers[-1:]


def _numbered_files(folder: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    matches = filter(None, map(name.fullmatch, files.names(folder)))
    return sorted((int(match[1]), folder / match[0]) for match in matches)


class LogReader:
    def __init__(self, log: Log) -> None:
        self.log, self._offset = log, 0

    def tail(self, max_lines: int) -> list[values.LogLine]:
        lines, self._offset = files.last_lines(self.log.path, max_lines)
        return [self._line(text) for text in lines[-max_lines:]]

    def read(self, *, incomplete: bool = False) -> Iterator[values.LogLine]:
        """Yield the whole lines since the last call and, on request, an incomplete last one."""
        for text in files.lines_from(self.log.path, self._offset):
            whole = text.endswith(b"\n") or len(text) == files.MAX_LINE_BYTES
            if not (whole or incomplete):
                return
            self._offset += len(text)
            yield self._line(text.rstrip(b"\n"))

    def _line(self, text: bytes) -> values.LogLine:
        line = text.decode(errors="replace")
        return values.LogLine(attempt=self.log.attempt, rank=self.log.rank, line=line)
