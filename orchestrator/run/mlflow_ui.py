"""Show recorded runs in the MLflow UI, with its comparisons set up."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from orchestrator import tracking
from orchestrator.errors import ForeignRun, OrchError
from orchestrator.journal.listing import list_journals, list_runs
from orchestrator.run.follow import catch_up, own_runs
from orchestrator.run.next_commands import storage_command
from orchestrator.run.progress import (
    ExperimentViews,
    NonFatalProblem,
    Progress,
    Stage,
    TaskEnded,
    UiReady,
    interruptible_by_signals,
)
from orchestrator.tracking.destinations import NotRecorded
from orchestrator.tracking.mlflow import server
from orchestrator.tracking.mlflow.store import TRACKER, Store, is_server
from orchestrator.tracking.mlflow.views import links, set_views, views, views_with_runs
from orchestrator.values.run import Destination

TASK = "MLflow UI"


def show_ui(storage: Path, port: int | None, progress: Progress) -> None:
    """Report where servers show the runs, and serve databases until an interrupt ends it."""
    catch_up(storage, list_runs(storage)[0])
    for uri, places in places_by_uri(storage).items():
        if is_server(places[0]):
            progress(ready(uri, places, progress, served=False))
        else:
            with readable_copy(uri, places, storage) as (shown, copied, folder):
                serve(shown, copied, folder / "mlflow-ui.log", port, progress)


def places_by_uri(storage: Path) -> dict[str, list[Destination]]:
    """Where the runs of a storage directory are recorded; databases last, since one is served until
    it is stopped.
    """
    notes = [tracking.read_sync_state(one) for one in list_journals(storage)]
    found = dict.fromkeys(
        note.destination
        for note in notes
        if note and note.recorded and note.destination.tracker == TRACKER
    )
    if not found:
        if list_journals(storage) and not own_runs(storage):
            why = f"the runs in {storage} belong to another user: what MLflow has is not opened"
            raise ForeignRun(why, next_command=storage_command("runs", storage))
        why = f"nothing is recorded of the runs in {storage}"
        raise OrchError(why, next_command=storage_command("sync", storage))
    by_uri: dict[str, list[Destination]] = {}
    for one in sorted(found, key=lambda place: not is_server(place)):
        by_uri.setdefault(one.uri, []).append(one)
    return by_uri


@contextmanager
def readable_copy(
    uri: str, places: list[Destination], storage: Path
) -> Iterator[tuple[str, list[Destination], Path]]:
    """A database and a folder for its log that can be written: MLflow opens no other.

    They are those of the storage or, where that is read-only, a copy that ends with the command.
    """
    database = Path(places[0].label)
    writable = all(os.access(one, os.W_OK) for one in (storage, database.parent, database))
    if writable or not database.is_file():
        yield uri, places, storage
        return
    with tempfile.TemporaryDirectory(prefix="orch-ui-") as folder:
        copy = shutil.copyfile(database, Path(folder) / database.name)
        shown = f"sqlite:///{copy}"
        yield shown, [replace(one, uri=shown) for one in places], Path(folder)


def serve(
    uri: str, places: list[Destination], log: Path, port: int | None, progress: Progress
) -> None:
    """Serve a database until an interrupt ends it, or an error says that it has ended."""
    with interruptible_by_signals():
        progress(Stage(task=TASK, stage="starting, which takes up to half a minute"))
        try:
            with server.serving(uri, port, log, lambda: None) as served:
                progress(TaskEnded(task=TASK))
                progress(ready(served.address, places, progress, served=True))
                with suppress(KeyboardInterrupt):
                    served.wait()
        finally:
            progress(TaskEnded(task=TASK))


def ready(address: str, places: list[Destination], progress: Progress, *, served: bool) -> UiReady:
    """Where the comparisons of each experiment open. Without them the UI is as useful as ever."""
    shipped, found = views(), []
    for place in places:
        try:
            store = Store(place)
            set_views(store, shipped)
            filled = views_with_runs(store, shipped)
            of_experiment = tuple(links(address, store.experiment, filled))
        except NotRecorded as error:
            progress(NonFatalProblem(message=f"the comparisons are not set up: {error}"))
            of_experiment = ()
        found.append(ExperimentViews(experiment=place.experiment, views=of_experiment))
    return UiReady(address=address, place=places[0].label, experiments=tuple(found), served=served)
