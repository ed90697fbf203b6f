"""Writing a run: creating it, claiming it as its driver, and being its only writer. Whoever writes
an event creates the file of the next number, which only one process can. A driver that counted as
dead but is alive gets `Superseded` at its next event or heartbeat.
"""

import os
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

from msgspec import field

from orchestrator import errors
from orchestrator.journal import boundary, events, files, listing, liveness, run_state, steps
from orchestrator.journal.files import FIRST_EVENT, UNCOMMITTED, RunPaths
from orchestrator.journal.heartbeat import read_heartbeat
from orchestrator.journal.run_journal import Clock, Journal
from orchestrator.storage import copies
from orchestrator.storage.addresses import address, is_copy
from orchestrator.values import codec
from orchestrator.values import run as values
from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan
from orchestrator.values.slowdowns import HostCheck, Slowdown
from orchestrator.values.spec import Spec

_REPAIR = "it is repaired when nothing drives it"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Writer:
    """The right to write a journal, until another process claims it. Threads may share it."""

    def __init__(
        self,
        journal: Journal,
        state: run_state.RunState,
        *,
        clock: Clock = time.time,
        before: run_state.RunState | None = None,
    ) -> None:
        self.journal, self._state, self._clock = journal, state, clock
        self.before = before  # the state that was claimed; None for the submitter
        self.number = state.writer  # of its claim, 0 for the submitter
        self._trace_asked: tuple[int, events.TraceRequest] | None = None
        self._lock = threading.RLock()

    def run(self) -> values.Run:
        return self.journal.run(self._clock)

    def record_pending(self, reason: values.StateReason) -> None:
        """Record what the run waits for. The same reason again writes nothing."""
        if not (self._state.pending and self._state.pending.reason == reason):
            self._append(events.Pending(at_s=self._clock(), reason=reason))

    def start_attempt(self, plan: Plan, slices: tuple[str, ...] = ()) -> int:
        """Start the next attempt; return its number. Its folder is ready for steps and logs."""
        paths, text = self.journal.paths, codec.to_pretty_json(plan).encode()
        files.write_once(paths.plan(plan.digest), text)
        with self._lock:
            number = self._state.next_attempt
            files.make_folder(paths.logs(number))
            files.make_folder(paths.heartbeats(number))
            # A plan's file that was there before stays as it was written.
            known = self.journal.sums(self._state).get(paths.name_of(paths.plan(plan.digest)))
            started = events.AttemptStarted(
                at_s=self._clock(),
                attempt=number,
                plan_digest=plan.digest,
                pods=plan.pods,
                slices=slices,
                plan_sha256=known or events.digest(text),
            )
            self._append(started)
        return number

    def record_checkpoint(self, step: int, sha256: str) -> bool:
        """Record a checkpoint after `step` steps; return False if it is not newer than the last."""
        self._check_owner()
        attempt = self._state.open_attempt
        if attempt is None or step <= (attempt.saved_steps or 0):
            return False
        saved = values.SavedCheckpoint(
            claim=self.number, attempt=attempt.number, step=step, sha256=sha256
        )
        self._append(events.CheckpointSaved(at_s=self._clock(), checkpoint=saved))
        return True

    def newest_saves(self, most: int) -> tuple[values.SavedCheckpoint, ...]:
        return self._state.saves[-most:]

    def record_slowdown(self, slowdown: Slowdown) -> None:
        """Record a slowdown of the running attempt. The same again writes nothing."""
        if self._state.slowdowns.get((slowdown.attempt, slowdown.number)) != slowdown:
            self._append(events.SlowdownSeen(at_s=self._clock(), slowdown=slowdown))

    def record_host_check(self, check: HostCheck) -> None:
        """Record the check of the running attempt's hosts, once."""
        if all(check.attempt != known.attempt for known in self._state.host_checks):
            self._append(events.HostsChecked(at_s=self._clock(), check=check))

    @property
    def trace_request(self) -> tuple[int, events.TraceRequest] | None:
        """The request for a trace that the last heartbeat has seen, and its number."""
        asked, last = self._trace_asked, self._state.trace
        return None if asked and last and asked[0] <= last.request else asked

    def record_trace(self, request: int, steps: range) -> None:
        """Let the ranks of the attempt trace these steps."""
        attempt = self._state.open_attempt
        if attempt is not None:
            asked = events.TraceAsked(
                at_s=self._clock(),
                attempt=attempt.number,
                first_step=steps.start,
                end_step=steps.stop,
                request=request,
            )
            self._append(asked)

    def record_stopping(self, reason: values.StateReason) -> None:
        self._append(events.Stopping(at_s=self._clock(), reason=reason))

    def end_attempt(
        self,
        reason: values.AttemptReason,
        *,
        error: str | None = None,
        first_dead_rank: int | None = None,
    ) -> None:
        """Record why the attempt ended, once no process of it is left."""
        number = self._state.next_attempt - 1
        self._append(
            events.AttemptEnded(
                at_s=self._clock(),
                attempt=number,
                steps=steps.written_steps(self.journal.path, number),
                reason=reason,
                error=error,
                first_dead_rank=first_dead_rank,
            )
        )

    def end_run(self, state: values.EndState, reason: values.StateReason | None = None) -> None:
        self._append(events.Ended(at_s=self._clock(), state=state, reason=reason))

    def heartbeat(self) -> events.CancelRequest | None:
        """Send a heartbeat, and return the request to stop that counts. Raise `Superseded` when
        another process claims the run, `JournalUnwritable` when it is removed.
        """
        with self._lock:
            if events.exists(self.journal.paths.events, self._state.last + 1):
                self._reload()
            self._check_owner()
            settled = self._state.settled_requests
        path = self.journal.paths.driver_heartbeat(self.number)
        if not liveness.renew(path):
            with suppress(errors.JournalUnreadable), self._lock:
                self._reload()  # whoever superseded this claim has removed its heartbeat
            liveness.send(path)
        cancel, self._trace_asked, _ = self.journal.requested(settled)
        return cancel

    @contextmanager
    def background_heartbeat(self) -> Iterator[None]:
        """Send heartbeats from a thread during a `with` block."""
        ended = threading.Event()

        def repeat() -> None:
            while not ended.wait(run_state.HEARTBEAT_S):
                try:
                    self.heartbeat()
                except errors.Superseded:
                    return  # the driver gets the same error at its next event
                except (errors.JournalUnwritable, errors.JournalUnreadable):
                    continue  # the next heartbeat may succeed

        thread = threading.Thread(target=repeat, name="journal heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _append(self, event: events.AnyEvent) -> None:
        with self._lock:
            self._check_owner()
            if broken := run_state.violation(self._state, event):
                raise ValueError(f"{self.journal.key}: {broken}")
            number, before = self._state.last + 1, self._state.digest
            try:
                digest = events.append_event(self.journal.paths, number, event, before)
            except FileExistsError as error:
                self._reload()
                why = f"{self.journal.key}: another process wrote event {number}"
                raise errors.Superseded(why) from error
            except errors.JournalUnwritable:
                self._reload()  # the event may be there in spite of the error
                raise
            self._state = replace(run_state.apply(self._state, number, event), digest=digest)

    def _reload(self) -> None:
        self._state = self.journal.state()
        self._check_owner()

    def _check_owner(self) -> None:
        if self._state.claim and self._state.writer != self.number:
            owner = run_state.process_name(self._state.claim.driver)
            raise errors.Superseded(f"{self.journal.key}: {owner} has claimed the run")


class RunRequest(Value):
    spec: Spec
    plan: Plan
    steps: int
    rehearsal: bool = False
    rehearses: Plan | None = None  # `plan` is a small copy of it
    environment: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, bytes] = field(default_factory=dict)  # stored unchanged, by name
    folder: str = ""  # of the spec
    profile: tuple[int, int] | None = None  # the range of steps to trace
    study: str | None = None  # the key of the study that it is a trial of


def check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise errors.SpecError(f"run key {key!r}: must be 1 to 100 of letters, digits, . _ and -")


def create_run(
    storage: Path, request: RunRequest, key: str | None = None, clock: Clock = time.time
) -> Writer:
    """Create the journal of a run, whole or not at all; `RunExists` when the key is taken."""
    if key is not None:
        check_key(key)
    with files.building(storage) as prepared:
        # Everything that a run starts from.
        paths = RunPaths(prepared)
        driving = (paths.events, paths.requests, paths.driver_heartbeats, paths.driver_logs)
        for folder in (*driving, paths.plans, paths.proofs, paths.documents, paths.attempts):
            files.make_folder(folder)
        plans = [request.plan, *([request.rehearses] if request.rehearses else [])]
        contents = {paths.plan(plan.digest): codec.to_pretty_json(plan).encode() for plan in plans}
        contents[paths.spec] = codec.to_pretty_json(request.spec).encode()
        contents |= {paths.documents / name: text for name, text in request.documents.items()}
        for path, content in contents.items():
            private = path == paths.documents / UNCOMMITTED
            files.write_once(path, content, mode=0o600 if private else 0o666)
        submission = values.Submission(
            id=uuid.uuid4().hex,
            name=request.spec.name,
            rehearsal=request.rehearsal,
            rehearses=request.rehearses.digest if request.rehearses else None,
            spec_digest=request.plan.spec_digest,
            plan_digest=request.plan.digest,
            pods=request.plan.pods,
            steps=request.steps,
            environment=dict(request.environment),
            submitter=liveness.this_process(),
            folder=request.folder,
            profile=request.profile,
            study=request.study,
            sums={
                paths.name_of(path): events.digest(content) for path, content in contents.items()
            },
        )
        submitted = events.Submitted(at_s=clock(), submission=submission)
        digest = events.append_event(paths, 1, submitted, "")
        state = replace(run_state.initial(submitted), digest=digest)
        for number in count(1):
            name = key or f"{request.spec.name}-{codec.short(request.plan.digest)}-{number}"
            try:
                files.publish(prepared, storage / name, FIRST_EVENT)
                break
            except FileExistsError:
                if key:
                    raise errors.RunExists(key, address(storage / name)) from None
    files.sweep(storage)
    return Writer(Journal(storage / name), state, clock=clock)


def claim_run(journal: Journal, *, resumes: bool = False, clock: Clock = time.time) -> Writer:
    """Become the driver of a run. When a person `resumes` it, earlier requests no longer count.
    Raise `RunIsLive` while another driver is alive, `RunHasEnded` when nobody resumes an ended run.
    """
    paths = journal.paths
    while True:
        before = journal.state()  # before the run: an event in between takes our number
        check_whole(journal, before)
        run = journal.run(clock)
        if run.state in values.LIVE and (run.driver or resumes):
            driver = run.driver and f"{run_state.process_name(run.driver)} drives it"
            why = driver or "its driver is starting"
            raise errors.RunIsLive(f"run {run.run} is {run.state}: {why}")
        if run.state == "succeeded" or (run.ended_at_s is not None and not resumes):
            raise errors.RunHasEnded(f"run {run.run} has ended: {run.state}")
        listing.check_silence(journal, before)
        requests, adopted = events.read(paths.requests).last, None
        if before.open_attempt:
            # The newest checkpoint that the open attempt reported and its driver did not record: it
            # counts with the claim. What is reported later does not.
            saves = before.open_attempt.saved_steps or 0
            first_rank = read_heartbeat(paths.heartbeat(before.open_attempt.number, 0))
            saved = first_rank and first_rank.saved
            if saved and saved.claim == before.writer and saved.step > saves:
                adopted = saved
        claimed = events.Claimed(
            at_s=clock(),
            driver=liveness.this_process(),
            heartbeat_s=run_state.HEARTBEAT_S,
            resumes=resumes,
            settled_requests=requests if resumes else before.settled_requests,
            adopted=adopted,
        )
        number = before.last + 1
        with suppress(FileExistsError):  # another process wrote first: look again
            digest = events.append_event(paths, number, claimed, before.digest)
            break
    if is_copy(paths.root):
        # A bucket removes a run object by object, the first event first: after that, a claim is of
        # a run that has been removed.
        copies.forget(paths.root / FIRST_EVENT)
        if not events.exists(paths.events, 1):
            copies.delete(paths.events / events.file_name(number))
            raise errors.UnknownRun("run", journal.key, [], paths.root.parent)
    with suppress(errors.JournalUnwritable):  # a disk may be full: the claim stands, beats again
        liveness.send(paths.driver_heartbeat(number))
    files.delete(paths.driver_heartbeat(before.writer))  # so that its ranks stop
    for folder in (paths.events, paths.requests):
        files.sweep(folder)
    state = replace(run_state.apply(before, number, claimed), digest=digest)
    return Writer(journal, state, clock=clock, before=before)


def check_whole(journal: Journal, state: run_state.RunState) -> None:
    if state.damage:
        first, *others = state.damage
        raise journal.damaged(first.file, "; ".join([first.what, *map(str, others)]))


def check_checkpoints(journal: Journal, state: run_state.RunState) -> None:
    if state.saves and not any(map(journal.has_checkpoint, state.saves)):
        last = f"the last one had {state.saves[-1].step:,} steps"
        why = f"no checkpoint is left of those that were saved, and {last}"
        raise journal.damaged(journal.paths.checkpoints, why)


def request_cancel(
    journal: Journal, *, at_once: bool = False, source: str = "cancel was requested"
) -> events.CancelRequest:
    """Ask the driver to stop the run, after a last checkpoint or at once."""
    by = liveness.this_process()
    request = events.CancelRequest(at_s=time.time(), by=by, at_once=at_once, source=source)
    _request(journal, request)
    return request


def request_trace(journal: Journal, steps: int) -> int:
    """Ask the driver to have the next steps traced; return the number of the request."""
    by = liveness.this_process()
    return _request(journal, events.TraceRequest(at_s=time.time(), by=by, steps=steps))


def _request(journal: Journal, request: events.AnyRequest) -> int:
    while True:
        number = events.read(journal.paths.requests).last + 1
        with suppress(FileExistsError):
            events.append(journal.paths.requests, number, events.encode(request))
            return number


# --- repairing a journal that nothing drives: its events, and files that can be made again


def repair_events(journal: Journal) -> None:
    """Write an event that accepts the faults of the others. What those said stays lost."""
    listing.check_not_live(journal, _REPAIR, time.time)
    state, newest = journal.state(), events.read_newest(journal.paths)
    last, previous = state.last, state.digest
    if isinstance(newest, events.Newest) and newest.number > last:
        last, previous = newest.number, newest.sha256
    by, damage = liveness.this_process(), tuple(map(str, state.damage))
    event = events.Repaired(at_s=time.time(), by=by, faults=damage)
    events.append_event(journal.paths, last + 1, event, previous)


def replace_file(journal: Journal, name: str, content: bytes) -> None:
    """Write a file of a run as it was; the damaged one stays in the same folder, never read."""
    listing.check_not_live(journal, _REPAIR, time.time)
    path = journal.paths.root / name
    files.set_aside(path, f".damaged-{time.time():.0f}")
    files.write_new(path, content)


# --- whose a run is: nothing is sent, and no credential used, for a run of another user


def check_made_by_user(journal: Journal) -> None:
    """Refuse a run that another user made: its folder, its spec, its plans and its documents."""
    paths = journal.paths
    single = (paths.root, paths.events, paths.root / FIRST_EVENT, paths.spec)
    for path in (*single, *_with_entries(paths.plans), *_with_entries(paths.documents)):
        check_folder_own(path)


def check_own(journal: Journal, trusted: set[int] | None = None) -> None:
    """Refuse a run that a user other than this one and the `trusted` made or wrote to, for root
    too. Left out are requests to stop, open to anybody, and checkpoints and traces, never sent.
    """
    paths = journal.paths
    checked = [paths.root, paths.spec, paths.tracking, paths.sync_state, paths.sync_lock]
    for folder in (paths.events, paths.plans, paths.proofs, paths.documents):
        checked += _with_entries(folder)
    for attempt in _with_entries(paths.attempts):
        checked += (attempt, attempt / "steps.jsonl", attempt / "logs")
    for path in checked:
        check_folder_own(path, trusted)


def _with_entries(folder: Path) -> Iterator[Path]:
    yield folder
    with suppress(OSError):
        yield from (folder / name for name in boundary.names_in(folder))


def check_folder_own(path: Path, trusted: set[int] | None = None) -> None:
    try:
        owner = boundary.status_of(path).st_uid
    except FileNotFoundError:
        return
    except OSError as error:
        raise errors.ForeignRun(f"{path}: {error.strerror}: this run is not trusted") from error
    if owner not in {os.geteuid(), *(trusted or ())}:
        why = f"{path} belongs to user {owner}, and this is user {os.geteuid()}"
        raise errors.ForeignRun(f"not a run of this user: {why}")


def owner_of(journal: Journal) -> int | None:
    try:
        return boundary.status_of(journal.paths.root).st_uid
    except OSError:
        return None
