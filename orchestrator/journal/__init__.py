"""Journal room: a run's own record, on disk: the record of truth. Knows no Ray, JAX or MLflow."""

from orchestrator.journal.claiming import Opened, ask_to_cancel, claim, create, track
from orchestrator.journal.finding import find, journals, remove, runs
from orchestrator.journal.reading import Journal
from orchestrator.journal.retry import Decision, decide_retry
from orchestrator.journal.steps import StepLog, StepReader
from orchestrator.journal.writing import Writer

__all__ = [
    "Decision",
    "Journal",
    "Opened",
    "StepLog",
    "StepReader",
    "Writer",
    "ask_to_cancel",
    "claim",
    "create",
    "decide_retry",
    "find",
    "journals",
    "remove",
    "runs",
    "track",
]
