"""Records runs: one process at a time syncs a run, and notes the result next to its journal."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import IO, Self

from filelock import FileLock, Timeout

from orchestrator.errors import ForeignRun, JournalUnreadable
from orchestrator.journal import boundary
from orchestrator.journal.ownership import check_own
from orchestrator.journal.run_journal import Journal
from orchestrator.processes import MODULE
from orchestrator.storage.addresses import address
from orchestrator.tracking import destinations
from orchestrator.tracking.destinations import NotRecorded, RunNotRecorded, Tracker
from orchestrator.values.run import LIVE, Destination, SyncResult, SyncState
from orchestrator.values.spec import TrackingOptions

LOCK_LIMIT_S, _POLL_S = 15.0, 0.1
# A process that records once in the background holds a run this long at most, then ends itself.
ONCE_LIMIT_S = 120


class RecordedElsewhere(RunNotRecorded):
    """Another process records this run now."""


@dataclass
class Recorder:
    """Records runs, each by its own tracker. A destination that failed once is not tried again."""

    environment: Mapping[str, str]
    trackers: dict[str, Tracker] = field(default_factory=dict)
    failures: dict[Destination, NotRecorded] = field(default_factory=dict)

    def record(
        self,
        journal: Journal,
        on_steps: Callable[[int], None] = lambda _: None,
        on_wait: Callable[[float], None] = lambda _: None,
        limit_s: float = LOCK_LIMIT_S,
    ) -> SyncResult:
        """Sync one run and note the result; `on_wait` hears how long another process is awaited."""
        try:
            trusted = set()  # the owner of a run that the command that started this names
            if destinations.passed_choice(journal, self.environment):
                trusted = {boundary.status_of(journal.paths.root).st_uid}
            check_own(journal, trusted)
            state = self._state(journal)
        except (ForeignRun, JournalUnreadable, RunNotRecorded) as error:
            return SyncResult(
                run=journal.key, destination=None, run_id=None, recorded=None, problem=str(error)
            )
        recorded, problem, by_driver = None, None, False
        where = state.destination
        try:
            with _only_one(journal, limit_s, on_wait):
                if where in self.failures:
                    raise self.failures[where]
                if where.tracker not in self.trackers:
                    self.trackers[where.tracker] = destinations.find_tracker(where.tracker)
                run = journal.run()
                self.trackers[where.tracker].sync(journal, run, where, on_steps)
                recorded = destinations.progress_of(run)
        except NotRecorded as error:
            if isinstance(error, RecordedElsewhere) and journal.run().state in LIVE:
                recorded, by_driver = state.recorded, True
            else:
                problem = str(error)
            if not isinstance(error, RunNotRecorded):
                self.failures[where] = error
        if not by_driver:  # a driver that records the run notes its own progress
            destinations.note(journal, state, recorded=recorded, problem=problem)
        tracked = journal.run().tracking
        run_id = tracked.run_id if tracked else None
        return SyncResult(
            run=journal.key, destination=where, run_id=run_id, recorded=recorded, problem=problem,
            by_driver=by_driver,
        )  # fmt: skip

    def forget(self) -> None:
        self.failures.clear()
        self.trackers.clear()

    def _state(self, journal: Journal) -> SyncState:
        if state := destinations.read_sync_state(journal, self.environment):
            return state
        # Where this user chose nothing, only the experiment's name counts.
        requested = journal.spec().tracking
        options = TrackingOptions(experiment=requested.experiment)
        is_usual = requested.tracker == options.tracker
        is_named = bool(self.environment.get("MLFLOW_TRACKING_URI"))
        if not is_usual or (requested.uri != options.uri and not is_named):
            place = requested.uri if is_usual else requested.tracker
            raise RunNotRecorded(
                f"its folder asks to be recorded in {place}, which no command of this user chose"
                " on this machine: set MLFLOW_TRACKING_URI to where it is to be recorded"
            )
        where = destinations.destination(options, journal.path.parent, self.environment)
        destinations.remember(journal, where)
        return SyncState(destination=where)


@contextmanager
def _only_one(
    journal: Journal,
    limit_s: float = LOCK_LIMIT_S,
    on_wait: Callable[[float], None] = lambda _: None,
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
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()


# --- recording in a background process, so that neither training nor a command waits

_RESTART_AFTER_S = 5.0
# A driver that ends waits this long for the last sync. Later commands can make up for it.
END_LIMIT_S = 10.0


class BackgroundRecorder:
    """Records a run, if it is to be recorded, while a `with` lasts; restarts a dead process."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._closed = journal, threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, name="record", daemon=True)

    def __enter__(self) -> Self:
        if destinations.read_sync_state(self._journal):
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._closed.set()
        process = self._process
        if process is None:
            return
        assert process.stdin
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_LIMIT_S)
        process.kill()
        self._thread.join()

    def _supervise(self) -> None:
        while not self._closed.is_set():
            follow = ["--follow", address(self._journal.path)]
            self._process = _start(follow, self._journal, piped=True)
            if self._process.wait() == 0:
                return
            self._closed.wait(_RESTART_AFTER_S)


def in_background(journals: list[Journal]) -> None:
    """Sync runs once without waiting for it. The process ends by itself."""
    addresses = [address(journal.path.absolute()) for journal in journals]
    _start(addresses, journals[0], piped=False)


def _start(arguments: list[str], journal: Journal, *, piped: bool) -> subprocess.Popen[bytes]:
    log: AbstractContextManager[IO[bytes] | int] = nullcontext(subprocess.DEVNULL)
    with suppress(OSError):  # it cannot be written
        log = boundary.appending_to(journal.paths.sync_log)
    with log as out:
        return subprocess.Popen(
            [*MODULE, "orchestrator.tracking", *arguments],
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # Ctrl-C ends whoever started it, not this
        )
