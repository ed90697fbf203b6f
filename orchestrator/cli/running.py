"""Command line room: the commands about runs. They need the journal alone."""

import shlex
import sys
from pathlib import Path

import click

from orchestrator.cli.terminal import JSON, say, say_json
from orchestrator.errors import RunIsLive, Unservable
from orchestrator.stations.run import LIVE, Run

RUNS = Path("runs")


def _keys(_: object, __: object, typed: str) -> list[str]:
    """The runs of the folder at hand that begin so, for the shell to complete."""
    from orchestrator import journal

    return [one.run for one in journal.runs(RUNS)[0] if one.run.startswith(typed)]


RUN = click.argument("run", shell_complete=_keys)
STORAGE = click.option(
    "--storage",
    type=click.Path(path_type=Path, file_okay=False),
    default=RUNS,
    show_default=True,
    metavar="DIR",
    help="Where the runs are: run.storage of their specs.",
)


@click.command()
@STORAGE
@JSON
def runs(storage: Path, as_json: bool) -> None:
    """List all runs, newest first.

    \b
    Example:
      orch runs
      orch runs --storage /mnt/shared/runs --json
    """
    from orchestrator import journal
    from orchestrator.cli import recording
    from orchestrator.render import runs as render

    found, problems = journal.runs(storage)
    for problem in problems:
        click.echo(f"warning: {problem}", err=True)
    if as_json:
        say_json(found)
    else:
        say(render.table(found, str(storage)))
    recording.catch_up(storage, found)


@click.command()
@RUN
@STORAGE
@JSON
def status(run: str, storage: Path, as_json: bool) -> None:
    """Tell how RUN stands: its state, steps, speed against the forecast, and every attempt.

    RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's directory.

    \b
    Example:
      orch status llama3-70b-4pod-3f9a1c07-1
    """
    from orchestrator import journal
    from orchestrator.cli import recording
    from orchestrator.render import runs as render

    known = journal.find(storage, run)
    found = known.status()
    recording.catch_up(known.path.parent, [found])
    if as_json:
        say_json(found)
        return
    follow = ("-f",) if found.state in LIVE else ()
    say(render.screen(found, next_command("logs", run, storage, *follow)))


@click.command()
@RUN
@STORAGE
@click.option("--now", is_flag=True, help="Stop at once, without a last checkpoint.")
@JSON
def cancel(run: str, storage: Path, now: bool, as_json: bool) -> None:
    """Ask RUN to stop after a last checkpoint. Its driver does so; this only asks.

    RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's directory.

    \b
    Example:
      orch cancel llama3-70b-4pod-3f9a1c07-1
    """
    from orchestrator import journal
    from orchestrator.render import runs as render

    found = journal.find(storage, run)
    before = found.run()
    if before.ended_at_s is None:
        journal.ask_to_cancel(found, at_once=now)
    after = found.run()
    if as_json:
        say_json(after)
    else:
        text = render.cancelled(before, after, at_once=now)
        say(f"{text}\nNext: {next_command('status', run, storage)}\n")


@click.command()
@RUN
@STORAGE
@click.option("--yes", is_flag=True, help="Do not ask.")
@JSON
def rm(run: str, storage: Path, yes: bool, as_json: bool) -> None:
    """Remove RUN with all it left: journal, logs and checkpoints. Asks first.

    RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's directory.
    A run that is still driven is not removed.

    \b
    Example:
      orch rm llama3-70b-4pod-3f9a1c07-1
    """
    from orchestrator import journal

    found = journal.find(storage, run)
    doomed = found.run()
    if doomed.state in LIVE:
        cancelling = next_command("cancel", run, storage)
        raise RunIsLive(f"run {doomed.run} is {doomed.state}\nNext: {cancelling}")
    if not yes:
        ask_to_remove(doomed)
    journal.remove(found)
    if as_json:
        say_json({"run": doomed.run, "journal": doomed.journal, "removed": True})
    else:
        say(f"removed {doomed.run}\n")


def ask_to_remove(doomed: Run) -> None:
    """Go on only when a person says so."""
    if not sys.stdin.isatty():
        raise Unservable(f"removing {doomed.run} needs --yes where nobody can be asked")
    what = f"{doomed.run} ({doomed.state}, {doomed.steps_done:,} steps)"
    where = f"its journal, logs and checkpoints in {doomed.journal}"
    click.confirm(f"Remove {what}, {where}?", abort=True, err=True)


def next_command(name: str, run: str, storage: Path, *more: str) -> str:
    """The exact command to type next about the same run."""
    stored = () if storage == RUNS else ("--storage", str(storage))
    return shlex.join(["orch", name, run, *stored, *more])


COMMANDS = (runs, status, cancel, rm)
