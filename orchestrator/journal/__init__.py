"""Journal room: a run's own record, on disk: the record of truth. Knows no Ray, JAX or MLflow."""

from orchestrator.journal.files import try_to_write
from orchestrator.journal.listing import find, journals, landmark, remove, runs
from orchestrator.journal.ownership import RunRequest, ask_to_cancel, claim, create, track
from orchestrator.journal.reading import Journal
from orchestrator.journal.retry import Decision, decide_retry
from orchestrator.journal.steps import StepLog, StepReader
from orchestrator.journal.study_journal import (
    StudyJournal,
    StudyRequest,
    begin_trial,
    find_either,
    open_study,
    remove_study,
    run_of,
    studies,
    study_status,
)
from orchestrator.journal.writing import Writer

__all__ = [
    "Decision",
    "Journal",
    "RunRequest",
    "StepLog",
    "StepReader",
    "StudyJournal",
    "StudyRequest",
    "Writer",
    "ask_to_cancel",
    "begin_trial",
    "claim",
    "create",
    "decide_retry",
    "find",
    "find_either",
    "journals",
    "landmark",
    "open_study",
    "remove",
    "remove_study",
    "run_of",
    "runs",
    "studies",
    "study_status",
    "track",
    "try_to_write",
]
