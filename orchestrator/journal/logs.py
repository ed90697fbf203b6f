"""Journal room: the logs of a run, by attempt and rank; they stay when the cluster is gone."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.journal.files import last_lines
from orchestrator.journal.run_paths import RunPaths
from orchestrator.types.run import Run

RANK_LOG = re.compile(r"rank-(\d+)\.log")
DRIVER_LOG = re.compile(r"driver-(\d{6,})\.log")


@dataclass(frozen=True, kw_only=True)
class Log:
    """One log: of a rank of an attempt, or, without them, of a driver."""

    path: Path
    attempt: int | None = None
    rank: int | None = None
    first_dead: bool = False

    @property
    def empty(self) -> bool:
        """Whether nothing was written to it yet."""
        return self.path.stat().st_size == 0


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line of a log, without its end."""

    attempt: int | None
    rank: int | None
    line: str


def logs_of(path: Path, run: Run, *, attempt: int | None) -> list[Log]:
    """The logs of an attempt, the newest unless it is named: the first-dead rank, then the others
    by number, then the newest driver's.
    """
    places = RunPaths(path)
    number = attempt or len(run.attempts)
    dead = next((one.first_dead_rank for one in run.attempts if one.number == number), None)
    ranks = [
        Log(path=file, attempt=number, rank=rank, first_dead=rank == dead)
        for rank, file in _numbered(places.logs(number), RANK_LOG)
    ]
    drivers = [Log(path=file) for _, file in _numbered(places.driver_logs, DRIVER_LOG)]
    return sorted(ranks, key=lambda log: not log.first_dead) + drivers[-1:]


def _numbered(folder: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    """The files of that name in a folder, by their number."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(match[1]), p) for p in paths if (match := name.fullmatch(p.name)))


class LogReader:
    """Reads a log as it comes: each call gives the lines since the one before."""

    def __init__(self, log: Log) -> None:
        self.log, self._offset = log, 0

    def tail(self, most: int) -> list[LogLine]:
        """The last whole lines; what is before them is not read later either."""
        lines, self._offset = last_lines(self.log.path, most)
        return [_line(self.log, text) for text in lines[-most:]]

    def read(self, *, torn: bool = False) -> Iterator[LogLine]:
        """The whole lines that were not read yet; with `torn`, also a last one that has no end."""
        with self.log.path.open("rb") as file:
            file.seek(self._offset)
            for text in file:
                if not (text.endswith(b"\n") or torn):
                    return
                self._offset += len(text)
                yield _line(self.log, text.rstrip(b"\n"))


def _line(log: Log, text: bytes) -> LogLine:
    return LogLine(attempt=log.attempt, rank=log.rank, line=text.decode(errors="replace"))
