"""Command line room: the commands about MLflow, which mirrors the journals."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.running import STORAGE
from orchestrator.cli.terminal import JSON, say, say_json
from orchestrator.stations.run import LIVE, Run

if TYPE_CHECKING:
    from orchestrator.journal import Journal
    from orchestrator.stations.record import Tried

SHOW_EVERY_S = 2.0
# A try that failed is not made again by every command that looks.
AGAIN_AFTER_S = 30.0
MOST_AT_ONCE = 100


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@STORAGE
@JSON
def sync(runs: tuple[str, ...], storage: Path, as_json: bool) -> None:
    """Bring MLflow up to the journals of RUNs; of all runs when none is named.

    Runs are recorded while they go on, and later commands see to what was missed, so this is needed
    only to be sure, or after a server was gone. It may be done any number of times: what MLflow has
    is not sent again.

    \b
    Exit status:
      0  everything is recorded
      1  a run could not be recorded; the message says why
      2  an unknown run, or an address that cannot be used

    \b
    Example:
      orch sync
      orch sync llama3-70b-4pod-3f9a1c07-1 --json
    """
    from orchestrator import journal
    from orchestrator.record.recording import Recorder
    from orchestrator.render import records as render

    found = [journal.find(storage, run) for run in runs] or journal.journals(storage)
    recorder = Recorder(os.environ)
    tried = [recorder.record(one, Progress(one.key).shown) for one in found]
    if as_json:
        say_json(tried)
    else:
        say(render.table(tried, str(storage)))
    if any(one.problem for one in tried):
        raise SystemExit(1)


class Progress:
    """Now and then, how many steps of a run are recorded."""

    def __init__(self, key: str) -> None:
        self.key, self.shown_at_s = key, time.monotonic()

    def shown(self, steps: int) -> None:
        if time.monotonic() - self.shown_at_s >= SHOW_EVERY_S:
            click.echo(f"{self.key}: {steps:,} steps recorded", err=True)
            self.shown_at_s = time.monotonic()


def ending(found: "Journal") -> str:
    """Where a run that has just ended is recorded, in a line; what is missing is recorded first."""
    from orchestrator import record
    from orchestrator.record.recording import Recorder

    mark = record.mark_of(found)
    if mark and mark.problem is None and not record.is_behind(found.run(), mark):
        return mark.destination.words
    tried = Recorder(os.environ).record(found)
    return ending_words(tried)


def ending_words(tried: "Tried") -> str:
    if tried.problem:
        return f"not recorded yet: {tried.problem}; orch sync records it"
    return tried.mlflow_tracking_uri.removeprefix("sqlite:///")


def catch_up(storage: Path, runs: Sequence[Run]) -> None:
    """In the background, have recorded what runs that have ended left unrecorded."""
    from orchestrator import journal, record

    ended = [(journal.Journal(storage / one.run), one) for one in runs if one.state not in LIVE]
    if behind := [found for found, run in ended if is_due(found, run)]:
        record.in_background(behind[:MOST_AT_ONCE])


def is_due(found: "Journal", run: Run) -> bool:
    """Whether MLflow lacks something of a run that was to be recorded; not so soon again."""
    from orchestrator import record

    mark = record.mark_of(found)
    if mark is None or not record.is_behind(run, mark):
        return False
    return mark.problem is None or time.time() - tried_at_s(found) > AGAIN_AFTER_S


def tried_at_s(found: "Journal") -> float:
    try:
        return found.places.record.stat().st_mtime
    except OSError:
        return 0.0


COMMANDS = (sync,)
