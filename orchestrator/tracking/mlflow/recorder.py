"""Record room: one try to bring runs up to their journals, by whoever holds the run's lock."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import JournalUnreadable
from orchestrator.journal import Journal
from orchestrator.tracking.mlflow import sync_state
from orchestrator.tracking.mlflow.export import RunExport, Shown, unseen
from orchestrator.tracking.mlflow.store import NotRecorded, RecordedElsewhere, RefusedAlone, Store
from orchestrator.tracking.mlflow.tracking_uri import destination
from orchestrator.types.run import LIVE
from orchestrator.types.tracking import Destination, SyncResult, SyncState

LOCK_LIMIT_S, POLL_S = 15.0, 0.1
# So long whoever records in the background, once, may hold a run: then it ends itself.
ONCE_LIMIT_S = 120
Waits = Callable[[float], None]  # told again and again for how many seconds another was waited for


@dataclass
class Recorder:
    """Records runs, each in its own MLflow; an MLflow that failed once is not asked again."""

    environment: Mapping[str, str]
    stores: dict[Destination, Store | NotRecorded] = field(default_factory=dict)
    projections: dict[Path, RunExport] = field(default_factory=dict)

    def record(
        self,
        journal: Journal,
        shown: Shown = unseen,
        waits: Waits = unseen,
        limit_s: float = LOCK_LIMIT_S,
    ) -> SyncResult:
        """Bring MLflow up to one journal, and note what came of it. Another process that is at it
        is waited for until the limit.
        """
        mark = sync_state.mark_of(journal) or SyncState(destination=self._meant(journal))
        recorded, problem, by_driver = None, None, False
        try:
            with only_one(journal, limit_s, waits):
                recorded = self._projection(journal, mark.destination, shown).catch_up()
        except NotRecorded as error:
            problem = str(error)
            by_driver = isinstance(error, RecordedElsewhere) and journal.run().state in LIVE
            if not isinstance(error, RefusedAlone):
                self.stores[mark.destination] = error
        if by_driver:  # which notes it too
            recorded, problem = mark.recorded, None
        else:
            sync_state.note(journal, mark, recorded=recorded, problem=problem)
        return SyncResult(
            run=journal.key,
            mlflow_tracking_uri=mark.destination.uri,
            mlflow_experiment=mark.destination.experiment,
            mlflow_run_id=journal.run().mlflow_run_id,
            recorded=recorded,
            problem=problem,
            by_driver=by_driver,
        )

    def forget(self) -> None:
        """Ask again where an MLflow failed."""
        self.stores.clear()
        self.projections.clear()

    def _meant(self, journal: Journal) -> Destination:
        return destination(journal.spec().tracking, journal.path.parent, self.environment)

    def _projection(self, journal: Journal, where: Destination, shown: Shown) -> RunExport:
        """The run in its MLflow; who records it again and again reads each step once."""
        if journal.path not in self.projections:
            self.projections[journal.path] = RunExport(journal, self._store(where), shown)
        return self.projections[journal.path]

    def _store(self, where: Destination) -> Store:
        if where not in self.stores:
            self.stores[where] = Store(where)
        store = self.stores[where]
        if isinstance(store, NotRecorded):
            raise store
        return store


@contextmanager
def only_one(
    journal: Journal, limit_s: float = LOCK_LIMIT_S, waits: Waits = unseen
) -> Iterator[None]:
    """Be the one process that records a run: the lock goes with the process, however that ends."""
    try:
        lock = os.open(journal.paths.record_lock, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise JournalUnreadable(f"{error.filename}: {error.strerror}") from error
    began_s = time.monotonic()
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            waited_s = time.monotonic() - began_s
            if waited_s > limit_s:
                raise RecordedElsewhere("another process is recording it")
            waits(waited_s)
            time.sleep(POLL_S)
        yield
    finally:
        os.close(lock)
