"""The journal of a run: its record on disk, and the only record that counts.

Read a run with `Journal(path)`; list and find runs with `list_runs` and `find_run`; follow its
steps with `StepReader`. A run is created with `create_run` and driven by whoever holds the `Writer`
of `claim_run`. Studies have a journal of their own. The package imports `types` and `errors`; it
does not know Ray, JAX or MLflow.
"""

from orchestrator.journal.creation import RunRequest, create_run
from orchestrator.journal.files import check_writable
from orchestrator.journal.heartbeat import ClaimWatch
from orchestrator.journal.listing import (
    find_run,
    list_journals,
    list_runs,
    remove_run,
    shared_marker,
)
from orchestrator.journal.ownership import (
    Writer,
    check_folder_own,
    check_made_by_user,
    check_own,
    claim_run,
    request_cancel,
    track,
)
from orchestrator.journal.retry import Decision, decide_retry
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepLog, StepReader
from orchestrator.journal.study_journal import (
    StudyJournal,
    StudyRequest,
    find_run_or_study,
    find_runs,
    keys_in,
    list_studies,
    open_study,
    remove_study,
    start_trial,
)

__all__ = [
    "ClaimWatch",
    "Decision",
    "Journal",
    "RunRequest",
    "StepLog",
    "StepReader",
    "StudyJournal",
    "StudyRequest",
    "Writer",
    "check_folder_own",
    "check_made_by_user",
    "check_own",
    "check_writable",
    "claim_run",
    "create_run",
    "decide_retry",
    "find_run",
    "find_run_or_study",
    "find_runs",
    "keys_in",
    "list_journals",
    "list_runs",
    "list_studies",
    "open_study",
    "remove_run",
    "remove_study",
    "request_cancel",
    "shared_marker",
    "start_trial",
    "track",
]
