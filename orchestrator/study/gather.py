"""Study room: a study's journal to the reports of its runs. The only file here that reads any."""

import time

from orchestrator.errors import JournalUnreadable
from orchestrator.journal import StudyJournal
from orchestrator.journal.reading import Clock
from orchestrator.report import report
from orchestrator.study.report import Ran


def gather(journal: StudyJournal, clock: Clock = time.time) -> list[Ran]:
    """Every run of the study that can be read, in the order in which they were begun; one that was
    removed, or never came to be, is left out.
    """
    found = []
    for begun in journal.begun():
        recorded = journal.run_of(begun)
        try:
            told = report(recorded, clock)
            plan = recorded.plan(told.plan_digest)
            full = recorded.plan(told.rehearses) if told.rehearses else plan
        except JournalUnreadable:
            continue
        found.append(Ran(begun.trial, begun.repeat, told, plan, full))
    return found
