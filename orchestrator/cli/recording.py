"""Command line room: the commands about MLflow, which mirrors the journals."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from orchestrator.cli.running import RUNS, STORAGE
from orchestrator.cli.terminal import JSON, is_live, say, say_json
from orchestrator.errors import OrchError
from orchestrator.lifecycle.events import interruptible
from orchestrator.types.run import LIVE, Run

if TYPE_CHECKING:
    from orchestrator.journal import Journal
    from orchestrator.tracking.recorder import Recorder
    from orchestrator.types.tracking import Destination, SyncResult

SHOW_EVERY_S = 2.0
# A try that failed is not made again by every command that looks.
AGAIN_AFTER_S = 30.0
MOST_AT_ONCE = 100


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@STORAGE
@JSON
@interruptible("recording", "what is recorded stays")
def sync(runs: tuple[str, ...], storage: Path, as_json: bool) -> None:
    """Bring MLflow up to the journals of RUNs. Without any it does so for all runs.

    Runs are recorded while they go on, and later commands see to what was missed, so this is needed
    only to be sure, or after a server was gone. It may be done any number of times: what MLflow has
    is not sent again.

    \b
    Exit status:
      0  everything is recorded, or its own driver is at it
      1  a run could not be recorded; the message says why
      2  an unknown run, or an address that cannot be used

    \b
    Example:
      orch sync
      orch sync llama3-70b-4pod-3f9a1c07-1 --json
    """
    from orchestrator import journal
    from orchestrator.render import sync_screen as render
    from orchestrator.tracking.recorder import Recorder

    found = [journal.find_run(storage, run) for run in runs] or journal.list_journals(storage)
    recorder = Recorder(os.environ)
    tried = [brought_up(recorder, one) for one in found]
    if as_json:
        say_json(tried)
    else:
        say(render.sync_screen(tried, str(storage), ui_command(storage)))
    if any(one.problem for one in tried):
        raise SystemExit(1)


def brought_up(recorder: "Recorder", found: "Journal") -> "SyncResult":
    """Record a run. One that has ended may be just recorded by what an earlier command began, which
    soon ends; of one that goes on its own driver sees to it.
    """
    from orchestrator.tracking.recorder import LOCK_LIMIT_S, ONCE_LIMIT_S

    limit_s = LOCK_LIMIT_S if found.run().state in LIVE else ONCE_LIMIT_S
    progress = Progress(found.key)
    try:
        return recorder.record(found, progress.shown, progress.waits, limit_s)
    finally:
        progress.clear()


class Progress:
    """Now and then, how many steps of a run are recorded, or how long another is waited for."""

    def __init__(self, key: str) -> None:
        self.key, self.shown_at_s, self.waited = key, time.monotonic(), False

    def waits(self, waited_s: float) -> None:
        """On a terminal one line that counts, from the time on that a person begins to wonder."""
        said = f"{self.key}: waiting for another process that records it"
        if waited_s >= SHOW_EVERY_S and is_live(sys.stderr):
            click.echo(f"\r\033[K{said} ({waited_s:.0f} s)", err=True, nl=False)
        elif waited_s >= SHOW_EVERY_S and not self.waited:
            click.echo(said, err=True)
        self.waited = waited_s >= SHOW_EVERY_S

    def clear(self) -> None:
        if self.waited and is_live(sys.stderr):
            click.echo("\r\033[K", err=True, nl=False)

    def shown(self, steps: int) -> None:
        if time.monotonic() - self.shown_at_s >= SHOW_EVERY_S:
            click.echo(f"{self.key}: {steps:,} steps recorded", err=True)
            self.shown_at_s = time.monotonic()


def ending(found: "Journal") -> str:
    """Where a run that has just ended is recorded, in a line; what is missing is recorded first."""
    from orchestrator import journal, tracking

    others = [one for one in journal.list_runs(found.path.parent)[0] if one.run != found.key]
    catch_up(found.path.parent, others)
    mark = tracking.read_sync_state(found)
    if mark and mark.problem is None and not tracking.is_behind(found.run(), mark):
        return shown_by(mark.destination.label, found.path.parent)
    return ending_words(recorded(found), found.path.parent)


def recorded(found: "Journal") -> "SyncResult":
    """Record a run that has ended, for as long as nobody minds to wait."""
    from orchestrator.tracking.recorder import Recorder

    ended = f"recording {found.key}", "it has ended, and nothing of it is left running"
    again = shlex.join(["orch", "sync", found.key, *elsewhere(found.path.parent)])
    with interruptible(*ended, again):
        return Recorder(os.environ).record(found)


def ending_words(tried: "SyncResult", storage: Path) -> str:
    if tried.problem:
        return f"not recorded yet: {tried.problem}; orch sync records it"
    return shown_by(tried.destination.label, storage)


def shown_by(place: str, storage: Path) -> str:
    return f"{place}, shown by {ui_command(storage)}"


def ui_command(storage: Path) -> str:
    """The command that shows what is recorded of the runs in a storage directory."""
    return shlex.join(["orch", "ui", *elsewhere(storage)])


def elsewhere(storage: Path) -> tuple[str, ...]:
    """The option that names a storage directory, where it must be named."""
    return () if storage.absolute() == RUNS.absolute() else ("--storage", str(storage))


def catch_up(storage: Path, runs: Sequence[Run]) -> None:
    """In the background, have recorded what runs that have ended left unrecorded."""
    from orchestrator import journal, tracking

    ended = [(journal.Journal(storage / one.run), one) for one in runs if one.state not in LIVE]
    if behind := [found for found, run in ended if is_due(found, run)]:
        tracking.in_background(behind[:MOST_AT_ONCE])


def keep_files(found: "Journal") -> None:
    """In the background, have kept with the recorded run what was just written for it."""
    from orchestrator import tracking

    if tracking.read_sync_state(found):
        tracking.in_background([found])


def is_due(found: "Journal", run: Run) -> bool:
    """Whether MLflow lacks something of a run that was to be recorded; not so soon again."""
    from orchestrator import tracking

    mark = tracking.read_sync_state(found)
    if mark is None or not tracking.is_behind(run, mark):
        return False
    return mark.problem is None or time.time() - tried_at_s(found) > AGAIN_AFTER_S


def tried_at_s(found: "Journal") -> float:
    try:
        return found.paths.sync_state.stat().st_mtime
    except OSError:
        return 0.0


@click.command()
@STORAGE
@click.option("--port", type=click.IntRange(1, 65_535), metavar="N", help="Listen on this port.")
def ui(storage: Path, port: int | None) -> None:
    """Show recorded runs in the MLflow UI. Comparisons are set up in it; Ctrl-C ends it.

    It listens on 127.0.0.1 alone. Where runs are recorded on a server, that server shows them: the
    comparisons are set up there, and their links printed.

    \b
    Example:
      orch ui
      orch ui --storage /mnt/shared/runs --port 5000
    """
    from orchestrator import journal
    from orchestrator.tracking.mlflow.tracking_uri import is_server

    catch_up(storage, journal.list_runs(storage)[0])
    for uri, places in places_by_uri(storage).items():
        if is_server(places[0]):
            say(links(uri, places))
        else:
            show(uri, places, storage, port)


def places_by_uri(storage: Path) -> dict[str, list["Destination"]]:
    """Where the runs of a storage directory are recorded; databases last, since one shows them
    until it is stopped.
    """
    from orchestrator import journal, tracking
    from orchestrator.tracking.mlflow.tracking_uri import TRACKER, is_server

    marks = [tracking.read_sync_state(one) for one in journal.list_journals(storage)]
    found = dict.fromkeys(
        mark.destination
        for mark in marks
        if mark and mark.recorded and mark.destination.tracker == TRACKER
    )
    if not found:
        raise OrchError(f"nothing is recorded of the runs in {storage}\nNext: orch sync")
    by_uri: dict[str, list[Destination]] = {}
    for one in sorted(found, key=lambda place: not is_server(place)):
        by_uri.setdefault(one.uri, []).append(one)
    return by_uri


def show(uri: str, places: list["Destination"], storage: Path, port: int | None) -> None:
    """Serve a database until somebody has seen enough."""
    from orchestrator.tracking.mlflow import server

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    log = storage / "mlflow-ui.log"
    began_s = time.monotonic()
    click.echo("starting the MLflow UI: it takes up to half a minute", err=True)
    with server.serving(uri, port, log, lambda: None) as address:
        click.echo(f"started in {time.monotonic() - began_s:.0f} s", err=True)
        say(links(address, places))
        say("Ctrl-C ends it.\n")
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


def interrupted(_: int, __: FrameType | None) -> None:
    """Ctrl-C and SIGTERM are the same here, also where a shell has them ignored."""
    raise KeyboardInterrupt


def links(address: str, places: list["Destination"]) -> str:
    """Where the comparisons of each experiment open. Without them the UI is as useful as ever."""
    from orchestrator.render import sync_screen as render
    from orchestrator.tracking import NotRecorded
    from orchestrator.tracking.mlflow.store import Store
    from orchestrator.tracking.mlflow.views import links as of_experiment
    from orchestrator.tracking.mlflow.views import set_views, views

    shipped, found = views(), []
    for place in places:
        try:
            store = Store(place)
            set_views(store, shipped)
            of_views = of_experiment(address, store.experiment, shipped)
        except NotRecorded as error:
            click.echo(f"warning: the comparisons are not set up: {error}", err=True)
            of_views = []
        found.append((place.experiment, of_views))
    return render.mlflow_links(address, places[0].label, found)


COMMANDS = (sync, ui)
