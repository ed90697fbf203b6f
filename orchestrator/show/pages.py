"""Write HTML pages: the report of a run or a study, the schedule of a proof, offers."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import JournalUnreadable, OrchError
from orchestrator.evidence.report import report_and_steps
from orchestrator.evidence.scaling import read_trial_runs
from orchestrator.evidence.studies import report_of_runs
from orchestrator.journal import boundary, files, find_run_or_study
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepTable
from orchestrator.journal.study_journal import StudyJournal
from orchestrator.planning.odds import Offers
from orchestrator.proving.verdict import ProofResult
from orchestrator.run.next_commands import RUNS
from orchestrator.run.records import record_files
from orchestrator.show import charts
from orchestrator.show.drawings import filled
from orchestrator.show.plan_pages import offers_page, schedule_page
from orchestrator.show.plan_text import amount, headline, resource_name
from orchestrator.show.report_screen import (
    STAGE_HEAD,
    gap_text,
    goodput_rows,
    goodput_text,
    main_figures,
    run_verdict,
    stage_rows,
)
from orchestrator.show.status_screen import attempt_time, cause
from orchestrator.show.study_pages import scaling_page, sweep_page
from orchestrator.storage.addresses import folder, is_copy
from orchestrator.tracking.mlflow.store import run_link
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.report import Report
from orchestrator.values.run import Run
from orchestrator.values.study import ScalingReport, SweepReport

_PAGE = "report.html"


@dataclass(frozen=True, kw_only=True)
class Page:
    """Where a page was written, the report that it shows, and what is wrong with its sources."""

    path: Path
    report: Report | ScalingReport | SweepReport
    problems: tuple[str, ...] = ()


def write_report(run: str, storage: str | Path = RUNS, *, out: str | Path | None = None) -> Page:
    """Write the report of a run or a study as one HTML page, `report.html` in its directory, or in
    the current one where that cannot be written.
    """
    record = find_run_or_study(folder(storage), run)
    path = Path(out) if out else record.path / _PAGE
    if not out and not _is_writable(record.path):
        path = Path(f"{record.key}-{_PAGE}")
    if isinstance(record, StudyJournal):
        return _write_study_page(record, path)
    proof, problem = _proof(record)
    text, report = page_of(record, proof)
    problems = (*report.problems, *([problem] if problem else []))
    page = Page(path=_write(path, text), report=report, problems=problems)
    record_files(record)
    return page


def _write_study_page(study: StudyJournal, path: Path) -> Page:
    runs = read_trial_runs(study)
    report = report_of_runs(study, runs)
    if isinstance(report, SweepReport):
        text = sweep_page(report)
    else:
        text = scaling_page(report, {run.trial: run.predicted for run in runs})
    page = Page(path=_write(path, text), report=report)
    for start in study.trial_starts()[-1:]:
        record_files(study.trial_journal(start))
    return page


def write_schedule(found: ProofResult, path: str | Path) -> Path:
    """Write the page of a proof's schedule: a layer in time, and a flame graph by source line."""
    if found.proof.schedule is None:
        raise OrchError(f"--html: no schedule: the catalog has no clock_hz for {found.plan.chip}")
    return _write(Path(path), schedule_page(found.plan, found.proof))


def write_offers(found: Offers, path: str | Path) -> Path:
    """Write the page of offers: the frontier as a picture, and the table."""
    return _write(Path(path), offers_page(found))


def keep_report(journal: Journal) -> None:
    """Write the page of a run that has ended into its directory; its recorder sends it on."""
    text, _ = page_of(journal, _proof(journal)[0])
    _write(journal.path / _PAGE, text)


# The page of a run.


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """What the page of a run shows. `plan` is the one that ran, `rehearsed` the plan for chips of
    which it is a small copy; `proof` is of the plan for chips, and `mlflow` where the MLflow UI
    shows the run.
    """

    run: Run
    report: Report
    plan: Plan
    rehearsed: Plan | None
    proof: Proof | None
    steps: StepTable
    mlflow: str | None = None


def page_of(journal: Journal, proof: Proof | None) -> tuple[str, Report]:
    """Return the page of a run, as its journal stands, and the report that it shows."""
    run, (report, steps) = journal.run(), report_and_steps(journal)
    page = RunPage(
        run=run,
        report=report,
        plan=journal.current_plan(run),
        rehearsed=journal.full_plan(run) if run.rehearses else None,
        proof=proof,
        steps=steps,
        mlflow=run_link(run.tracking) if run.tracking else None,
    )
    return run_page(page), report


def run_page(page: RunPage) -> str:
    """Return the page as HTML."""
    report, full = page.report, page.rehearsed or page.plan
    # The measured step, if it can be compared with the forecast for chips.
    is_on_chips = report.measured and report.ratios and not report.rehearsal
    comparable_s = report.measured.step_s.median if report.measured and is_on_chips else None
    return filled(
        "run.html",
        **vars(page),
        title=report.run,
        verdict=run_verdict(report),
        headline=headline(full),
        full=full,
        has_warm_steps=bool(page.steps.warm.any()),
        figures=list(main_figures(report)),
        charts=charts,
        roofline=charts.roofline(full, comparable_s),
        gap=gap_text(report.gap) if report.gap else "",
        goodput=goodput_text(report.goodput) if report.goodput else "",
        goodput_rows=goodput_rows(report.goodput) if report.goodput else [],
        cause=cause,
        attempt_time=attempt_time,
        stage_head=STAGE_HEAD,
        stage_rows=stage_rows(report),
        resource_name=resource_name,
        amount=amount,
    )


def _proof(journal: Journal) -> tuple[Proof | None, str | None]:
    """Return the proof of a run's plan, if there is one, or why it cannot be read."""
    run = journal.run()
    try:
        return journal.proof(journal.full_plan(run).digest), None
    except JournalUnreadable as error:
        return None, str(error)


def _is_writable(folder: Path) -> bool:
    """Return whether this user may write into a folder, which is the user's own and not
    read-only.
    """
    try:
        boundary.check_own(boundary.settled(folder))
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _write(path: Path, text: str) -> Path:
    """Write a page, whole or not at all; one that was there before is replaced."""
    if is_copy(path):
        files.replace(path, text.encode())
        return path
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("x", encoding="utf-8") as file:  # not through a link
            file.write(text)
        partial.replace(path)
        return path
    except OSError as error:
        raise OrchError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
