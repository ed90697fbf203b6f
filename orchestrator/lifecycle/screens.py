"""Screens that show more than one value: what they need besides is read here."""

from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.journal import StudyJournal, find_run, find_run_or_study
from orchestrator.lifecycle.next_steps import next_after
from orchestrator.lifecycle.pages import Page
from orchestrator.render.next_commands import run_command
from orchestrator.render.report_screen import report_screen
from orchestrator.render.runs_screen import study_runs_screen
from orchestrator.render.screen_parts import Command, Detail, next_step, screen
from orchestrator.render.status_screen import next_run_command, status_screen
from orchestrator.render.study_screens import study_report_screen, verdict_text
from orchestrator.study import report_of_study
from orchestrator.types.report import Report
from orchestrator.types.run import LIVE, Status
from orchestrator.types.study import StudyStatus


def status_screens(status: Status | StudyStatus, named: str, storage: Path) -> list[str]:
    """A run; or a study with its runs, and its scaling as far as it is measured."""
    if isinstance(status, Status):
        return [status_screen(status, next_of_run(status, named, storage))]
    study = find_run_or_study(storage, status.study)
    assert isinstance(study, StudyJournal)
    following = run_command("report", study.key, storage)
    measured = study_report_screen(report_of_study(study), following)
    return [study_runs_screen(status), "\n", measured]


def next_of_run(status: Status, named: str, storage: Path) -> str:
    """The next command for a run; what helps where it has ended and its plan cannot be read."""
    if status.forecast is None and status.state not in LIVE:
        try:
            find_run(storage, status.run).plan(status.plan_digest)
        except OrchError as error:
            return error.next_command or next_after(error)
    return next_run_command(status, named, storage)


def report_screens(page: Page, detail: Detail | None) -> list[str]:
    """What a report says, and where its page is."""
    report, where = page.report, f"open {page.path.absolute().as_uri()}"
    if isinstance(report, Report):
        return [report_screen(report, str(page.path), where, detail or "usual")]
    wrote = screen([Command(text=f"wrote {page.path}"), *next_step(where)])
    if detail == "brief":
        return [verdict_text(report), "\n", wrote]
    return [study_report_screen(report, ""), "\n", wrote]
