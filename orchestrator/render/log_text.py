"""Show the lines of a run's logs, as text or as JSON."""

from collections.abc import Iterator

from orchestrator.journal.run_logs import Log, LogTail
from orchestrator.types import codec
from orchestrator.types.run import LogLine


def log_lines(tails: list[LogTail], *, as_json: bool, titled: bool) -> Iterator[str]:
    """Return the lines of logs, one log after the other, each below its title."""
    for tail in tails:
        if titled and not as_json:
            yield log_title(tail.log)
        for line in tail.lines:
            yield log_line(line, as_json=as_json, alone=True)


def log_title(log: Log) -> str:
    """Return the line above a log."""
    if log.rank is None:
        return "== driver =="
    first = ", died first" if log.first_dead else ""
    return f"== attempt {log.attempt}, rank {log.rank}{first} =="


def log_line(line: LogLine, *, as_json: bool, alone: bool) -> str:
    """Return a line of a log, with its rank in front when several logs are mixed."""
    if as_json:
        return codec.to_json(line).decode() + "\n"
    if alone:
        return line.line
    return f"{'driver' if line.rank is None else f'rank {line.rank}'} | {line.line}"


def notes(run: str, more: int, *, empty: bool) -> Iterator[str]:
    """Return what the shown logs leave out."""
    if empty:
        yield f"{run}: no process has written a log yet"
    if more:
        yield f"{more} more ranks are shown by --rank N"
