"""Read what a run's processes wrote: the last lines, all of a rank, or lines as they come."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UnknownName
from orchestrator.journal.run_journal import Journal, Log, LogReader, LogTail, list_logs
from orchestrator.run.progress import Progress, RunUpdate
from orchestrator.values.run import LIVE, LogLine, Run

POLL_S = 0.5
# Without a rank: the last lines of the first ranks.
MOST_RANKS, MOST_LINES = 8, 100


@dataclass(frozen=True, kw_only=True)
class LogSelection:
    """The logs of one rank, or without it of the first few ranks and of the driver.

    `attempt` is the newest where it is None.
    """

    rank: int | None = None
    attempt: int | None = None

    def of(self, journal: Journal, run: Run) -> list[Log]:
        attempts = [str(one.number) for one in run.attempts]
        if self.attempt is not None and self.attempt > len(attempts):
            raise UnknownName("attempt", self.attempt, attempts or ["none"])
        every = list_logs(journal.path, run, attempt=self.attempt)
        if self.rank is not None:
            return [log for log in every if log.rank == self.rank]
        ranks = [log for log in every if log.rank is not None]
        return ranks[:MOST_RANKS] + [log for log in every if log.rank is None]


@dataclass(frozen=True, kw_only=True)
class RunLogs:
    """The logs of a run as they are now; `more` ranks have others. `empty` where none was left."""

    run: Run
    tails: list[LogTail]
    more: int
    empty: bool


def read_logs(journal: Journal, selection: LogSelection) -> RunLogs:
    """The selected logs as they are now."""
    run = journal.run()
    logs, rank = selection.of(journal, run), selection.rank
    every = list_logs(journal.path, run, attempt=selection.attempt)
    if rank is not None and not logs:
        known = [str(log.rank) for log in every if log.rank is not None]
        raise UnknownName("rank", rank, known or ["none"])
    return RunLogs(
        run=run,
        tails=[
            LogTail(log=log, lines=_lines(LogReader(log), whole=rank is not None))
            for log in logs
            if not log.empty
        ],
        more=len(every) - len(logs) if rank is None else 0,
        empty=all(log.empty for log in every),
    )


def _lines(reader: LogReader, *, whole: bool) -> list[LogLine]:
    tail = [] if whole else reader.tail(MOST_LINES)
    return [*tail, *reader.read(incomplete=True)]


def follow_logs(journal: Journal, selection: LogSelection, progress: Progress) -> Iterator[LogLine]:
    """Lines as they are written, through all attempts; the end of the run is reported."""
    readers: dict[Path, LogReader] = {}
    only_tail = selection.rank is None
    while True:
        run = journal.run()  # before the lines, or the last ones could be missed
        ended = run.state not in LIVE
        for log in selection.of(journal, run):
            if log.path not in readers:
                readers[log.path] = LogReader(log)
                yield from readers[log.path].tail(MOST_LINES) if only_tail else ()
        for reader in readers.values():
            yield from reader.read(incomplete=ended)
        if ended:
            progress(RunUpdate(run=run, steps=()))
            return
        only_tail = False
        time.sleep(POLL_S)
