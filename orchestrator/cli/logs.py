"""Command line room: `orch logs`, which reads what a run's processes wrote."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.running import RUN, STORAGE
from orchestrator.errors import UnknownName
from orchestrator.types.run import LIVE, Run

if TYPE_CHECKING:
    from orchestrator.journal import Journal
    from orchestrator.journal.run_logs import Log, LogLine, LogReader

POLL_S = 0.5
# Where no rank is asked for: of so many ranks, and so many lines of each.
MOST_RANKS, MOST_LINES = 8, 100


@click.command()
@RUN
@STORAGE
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on until the run has ended.")
@click.option("--rank", type=click.IntRange(0), metavar="N", help="Of this rank alone, all lines.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Of an earlier attempt.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as JSON.")
def logs(
    run: str, storage: Path, follows: bool, rank: int | None, attempt: int | None, as_json: bool
) -> None:
    """Show the logs of RUN's newest attempt. That of the rank that died first is on top.

    Without --rank, the last 100 lines of each of 8 ranks, and of the driver. RUN is a key as
    `orch runs` shows it, the beginning of one, or the path of a run's directory.

    \b
    Example:
      orch logs llama3-70b-4pod-3f9a1c07-1
      orch logs llama3-70b-4pod-3f9a1c07-1 --rank 3 -f
    """
    from orchestrator import journal
    from orchestrator.render import status_screen as render
    from orchestrator.types import codec

    found = journal.find_run(storage, run)
    alone = rank is not None or not follows

    def show(line: "LogLine") -> None:
        click.echo(codec.to_json(line) if as_json else render.log_line(line, alone=alone))

    if follows:
        follow(found, lambda now: chosen(found, now, rank, attempt), show, whole=rank is not None)
        return
    for reader in readers(found, rank, attempt):
        if rank is None and not as_json:
            click.echo(render.log_title(reader.log))
        for line in reader.tail(MOST_LINES) if rank is None else ():
            show(line)
        for line in reader.read(incomplete=True):
            show(line)


def readers(found: "Journal", rank: int | None, attempt: int | None) -> list["LogReader"]:
    """The logs as they are now; what is not shown is said."""
    from orchestrator.journal.run_logs import LogReader, list_logs

    run = found.run()
    logs = chosen(found, run, rank, attempt)
    every = list_logs(found.path, run, attempt=attempt)
    if rank is not None and not logs:
        known = [str(log.rank) for log in every if log.rank is not None]
        raise UnknownName("rank", rank, known or ["none"])
    if all(log.empty for log in every):
        click.echo(f"{run.run} has left no log", err=True)
    if rank is None and len(every) > len(logs):
        click.echo(f"{len(every) - len(logs)} more ranks are shown by --rank N", err=True)
    return [LogReader(log) for log in logs if not log.empty]


def chosen(found: "Journal", run: Run, rank: int | None, attempt: int | None) -> list["Log"]:
    """The logs to show: one rank's, or the first few and the driver's."""
    from orchestrator.journal.run_logs import list_logs

    if attempt is not None and attempt > len(run.attempts):
        raise UnknownName("attempt", attempt, [str(one.number) for one in run.attempts] or ["none"])
    every = list_logs(found.path, run, attempt=attempt)
    if rank is not None:
        return [log for log in every if log.rank == rank]
    ranks = [log for log in every if log.rank is not None]
    return ranks[:MOST_RANKS] + [log for log in every if log.rank is None]


def follow(
    found: "Journal",
    choose: Callable[[Run], list["Log"]],
    show: Callable[["LogLine"], None],
    *,
    whole: bool,
) -> None:
    """Show lines as they are written, through all attempts, until the run has ended."""
    from orchestrator.journal.run_logs import LogReader

    open_readers: dict[Path, LogReader] = {}
    begins = not whole
    while True:
        run = found.run()  # before the lines, or the last ones could be missed
        ended = run.state not in LIVE
        for log in choose(run):
            if log.path not in open_readers:
                open_readers[log.path] = LogReader(log)
                for line in open_readers[log.path].tail(MOST_LINES) if begins else ():
                    show(line)
        for reader in open_readers.values():
            for line in reader.read(incomplete=ended):
                show(line)
        if ended:
            click.echo(f"{run.run}: {run.state}", err=True)
            return
        begins = False
        time.sleep(POLL_S)


COMMANDS = (logs,)
