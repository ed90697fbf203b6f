"""Record runs in a tracker such as MLflow, and show the records in the MLflow UI."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from orchestrator import tracking
from orchestrator.errors import ForeignRun, JournalUnreadable, JournalUnwritable, OrchError
from orchestrator.journal.listing import find_run, list_journals, list_runs
from orchestrator.journal.ownership import owner_of
from orchestrator.journal.run_journal import Journal
from orchestrator.run import progress as events
from orchestrator.run.progress import RUNS, Notice, Progress, Stage, TaskEnded, Tracked
from orchestrator.run.runs import catch_up, is_own
from orchestrator.storage.addresses import folder, is_copy
from orchestrator.tracking.destinations import NotRecorded
from orchestrator.tracking.mlflow import server
from orchestrator.tracking.mlflow.store import TRACKER, Store, is_server
from orchestrator.tracking.mlflow.views import links, set_views, views, views_with_runs
from orchestrator.tracking.recorder import LOCK_LIMIT_S, ONCE_LIMIT_S, Recorder
from orchestrator.values.run import LIVE, Destination, SyncResult, ViewLink
from orchestrator.values.spec import TrackingOptions

_SILENT_S = 2.0  # a wait that is too short to mention
_UI_TASK = "MLflow UI"


def sync(
    runs: Sequence[str] = (), storage: str | Path = RUNS, *, progress: Progress | None = None
) -> list[SyncResult]:
    """Bring MLflow up to the journals of runs, or of all of this user; a failure is a `problem`."""
    where, recorder = folder(storage), Recorder(os.environ)
    journals = [find_run(where, run) for run in runs] or _own_runs(where)
    return [_sync_run(recorder, journal, progress or events.silent) for journal in journals]


def _own_runs(storage: Path) -> list[Journal]:
    """Return the runs in a storage whose folders belong to this user."""
    journals = list_journals(storage)
    if is_copy(storage):  # files of a bucket have no owners: those that this user submitted
        return [journal for journal in journals if tracking.read_sync_state(journal)]
    return [journal for journal in journals if owner_of(journal) == os.geteuid()]


def _sync_run(recorder: Recorder, journal: Journal, progress: Progress) -> SyncResult:
    key = journal.key

    def waiting(waited_s: float) -> None:
        if waited_s >= _SILENT_S:
            progress(Stage(task=key, stage="waiting for another process that records it"))

    def counted(steps: int) -> None:
        progress(events.UnitsDone(task=key, done=steps, unit="steps recorded"))

    progress(Stage(task=key, stage="asking the tracker what it has"))
    try:
        # A run that goes on is recorded by its own driver; one that has ended perhaps by an
        # earlier command, which soon ends.
        limit_s = LOCK_LIMIT_S if journal.run().state in LIVE else ONCE_LIMIT_S
        return recorder.record(journal, counted, waiting, limit_s)
    except (JournalUnreadable, JournalUnwritable) as error:
        return SyncResult(run=key, destination=None, run_id=None, recorded=None, problem=str(error))
    finally:
        progress(TaskEnded(task=key))


def tracked_at_end(journal: Journal) -> Tracked:
    """Return where a run that has just ended is recorded; what is missing is recorded first."""
    storage = journal.path.parent
    catch_up(storage, [run for run in list_runs(storage)[0] if run.run != journal.key])
    note = tracking.read_sync_state(journal)
    where, problem = (note.destination, note.problem) if note else (None, None)
    if note is None or problem is not None or tracking.is_behind(journal.run(), note):
        ended = f"recording {journal.key}", "it has ended, and nothing of it is left running"
        with events.interruptible(*ended, events.run_command("sync", journal.key, storage)):
            result = Recorder(os.environ).record(journal)
        where, problem = result.destination, result.problem
    if where is None:
        return Tracked(tracker=TrackingOptions().tracker, place="", problem=problem)
    return Tracked(tracker=where.tracker, place=where.label, problem=problem)


def record_files(journal: Journal) -> None:
    if tracking.read_sync_state(journal) and is_own(journal):
        tracking.in_background([journal])


def ui(
    storage: str | Path = RUNS, *, port: int | None = None, progress: Progress | None = None
) -> None:
    """Serve the MLflow UI of recorded runs until Ctrl-C; a notice "ui ready" says where."""
    where, report = folder(storage), progress or events.silent
    catch_up(where, list_runs(where)[0])
    for uri, places in _places_by_uri(where).items():
        if is_server(places[0]):  # it shows them itself
            report(_ready(uri, places, report, served=False))
        else:
            with _readable_copy(uri, places, where) as (shown, copied, log_folder):
                _serve(shown, copied, log_folder / "mlflow-ui.log", port, report)


def _places_by_uri(storage: Path) -> dict[str, list[Destination]]:
    """Return where the runs of a storage are recorded, databases last: each is served by itself."""
    notes = [tracking.read_sync_state(journal) for journal in list_journals(storage)]
    found = dict.fromkeys(
        note.destination
        for note in notes
        if note and note.recorded and note.destination.tracker == TRACKER
    )
    if not found:
        if notes and not _own_runs(storage):
            why = f"the runs in {storage} belong to another user: what MLflow has is not opened"
            raise ForeignRun(why, next_command=events.storage_command("runs", storage))
        why = f"nothing is recorded of the runs in {storage}"
        raise OrchError(why, next_command=events.storage_command("sync", storage))
    by_uri: dict[str, list[Destination]] = {}
    for place in sorted(found, key=lambda place: not is_server(place)):
        by_uri.setdefault(place.uri, []).append(place)
    return by_uri


@contextmanager
def _readable_copy(
    uri: str, places: list[Destination], storage: Path
) -> Iterator[tuple[str, list[Destination], Path]]:
    """Yield a database and a folder for its log that can be written: MLflow opens no other."""
    database = Path(places[0].label)
    writable = all(os.access(path, os.W_OK) for path in (storage, database.parent, database))
    if writable or not database.is_file():
        yield uri, places, storage
        return
    # The storage is read-only: make a copy that ends with the command.
    with tempfile.TemporaryDirectory(prefix="orch-ui-") as temporary:
        copy = shutil.copyfile(database, Path(temporary) / database.name)
        shown = f"sqlite:///{copy}"
        yield shown, [replace(place, uri=shown) for place in places], Path(temporary)


def _serve(
    uri: str, places: list[Destination], log: Path, port: int | None, progress: Progress
) -> None:
    """Serve a database until an interrupt ends it, or an error says that it has ended."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with events.handled_by(interrupt):
        progress(Stage(task=_UI_TASK, stage="starting, which takes up to half a minute"))
        try:
            with server.serving(uri, port, log, lambda: None) as served:
                progress(TaskEnded(task=_UI_TASK))
                progress(_ready(served.address, places, progress, served=True))
                with suppress(KeyboardInterrupt):
                    served.wait()
        finally:
            progress(TaskEnded(task=_UI_TASK))


def _ready(address: str, places: list[Destination], progress: Progress, *, served: bool) -> Notice:
    """Return where the comparisons of each experiment open; the UI is useful without them."""
    shipped = views()
    experiments: list[tuple[str, tuple[ViewLink, ...]]] = []
    for place in places:
        opened: tuple[ViewLink, ...] = ()
        try:
            store = Store(place)
            set_views(store, shipped)
            opened = tuple(links(address, store.experiment, views_with_runs(store, shipped)))
        except NotRecorded as error:
            progress(Notice("problem", message=f"the comparisons are not set up: {error}"))
        experiments.append((place.experiment, opened))
    shown = {"address": address, "place": places[0].label, "experiments": experiments}
    return Notice("ui ready", **shown, served=served)
