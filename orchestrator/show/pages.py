"""Write the report of a run or a study as one HTML page."""

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
from orchestrator.journal.study_journal import StudyJournal
from orchestrator.planning.odds import Offers
from orchestrator.proving.verdict import ProofResult
from orchestrator.run.next_commands import RUNS
from orchestrator.run.records import record_files
from orchestrator.show.page.plan_pages import offers_page, schedule_page
from orchestrator.show.page.run_page import RunPage, run_page
from orchestrator.show.page.study_pages import scaling_page, sweep_page
from orchestrator.storage.addresses import folder, is_copy
from orchestrator.tracking.mlflow.store import run_link
from orchestrator.values.proof import Proof
from orchestrator.values.report import Report
from orchestrator.values.study import ScalingReport, SweepReport

PAGE = "report.html"


@dataclass(frozen=True, kw_only=True)
class Page:
    """Where a page was written, the report that it shows, and what is wrong with its sources."""

    path: Path
    report: Report | ScalingReport | SweepReport
    problems: tuple[str, ...] = ()


def write_run_page(journal: Journal, out: Path | None = None) -> Page:
    """Write the page of a run, into its directory where that can be written."""
    proof, problem = _proof(journal)
    text, found = page_of(journal, proof)
    path = _write(out or _place(journal.path, journal.key), text)
    record_files(journal)
    problems = (*found.problems, *([problem] if problem else []))
    return Page(path=path, report=found, problems=problems)


def write_study_page(study: StudyJournal, out: Path | None = None) -> Page:
    """Write the page of a study, into its directory where that can be written."""
    runs = read_trial_runs(study)
    found = report_of_runs(study, runs)
    if isinstance(found, SweepReport):
        text = sweep_page(found)
    else:
        text = scaling_page(found, {one.trial: one.predicted for one in runs})
    path = _write(out or _place(study.path, study.key), text)
    for start in study.trial_starts()[-1:]:
        record_files(study.trial_journal(start))
    return Page(path=path, report=found)


def write_schedule(found: ProofResult, path: str | Path) -> Path:
    """Write the page of a proof's schedule: a layer in time, and a flame graph by source line."""
    if found.proof.schedule is None:
        raise OrchError(f"--html: no schedule: the catalog has no clock_hz for {found.plan.chip}")
    return _write(Path(path), schedule_page(found.plan, found.proof))


def write_offers(found: Offers, path: str | Path) -> Path:
    """Write the page of offers: the frontier as a picture, and the table."""
    return _write(Path(path), offers_page(found))


def write_report(run: str, storage: str | Path = RUNS, *, out: str | Path | None = None) -> Page:
    """Write the report of a run or a study as one HTML page, `report.html` in its directory."""
    record, path = find_run_or_study(folder(storage), run), Path(out) if out else None
    if isinstance(record, StudyJournal):
        return write_study_page(record, path)
    return write_run_page(record, path)


def page_of(journal: Journal, proof: Proof | None) -> tuple[str, Report]:
    """The page of a run, as its journal stands, and the report that it shows."""
    run, (found, steps) = journal.run(), report_and_steps(journal)
    page = RunPage(
        run=run,
        report=found,
        plan=journal.current_plan(run),
        rehearsed=journal.full_plan(run) if run.rehearses else None,
        proof=proof,
        steps=steps,
        mlflow=run_link(run.tracking) if run.tracking else None,
    )
    return run_page(page), found


def keep_report(journal: Journal) -> None:
    """Write the page of a run that has ended into its directory; its recorder sends it on."""
    text, _ = page_of(journal, _proof(journal)[0])
    _write(journal.path / PAGE, text)


def _proof(journal: Journal) -> tuple[Proof | None, str | None]:
    """The proof of a run's plan, if there is one, or why it cannot be read."""
    run = journal.run()
    try:
        return journal.proof(journal.full_plan(run).digest), None
    except JournalUnreadable as error:
        return None, str(error)


def _place(folder: Path, key: str) -> Path:
    """Where a page goes: into its own directory, or else into the current one."""
    return folder / PAGE if is_writable(folder) else Path(f"{key}-{PAGE}")


def is_writable(folder: Path) -> bool:
    """Whether this user may write into a folder, which is the user's own and not read-only."""
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
