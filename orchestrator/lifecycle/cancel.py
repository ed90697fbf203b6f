"""Cancel and remove runs and studies."""

from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import RunIsLive
from orchestrator.journal import (
    Journal,
    StudyJournal,
    check_folder_own,
    find_run,
    request_cancel,
)
from orchestrator.render.next_commands import run_command
from orchestrator.types.run import LIVE, Run
from orchestrator.types.study import StudyStatus


@dataclass(frozen=True, kw_only=True)
class CancelResult:
    """A run before and after it was asked to stop."""

    before: Run
    after: Run


def cancel_run(journal: Journal, *, at_once: bool) -> CancelResult:
    """Ask a run to stop. Its driver does so; one that has ended is left alone."""
    before = journal.run()
    if before.ended_at_s is None:
        request_cancel(journal, at_once=at_once)
    return CancelResult(before=before, after=journal.run())


def cancel_study(study: StudyJournal, *, at_once: bool) -> list[CancelResult]:
    """Ask the run of a study that goes on to stop; no other begins then."""
    live = [one.run for one in study.status().runs if one.state in LIVE]
    return [cancel_run(find_run(study.storage, key), at_once=at_once) for key in live]


def removable_run(journal: Journal, storage: Path) -> Run:
    """The run, which is the user's own and which nothing drives; an error otherwise."""
    check_folder_own(journal.path)
    run = journal.run()
    if run.state in LIVE:
        cancelling = run_command("cancel", run.run, storage)
        raise RunIsLive(f"run {run.run} is {run.state}", next_command=cancelling)
    return run


def removable_study(study: StudyJournal, storage: Path) -> StudyStatus:
    """The study, which is the user's own and none of whose runs goes on; an error otherwise."""
    status = study.status()
    check_folder_own(study.path)
    for one in status.runs:
        check_folder_own(study.storage / one.run)
    if status.state == "running":
        cancelling = run_command("cancel", study.key, storage)
        raise RunIsLive(f"study {study.key}: a run of it goes on", next_command=cancelling)
    return status
