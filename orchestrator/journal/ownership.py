"""Who may write a journal: claiming a run as its driver, and writing as its only writer.

Whoever writes an event creates the file of the next number, which only one process can. A driver
that counted as dead but is alive gets `Superseded` at its next event or heartbeat.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import (
    ForeignRun,
    JournalUnreadable,
    JournalUnwritable,
    RunHasEnded,
    RunIsLive,
    Superseded,
    UnknownRun,
)
from orchestrator.journal import boundary, events, files, listing, liveness, steps
from orchestrator.journal.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CancelRequest,
    CheckpointSaved,
    Claimed,
    Ended,
    Pending,
    Stopping,
    encode,
)
from orchestrator.journal.heartbeat import primary_heartbeat
from orchestrator.journal.run_journal import Clock, Journal
from orchestrator.journal.run_paths import FIRST_EVENT, as_meant, as_stored, note_of
from orchestrator.journal.run_state import HEARTBEAT_S, RunState, apply, process_name, violation
from orchestrator.storage import copies
from orchestrator.storage.addresses import is_copy
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.run import (
    LIVE,
    AttemptReason,
    EndState,
    Run,
    SavedCheckpoint,
    StateReason,
    TrackedRun,
)


class Writer:
    """The right to write a journal, until another process claims it. Threads may share it."""

    def __init__(
        self,
        journal: Journal,
        state: RunState,
        *,
        clock: Clock = time.time,
        before: RunState | None = None,
    ) -> None:
        self.journal, self._state, self._clock = journal, state, clock
        self.before = before  # the state that was claimed; None for the submitter
        self.number = state.writer  # of its claim, 0 for the submitter
        self._lock = threading.RLock()

    def run(self) -> Run:
        """The run as it is now."""
        return self.journal.run(self._clock)

    # --- events

    def record_pending(self, reason: StateReason) -> None:
        """Record what the run waits for. The same reason again writes nothing."""
        if not (self._state.pending and self._state.pending.reason == reason):
            self._append(Pending(at_s=self._clock(), reason=reason))

    def start_attempt(self, plan: Plan, slices: tuple[str, ...] = ()) -> int:
        """Start the next attempt; returns its number. Its folder is ready for steps and logs."""
        self.save_plan(plan)
        with self._lock:
            number = self._state.next_attempt
            files.make_folder(self.journal.paths.logs(number))
            files.make_folder(self.journal.paths.heartbeats(number))
            self._append(
                AttemptStarted(
                    at_s=self._clock(),
                    attempt=number,
                    plan_digest=plan.digest,
                    pods=plan.pods,
                    slices=slices,
                    plan_sha256=self._sum_of(plan),
                )
            )
        return number

    def _sum_of(self, plan: Plan) -> str:
        """The sha256 of the plan's file: one that was there before stays as it was written."""
        paths = self.journal.paths
        known = self.journal.sums(self._state).get(paths.name_of(paths.plan(plan.digest)))
        return known or events.digest(_text(plan))

    def record_checkpoint(self, step: int, sha256: str) -> bool:
        """Record that the attempt saved a checkpoint after so many steps. The same again, or none
        that is newer, writes nothing. Returns whether it was recorded.
        """
        self._check_owner()
        open_attempt = self._state.open_attempt
        if open_attempt is None or step <= (open_attempt.saved_steps or 0):
            return False
        attempt = open_attempt.number
        saved = SavedCheckpoint(claim=self.number, attempt=attempt, step=step, sha256=sha256)
        self._append(CheckpointSaved(at_s=self._clock(), checkpoint=saved))
        return True

    def newest_saves(self, most: int) -> tuple[SavedCheckpoint, ...]:
        """The checkpoints that count, so many at most, the newest last."""
        return self._state.saves[-most:]

    def record_stopping(self, reason: StateReason) -> None:
        """Record that the attempt was asked to stop."""
        self._append(Stopping(at_s=self._clock(), reason=reason))

    def end_attempt(
        self, reason: AttemptReason, *, error: str | None = None, first_dead_rank: int | None = None
    ) -> None:
        """Record why the attempt ended, once no process of it is left."""
        number = self._state.next_attempt - 1
        self._append(
            AttemptEnded(
                at_s=self._clock(),
                attempt=number,
                steps=steps.written_steps(self.journal.path, number),
                reason=reason,
                error=error,
                first_dead_rank=first_dead_rank,
            )
        )

    def end_run(self, state: EndState, reason: StateReason | None = None) -> None:
        """Record how the run ended."""
        self._append(Ended(at_s=self._clock(), state=state, reason=reason))

    # --- plans and proofs

    def save_plan(self, plan: Plan) -> None:
        """Store a plan that the run uses."""
        files.write_once(self.journal.paths.plan(plan.digest), _text(plan))

    def save_proof(self, proof: Proof) -> None:
        """Store the proof of a plan."""
        files.write_once(self.journal.paths.proof(proof.plan_digest), _text(proof))

    # --- heartbeats

    def heartbeat(self) -> CancelRequest | None:
        """Send a heartbeat, and return the request to stop that counts.

        A driver that waits calls this repeatedly. It gets `Superseded` when another process has
        claimed the run, and `JournalUnwritable` when the journal was removed.
        """
        with self._lock:
            if events.exists(self.journal.paths.events, self._state.last + 1):
                self._reload()
            self._check_owner()
            settled = self._state.settled_requests
        self._renew()
        return self.journal.cancel_request(settled)

    def _renew(self) -> None:
        path = self.journal.paths.driver_heartbeat(self.number)
        if liveness.renew(path):
            return
        with suppress(JournalUnreadable), self._lock:
            self._reload()  # whoever superseded this claim has removed its heartbeat
        liveness.send(path)

    @contextmanager
    def background_heartbeat(self) -> Iterator[None]:
        """Send heartbeats from a thread during a `with` block."""
        ended = threading.Event()

        def repeat() -> None:
            while not ended.wait(HEARTBEAT_S):
                try:
                    self.heartbeat()
                except Superseded:
                    return  # the driver gets the same error at its next event
                except (JournalUnwritable, JournalUnreadable):
                    continue  # the next heartbeat may succeed

        thread = threading.Thread(target=repeat, name="journal heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    # --- fencing

    def _append(self, event: AnyEvent) -> None:
        with self._lock:
            self._check_owner()
            if broken := violation(self._state, event):
                raise ValueError(f"{self.journal.key}: {broken}")
            number = self._state.last + 1
            content = events.linked(event, self._state.digest)
            try:
                events.append_event(self.journal.paths, number, content)
            except FileExistsError as error:
                self._reload()
                why = f"another process wrote event {number}"
                raise Superseded(f"{self.journal.key}: {why}") from error
            except JournalUnwritable:
                self._reload()  # the event may be there in spite of the error
                raise
            state = apply(self._state, number, event)
            self._state = replace(state, digest=events.digest(content))

    def _reload(self) -> None:
        """Read the events again; `Superseded` when another process has claimed the run."""
        self._state = self.journal.state()
        self._check_owner()

    def _check_owner(self) -> None:
        if self._state.claim and self._state.writer != self.number:
            owner = process_name(self._state.claim.driver)
            raise Superseded(f"{self.journal.key}: {owner} has claimed the run")


def claim_run(journal: Journal, *, resumes: bool = False, clock: Clock = time.time) -> Writer:
    """Become the driver of a run.

    `resumes` means that a person wants it to go on: retry budgets start again, and earlier requests
    to the driver no longer count. `RunIsLive` while another driver is alive, `RunHasEnded` when the
    run has ended and nobody resumes it.
    """
    while True:
        before = journal.state()  # before the run: an event in between takes our number
        check_whole(journal, before)
        _check_claimable(journal.run(clock), resumes=resumes)
        listing.check_silence(journal, journal.key, before)
        requests = events.read(journal.paths.requests).last
        claimed = Claimed(
            at_s=clock(),
            driver=liveness.this_process(),
            heartbeat_s=HEARTBEAT_S,
            resumes=resumes,
            settled_requests=requests if resumes else before.settled_requests,
            adopted=_unrecorded_save(journal, before),
        )
        number, content = before.last + 1, events.linked(claimed, before.digest)
        with suppress(FileExistsError):  # another process wrote first: look again
            events.append_event(journal.paths, number, content)
            break
    _check_not_removed(journal, number)
    with suppress(JournalUnwritable):  # the disk may be full now: the claim stands, and beats again
        liveness.send(journal.paths.driver_heartbeat(number))
    liveness.retire(journal.paths.driver_heartbeat(before.writer))
    for folder in (journal.paths.events, journal.paths.requests):
        files.sweep(folder)
    state = replace(apply(before, number, claimed), digest=events.digest(content))
    return Writer(journal, state, clock=clock, before=before)


def _check_not_removed(journal: Journal, number: int) -> None:
    """A bucket removes a run object by object, the first event first: what is claimed after that is
    no run any more.
    """
    path = journal.paths.root
    if not is_copy(path):
        return
    copies.forget(path / FIRST_EVENT)
    if not events.exists(journal.paths.events, 1):
        copies.delete(journal.paths.events / events.file_name(number))
        raise UnknownRun("run", journal.key, [], path.parent)


def _unrecorded_save(journal: Journal, before: RunState) -> SavedCheckpoint | None:
    """The newest checkpoint that the open attempt reported, where its driver did not record it.

    It counts with the claim that is about to be written. What is reported later does not.
    """
    attempt = before.open_attempt
    if attempt is None:
        return None
    beat = primary_heartbeat(journal.path, attempt.number)
    saved = beat.saved if beat else None
    new = saved and saved.claim == before.writer and saved.step > (attempt.saved_steps or 0)
    return saved if new else None


def check_whole(journal: Journal, state: RunState) -> None:
    """Refuse to go on from events that are missing or changed."""
    if state.damage:
        first, *others = state.damage
        raise journal.damaged(first.file, "; ".join([first.what, *map(str, others)]))


def check_checkpoints(journal: Journal, state: RunState) -> None:
    """Refuse to go on where checkpoints were saved and none of them is left."""
    if state.saves and not any(journal.has_checkpoint(one) for one in state.saves):
        last = f"the last one had {state.saves[-1].step:,} steps"
        why = f"no checkpoint is left of those that were saved, and {last}"
        raise journal.damaged(journal.paths.checkpoints, why)


def _text(value: Plan | Proof) -> bytes:
    return codec.to_pretty_json(value).encode()


def _check_claimable(run: Run, *, resumes: bool) -> None:
    if run.state in LIVE and (run.driver or resumes):
        owner = f"{process_name(run.driver)} drives it" if run.driver else "its driver is starting"
        raise RunIsLive(f"run {run.run} is {run.state}: {owner}")
    if run.state == "succeeded" or (run.ended_at_s is not None and not resumes):
        raise RunHasEnded(f"run {run.run} has ended: {run.state}")


def request_cancel(
    journal: Journal, *, at_once: bool = False, source: str = "cancel was requested"
) -> CancelRequest:
    """Ask the driver to stop the run, after a last checkpoint or at once."""
    by = liveness.this_process()
    request = CancelRequest(at_s=time.time(), by=by, at_once=at_once, source=source)
    while True:
        number = events.read(journal.paths.requests).last + 1
        with suppress(FileExistsError):
            events.append(journal.paths.requests, number, encode(request))
            return request


def track(journal: Journal, tracking: TrackedRun, *, instead: bool = False) -> TrackedRun:
    """Note where a tracker keeps its record of the run; an earlier note stays and comes back.

    `instead` replaces the earlier note, for a record that the tracker no longer has.
    """
    storage = journal.path.parent
    stored = codec.to_json(as_stored(tracking, storage))
    path = note_of(journal.paths.root, tracking)
    if instead:
        files.replace(path, stored)
    files.write_once(path, stored)
    return as_meant(codec.from_json(files.read(path), TrackedRun), storage)


# Whose a run is: nothing is sent, and no credential used, for a run of another user.


def check_made_by_user(journal: Journal) -> None:
    """Refuse a run that another user made: its folder, its spec, its plans and its documents."""
    paths = journal.paths
    first = paths.events / events.file_name(1)
    for path in (paths.root, paths.events, first, paths.spec):
        _check(path, set())
    for folder in (paths.plans, paths.documents):
        for path in _with_entries(folder):
            _check(path, set())


def check_own(journal: Journal, trusted: set[int] | None = None) -> None:
    """Refuse a run that another user made, or wrote to. Root is such a user, and has no right here.

    `trusted` are users whose files count as this user's. Anybody may request that a run stops, so
    requests are left out; so are checkpoints and traces, which are never sent.
    """
    for path in _parts(journal):
        _check(path, trusted or set())


def _parts(journal: Journal) -> Iterator[Path]:
    paths = journal.paths
    yield from (paths.root, paths.spec, paths.tracking, paths.sync_state, paths.sync_lock)
    for folder in (paths.events, paths.plans, paths.proofs, paths.documents):
        yield from _with_entries(folder)
    for attempt in _with_entries(paths.attempts):
        yield attempt
        yield from (attempt / "steps.jsonl", attempt / "logs")


def _with_entries(folder: Path) -> Iterator[Path]:
    yield folder
    with suppress(OSError):
        yield from (folder / name for name in boundary.names_in(folder))


def _check(path: Path, trusted: set[int]) -> None:
    try:
        owner = boundary.status_of(path).st_uid
    except FileNotFoundError:
        return
    except OSError as error:
        raise ForeignRun(f"{path}: {error.strerror}: this run is not trusted") from error
    if owner not in {os.geteuid(), *trusted}:
        why = f"{path} belongs to user {owner}, and this is user {os.geteuid()}"
        raise ForeignRun(f"not a run of this user: {why}")


def check_folder_own(folder: Path) -> None:
    """Refuse a run or a study whose folder another user made: only its owner removes it."""
    _check(folder, set())


def owner_of(journal: Journal) -> int | None:
    """The user that a run's folder belongs to."""
    try:
        return boundary.status_of(journal.paths.root).st_uid
    except OSError:
        return None
