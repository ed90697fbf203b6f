"""Records runs: one process at a time syncs a run, and notes the result beside the journal."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from filelock import FileLock, Timeout

from orchestrator.errors import ForeignRun, JournalUnreadable
from orchestrator.journal import Journal, boundary, check_own
from orchestrator.tracking import destinations, sync_state
from orchestrator.tracking.protocol import (
    NotRecorded,
    RecordedElsewhere,
    RunNotRecorded,
    Tracker,
    destination,
    find_tracker,
)
from orchestrator.types.run import LIVE
from orchestrator.types.run_options import TrackingOptions
from orchestrator.types.tracking import Destination, SyncProgress, SyncResult, SyncState

LOCK_LIMIT_S, POLL_S = 15.0, 0.1
# A process that records once in the background holds a run this long at most, then ends itself.
ONCE_LIMIT_S = 120


def ignore(_: float) -> None:
    """Nobody follows the progress."""


@dataclass
class Recorder:
    """Records runs, each by its own tracker. A destination that failed once is not tried again."""

    environment: Mapping[str, str]
    trackers: dict[str, Tracker] = field(default_factory=dict)
    failures: dict[Destination, NotRecorded] = field(default_factory=dict)

    def record(
        self,
        journal: Journal,
        on_steps: Callable[[int], None] = ignore,
        on_wait: Callable[[float], None] = ignore,
        limit_s: float = LOCK_LIMIT_S,
    ) -> SyncResult:
        """Sync one run and note the result.

        Another process that records it is waited for until the limit; `on_wait` hears how long.
        """
        try:
            self._check_own(journal)
            state = self._state(journal)
        except (ForeignRun, JournalUnreadable, RunNotRecorded) as error:
            return SyncResult(
                run=journal.key, destination=None, run_id=None, recorded=None, problem=str(error)
            )
        recorded, problem = None, None
        try:
            with only_one(journal, limit_s, on_wait):
                recorded = self._sync(journal, state.destination, on_steps)
        except NotRecorded as error:
            if isinstance(error, RecordedElsewhere) and journal.run().state in LIVE:
                # The driver records the run, and notes its own progress.
                return _result(journal, state, state.recorded, by_driver=True)
            problem = str(error)
            if not isinstance(error, RunNotRecorded):
                self.failures[state.destination] = error
        sync_state.note(journal, state, recorded=recorded, problem=problem)
        return _result(journal, state, recorded, problem)

    def forget(self) -> None:
        """Connect anew the next time."""
        self.failures.clear()
        self.trackers.clear()

    def _check_own(self, journal: Journal) -> None:
        """Refuse a run of another user, unless the command that started this names it."""
        trusted = set()
        if destinations.is_passed_on(journal, self.environment):
            trusted = {boundary.status_of(journal.paths.root).st_uid}
        check_own(journal, trusted)

    def _state(self, journal: Journal) -> SyncState:
        """Where the run is to be recorded, and how much is."""
        if state := sync_state.read_sync_state(journal, self.environment):
            return state
        requested = journal.spec().tracking
        options = destinations.own_options(requested, self.environment)
        if options is None:
            is_usual = requested.tracker == TrackingOptions().tracker
            place = requested.uri if is_usual else requested.tracker
            raise RunNotRecorded(
                f"its folder asks to be recorded in {place}, which no command of this user chose"
                " on this machine: set MLFLOW_TRACKING_URI to where it is to be recorded"
            )
        where = destination(options, journal.path.parent, self.environment)
        destinations.remember(journal, where)
        return SyncState(destination=where)

    def _sync(
        self, journal: Journal, where: Destination, on_steps: Callable[[int], None]
    ) -> SyncProgress:
        if where in self.failures:
            raise self.failures[where]
        if where.tracker not in self.trackers:
            self.trackers[where.tracker] = find_tracker(where.tracker)
        run = journal.run()
        self.trackers[where.tracker].sync(journal, run, where, on_steps)
        return sync_state.progress_of(run)


def _result(
    journal: Journal,
    state: SyncState,
    recorded: SyncProgress | None,
    problem: str | None = None,
    *,
    by_driver: bool = False,
) -> SyncResult:
    tracked = journal.run().tracking
    return SyncResult(
        run=journal.key,
        destination=state.destination,
        run_id=tracked.run_id if tracked else None,
        recorded=recorded,
        problem=problem,
        by_driver=by_driver,
    )


@contextmanager
def only_one(
    journal: Journal, limit_s: float = LOCK_LIMIT_S, on_wait: Callable[[float], None] = ignore
) -> Iterator[None]:
    """Be the one process that records a run. The lock ends with the process."""
    lock, began_s = FileLock(journal.paths.sync_lock), time.monotonic()
    while not lock.is_locked:
        try:
            with suppress(Timeout):
                lock.acquire(blocking=False)
                break
        except OSError as error:
            raise JournalUnreadable(error.filename, f"{error.strerror}") from error
        waited_s = time.monotonic() - began_s
        if waited_s > limit_s:
            raise RecordedElsewhere("another process is recording it")
        on_wait(waited_s)
        time.sleep(POLL_S)
    try:
        yield
    finally:
        lock.release()
