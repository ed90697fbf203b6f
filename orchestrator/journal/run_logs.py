"""The logs of a run, by attempt and rank. They remain when the cluster is gone."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.journal import boundary, files
from orchestrator.journal.run_paths import RunPaths
from orchestrator.values.run import LogLine, Run

RANK_LOG = re.compile(r"rank-(\d+)\.log")
DRIVER_LOG = re.compile(r"driver-(\d{6,})\.log")


@dataclass(frozen=True, kw_only=True)
class Log:
    """The log of a rank of an attempt or, without them, of a driver."""

    path: Path
    attempt: int | None = None
    rank: int | None = None
    first_dead: bool = False

    @property
    def empty(self) -> bool:
        """Whether nothing is written to it yet."""
        with files.reading(self.path):
            return boundary.status_of(self.path).st_size == 0


@dataclass(frozen=True, kw_only=True)
class LogTail:
    """A log, and the last lines of it or all."""

    log: Log
    lines: list[LogLine]


def list_logs(path: Path, run: Run, *, attempt: int | None) -> list[Log]:
    """The logs of an attempt, by default the newest.

    The rank that died first comes first, then the other ranks by number, then the newest driver.
    """
    paths = RunPaths(path)
    number = attempt or len(run.attempts)
    first_dead = next((one.first_dead_rank for one in run.attempts if one.number == number), None)
    ranks = [
        Log(path=file, attempt=number, rank=rank, first_dead=rank == first_dead)
        for rank, file in _numbered_files(paths.logs(number), RANK_LOG)
    ]
    drivers = [Log(path=file) for _, file in _numbered_files(paths.driver_logs, DRIVER_LOG)]
    return sorted(ranks, key=lambda log: not log.first_dead) + drivers[-1:]


def _numbered_files(folder: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    """The files of a folder whose name matches, by their number."""
    paths = files.entries(folder)
    return sorted((int(match[1]), path) for path in paths if (match := name.fullmatch(path.name)))


class LogReader:
    """Reads a log as it is written."""

    def __init__(self, log: Log) -> None:
        self.log, self._offset = log, 0

    def tail(self, max_lines: int) -> list[LogLine]:
        """The last whole lines. A later `read` continues after them."""
        lines, self._offset = files.last_lines(self.log.path, max_lines)
        return [self._line(text) for text in lines[-max_lines:]]

    def read(self, *, incomplete: bool = False) -> Iterator[LogLine]:
        """The whole lines since the last call and, on request, an incomplete last one."""
        for text in files.lines_from(self.log.path, self._offset):
            whole = text.endswith(b"\n") or len(text) == files.MAX_LINE_BYTES
            if not (whole or incomplete):
                return
            self._offset += len(text)
            yield self._line(text.rstrip(b"\n"))

    def _line(self, text: bytes) -> LogLine:
        line = text.decode(errors="replace")
        return LogLine(attempt=self.log.attempt, rank=self.log.rank, line=line)
