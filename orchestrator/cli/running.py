"""Command line room: the commands about runs. They need the journal alone."""

import shlex
import sys
from pathlib import Path

import click

from orchestrator.cli.terminal import JSON, say, say_json
from orchestrator.errors import RunIsLive, SpecError
from orchestrator.types.run import LIVE, Run

RUNS = Path("runs")


def _keys(_: object, __: object, typed: str) -> list[str]:
    """The runs and studies of the folder at hand that begin so, for the shell to complete."""
    from orchestrator import journal

    known = [
        *(one.key for one in journal.list_studies(RUNS)),
        *(one.run for one in journal.list_runs(RUNS)[0]),
    ]
    return [key for key in known if key.startswith(typed)]


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
    """List all runs, newest first. Those of a study stand below it.

    --json is a list of the runs; `orch status STUDY --json` tells of a study.

    \b
    Example:
      orch runs
      orch runs --storage /mnt/shared/runs --json
    """
    from orchestrator import journal
    from orchestrator.cli import recording
    from orchestrator.render import runs_screen as render

    found, problems = journal.list_runs(storage)
    for problem in problems:
        click.echo(f"warning: {problem}", err=True)
    if as_json:
        say_json(found)
    else:
        studies = [one.status() for one in journal.list_studies(storage)]
        say(render.runs_screen(found, str(storage), studies))
    recording.catch_up(storage, found)


@click.command()
@RUN
@STORAGE
@JSON
def status(run: str, storage: Path, as_json: bool) -> None:
    """Tell how RUN stands. Shown are its state, steps, speed against the forecast, every attempt.

    RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's directory. Of
    a study it tells every run, and the scaling as far as it is measured.

    \b
    Example:
      orch status llama3-70b-4pod-3f9a1c07-1
      orch status tiny-weak-study-d7c7d06e
    """
    from orchestrator import journal
    from orchestrator.cli import recording, studied
    from orchestrator.render import status_screen as render

    known = journal.find_run_or_study(storage, run)
    if isinstance(known, journal.StudyJournal):
        studied.tell(known, storage, as_json=as_json)
        return
    found = known.status()
    recording.catch_up(known.path.parent, [found])
    if as_json:
        say_json(found)
        return
    say(render.status_screen(found, next_of(found, run, storage)))


@click.command()
@RUN
@STORAGE
@click.option("--now", is_flag=True, help="Stop at once, without a last checkpoint.")
@JSON
def cancel(run: str, storage: Path, now: bool, as_json: bool) -> None:
    """Ask RUN to stop after a last checkpoint. Its driver does so; this only asks.

    RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's directory. Of
    a study the run that goes on is asked; no other begins then.

    \b
    Example:
      orch cancel llama3-70b-4pod-3f9a1c07-1
    """
    from orchestrator import journal
    from orchestrator.cli import studied
    from orchestrator.render import status_screen as render

    found = journal.find_run_or_study(storage, run)
    if isinstance(found, journal.StudyJournal):
        studied.cancel(found, storage, at_once=now, as_json=as_json)
        return
    before = found.run()
    if before.ended_at_s is None:
        journal.request_cancel(found, at_once=now)
    after = found.run()
    if as_json:
        say_json(after)
    else:
        text = render.cancel_text(before, after, at_once=now)
        say(f"{text}\nNext: {next_about('status', run, storage)}\n")


@click.command()
@RUN
@STORAGE
@click.option("--yes", is_flag=True, help="Do not ask.")
@JSON
def rm(run: str, storage: Path, yes: bool, as_json: bool) -> None:
    """Remove RUN with all it left. Journal, logs and checkpoints go; it asks first.

    RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's directory.
    A run that is still driven is not removed. A study goes with all its runs.

    \b
    Example:
      orch rm llama3-70b-4pod-3f9a1c07-1
    """
    from orchestrator import journal
    from orchestrator.cli import studied

    found = journal.find_run_or_study(storage, run)
    if isinstance(found, journal.StudyJournal):
        studied.remove(found, storage, yes=yes, as_json=as_json)
        return
    doomed = found.run()
    if doomed.state in LIVE:
        cancelling = next_about("cancel", run, storage)
        raise RunIsLive(f"run {doomed.run} is {doomed.state}\nNext: {cancelling}")
    if not yes:
        what = f"{doomed.run} ({doomed.state}, {doomed.steps_done:,} steps)"
        where = f"its journal, logs and checkpoints in {doomed.journal}"
        ask_to_remove(doomed.run, f"{what}, {where}")
    journal.remove_run(found)
    if as_json:
        say_json({"run": doomed.run, "journal": doomed.journal, "removed": True})
    else:
        say(f"removed {doomed.run}\n")


def ask_to_remove(key: str, what: str) -> None:
    """Go on only when a person says so."""
    if not sys.stdin.isatty():
        raise SpecError(f"removing {key} needs --yes where nobody can be asked")
    click.confirm(f"Remove {what}?", abort=True, err=True)


def next_about(name: str, run: str, storage: Path, *more: str) -> str:
    """The exact command to type next about the same run."""
    stored = () if storage == RUNS else ("--storage", str(storage))
    return shlex.join(["orch", name, run, *stored, *more])


def next_of(run: Run, named: str, storage: Path) -> str:
    """What to type next about a run: follow it, hold it against its plan, or let it go on; of one
    that failed before its first step the logs first, where it has left some.
    """
    from orchestrator.journal.run_logs import list_logs

    if run.state in LIVE:
        return next_about("logs", named, storage, "-f")
    if run.state == "succeeded":
        return next_about("report", named, storage)
    logs = list_logs(Path(run.journal), run, attempt=None)
    unclear = run.state == "failed" and not run.steps_done and any(not log.empty for log in logs)
    return next_about("logs" if unclear else "resume", named, storage)


COMMANDS = (runs, status, cancel, rm)
