"""The journal of a run, on disk: the only record of it that counts. `Journal` reads it, and whoever
holds the `Writer` of `claim_run` drives the run. Knows no Ray, JAX or MLflow.
"""

from orchestrator.journal.files import check_writable
from orchestrator.journal.heartbeat import ClaimWatch
from orchestrator.journal.listing import (
    StudyJournal,
    StudyRequest,
    find_run,
    find_run_or_study,
    find_runs,
    list_journals,
    list_runs,
    list_studies,
    open_study,
    remove_run,
    remove_study,
    start_trial,
    track,
)
from orchestrator.journal.ownership import (
    RunRequest,
    Writer,
    check_own,
    claim_run,
    create_run,
    request_cancel,
)
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepLog, StepReader

__all__ = [
    "ClaimWatch", "Journal", "RunRequest", "StepLog", "StepReader", "StudyJournal", "StudyRequest",
    "Writer", "check_own", "check_writable", "claim_run", "create_run", "find_run",
    "find_run_or_study", "find_runs", "list_journals", "list_runs", "list_studies", "open_study",
    "remove_run", "remove_study", "request_cancel", "start_trial", "track",
]  # fmt: skip
