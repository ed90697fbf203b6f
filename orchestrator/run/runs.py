"""Look at recorded runs and studies, report on them, read their logs, cancel and remove them."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from orchestrator import journal, tracking
from orchestrator.errors import ForeignRun, RunIsLive, UnknownName
from orchestrator.journal.listing import StudyJournal, find_run_or_study
from orchestrator.journal.ownership import check_folder_own, check_own, request_cancel
from orchestrator.journal.run_journal import Journal, Log, LogReader, LogTail, list_logs
from orchestrator.run import progress as events
from orchestrator.run.follow import watch
from orchestrator.run.progress import RUNS, NotConfirmed, Notice, Progress
from orchestrator.storage.addresses import folder
from orchestrator.values.run import LIVE, LogLine, Run, Status
from orchestrator.values.study import StudyStatus

_POLL_S = 0.5
_RETRY_AFTER_S = 30.0  # a failed try is not repeated by every command that looks
_MOST_AT_ONCE = 100
# Without a rank: the last lines of the first ranks.
_MOST_RANKS, _MOST_LINES = 8, 100


def catch_up(storage: Path, runs: Sequence[Run]) -> None:
    """Let MLflow have in the background what it lacks of runs that have ended."""
    ended = [(Journal(storage / run.run), run) for run in runs if run.state not in LIVE]
    if behind := [journal for journal, run in ended if _is_due(journal, run)]:
        tracking.in_background(behind[:_MOST_AT_ONCE])


def _is_due(journal: Journal, run: Run) -> bool:
    """Return whether MLflow lacks something of a run, and the last try was not just now."""
    note = tracking.read_sync_state(journal)
    if note is None or not tracking.is_behind(run, note) or not is_own(journal):
        return False
    tried_at_s = 0.0
    with suppress(OSError):
        tried_at_s = journal.paths.sync_state.stat().st_mtime
    return note.problem is None or time.time() - tried_at_s > _RETRY_AFTER_S


def is_own(journal: Journal) -> bool:
    """Return whether a run is this user's and can be written: the lock of a sync lies in it."""
    with suppress(ForeignRun):
        check_own(journal)
        return os.access(journal.path, os.W_OK)
    return False


def runs(storage: str | Path = RUNS, *, progress: Progress | None = None) -> list[Run]:
    """Return all runs in a storage directory, newest first."""
    listed, problems = journal.list_runs(folder(storage))
    for problem in problems:
        (progress or events.silent)(Notice("problem", message=problem))
    catch_up(folder(storage), listed)
    return listed


def studies(storage: str | Path = RUNS, listed: Sequence[Run] = ()) -> list[StudyStatus]:
    """Return all studies by name with their runs; those `listed` by `runs` are not read again."""
    found = journal.list_studies(folder(storage))
    return [study.status(listed=listed) for study in found]


def status(run: str, storage: str | Path = RUNS) -> Status | StudyStatus:
    """Return how a run stands, with its forecast; or how a study stands, with all its runs."""
    record = find_run_or_study(folder(storage), run)
    if isinstance(record, StudyJournal):
        return record.status()
    found = record.status()
    catch_up(record.path.parent, [found])
    return found


def follow(run: str, storage: str | Path = RUNS, *, progress: Progress | None = None) -> Status:
    """Report a run's steps until it has ended or Ctrl-C; return how it stands then."""
    record, report_to = journal.find_run(folder(storage), run), progress or events.silent
    if record.run().state in LIVE and watch(record, report_to) is None:
        report_to(Notice("left running", run=record.run()))
    return record.status()


class _RunLogs(msgspec.Struct, frozen=True, kw_only=True):
    """The logs of a run as they are now; `more` ranks have others. `empty` where none was left."""

    run: Run
    tails: list[LogTail]
    more: int
    empty: bool


def logs(
    run: str, storage: str | Path = RUNS, *, rank: int | None = None, attempt: int | None = None
) -> _RunLogs:
    """Return the newest logs of a run: the last lines of the first ranks, or all of one rank."""
    record = journal.find_run(folder(storage), run)
    found = record.run()
    selected, others = _select_logs(record, found, rank, attempt)
    if rank is not None and not selected:
        known = [str(log.rank) for log in others if log.rank is not None]
        raise UnknownName("rank", rank, known or ["none"])
    tails = []
    for log in selected:
        if not log.empty:
            reader = LogReader(log)
            lines = reader.tail(_MOST_LINES) if rank is None else []
            tails.append(LogTail(log=log, lines=[*lines, *reader.read(incomplete=True)]))
    return _RunLogs(
        run=found,
        tails=tails,
        more=len(others) if rank is None else 0,
        empty=all(log.empty for log in (*selected, *others)),
    )


def _select_logs(
    record: Journal, run: Run, rank: int | None, attempt: int | None
) -> tuple[list[Log], list[Log]]:
    """Return the logs of one rank, or of the first few and of the driver; and the other logs."""
    attempts = [str(entry.number) for entry in run.attempts]
    if attempt is not None and attempt > len(attempts):
        raise UnknownName("attempt", attempt, attempts or ["none"])
    found = list_logs(record.path, run, attempt=attempt)
    if rank is not None:
        selected = [log for log in found if log.rank == rank]
    else:
        ranks = [log for log in found if log.rank is not None]
        selected = ranks[:_MOST_RANKS] + [log for log in found if log.rank is None]
    return selected, [log for log in found if log not in selected]


def follow_logs(
    run: str,
    storage: str | Path = RUNS,
    *,
    rank: int | None = None,
    attempt: int | None = None,
    progress: Progress | None = None,
) -> Iterator[LogLine]:
    """Yield the lines of a run's logs as they are written, through all attempts; report its end."""
    record = journal.find_run(folder(storage), run)
    return _follow_logs(record, rank, attempt, progress or events.silent)


def _follow_logs(
    record: Journal, rank: int | None, attempt: int | None, progress: Progress
) -> Iterator[LogLine]:
    readers: dict[Path, LogReader] = {}
    only_tail = rank is None
    while True:
        run = record.run()  # before the lines, or the last ones could be missed
        ended = run.state not in LIVE
        for log in _select_logs(record, run, rank, attempt)[0]:
            if log.path not in readers:
                readers[log.path] = LogReader(log)
                yield from readers[log.path].tail(_MOST_LINES) if only_tail else ()
        for reader in readers.values():
            yield from reader.read(incomplete=ended)
        if ended:
            progress(events.RunUpdate(run=run, steps=()))
            return
        only_tail = False
        time.sleep(_POLL_S)


class _CancelResult(msgspec.Struct, frozen=True, kw_only=True):
    before: Run
    after: Run


def cancel(run: str, storage: str | Path = RUNS, *, at_once: bool = False) -> list[_CancelResult]:
    """Ask a run, or a study's live run, to stop after a last checkpoint; one result per run."""
    record = find_run_or_study(folder(storage), run)
    records = [record] if isinstance(record, Journal) else []
    if isinstance(record, StudyJournal):
        live = [entry.run for entry in record.status().runs if entry.state in LIVE]
        records = [journal.find_run(record.storage, key) for key in live]
    results = []
    for found in records:
        before = found.run()
        if before.ended_at_s is None:  # its driver stops it; one that has ended is left alone
            request_cancel(found, at_once=at_once)
        results.append(_CancelResult(before=before, after=found.run()))
    return results


def remove(
    run: str,
    storage: str | Path = RUNS,
    *,
    confirm: Callable[[Run | StudyStatus], bool] | None = None,
) -> Run | StudyStatus:
    """Remove a run, or a study with its runs, unless `confirm`, which gets it first, refuses."""
    where = folder(storage)
    record = find_run_or_study(where, run)
    target: Run | StudyStatus
    check_folder_own(record.path)
    if isinstance(record, StudyJournal):
        target = record.status()
        for trial_run in target.runs:
            check_folder_own(record.storage / trial_run.run)
        why = f"study {record.key}: a run of it goes on" if target.state == "running" else None
    else:
        target = record.run()
        why = f"run {target.run} is {target.state}" if target.state in LIVE else None
    if why:
        raise RunIsLive(why, next_command=events.run_command("cancel", record.key, where))
    if confirm and not confirm(target):
        raise NotConfirmed(f"{record.key}: not confirmed, nothing was removed")
    if isinstance(record, StudyJournal):
        journal.remove_study(record)
    else:
        journal.remove_run(record)
    return target
