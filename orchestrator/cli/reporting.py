"""Command line room: the commands that hold runs against their plans. They need journals alone."""

from pathlib import Path

import click

from orchestrator.cli.running import STORAGE, next_command
from orchestrator.cli.terminal import JSON, say, say_json


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@STORAGE
@JSON
def compare(runs: tuple[str, ...], storage: Path, as_json: bool) -> None:
    """Hold each RUN against its forecast, and the runs beside each other.

    RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's directory.

    \b
    Example:
      orch compare llama3-70b-4pod-3f9a1c07-1 llama3-70b-4pod-3f9a1c07-2
    """
    from orchestrator import journal
    from orchestrator.render import compare as render
    from orchestrator.report import report

    reports = [report(journal.find(storage, run)) for run in runs]
    if as_json:
        say_json(reports)
    else:
        say(render.screen(reports, next_command("status", runs[-1], storage)))


COMMANDS = (compare,)
