"""Command line room: the commands that hold runs against their plans. They need journals alone."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.running import STORAGE, next_about
from orchestrator.cli.terminal import JSON, say, say_json
from orchestrator.errors import OrchError
from orchestrator.lifecycle.events import interruptible

if TYPE_CHECKING:
    from orchestrator.journal import Journal, StudyJournal
    from orchestrator.types.report import Report

PAGE = "report.html"


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@STORAGE
@JSON
@interruptible("comparing")
def compare(runs: tuple[str, ...], storage: Path, as_json: bool) -> None:
    """Hold each RUN against its forecast. The runs stand beside each other.

    RUN is a key as `orch runs` shows it, the beginning of one, or the path of a run's directory.

    \b
    Example:
      orch compare llama3-70b-4pod-3f9a1c07-1 llama3-70b-4pod-3f9a1c07-2
    """
    from orchestrator import journal
    from orchestrator.render import compare_screen as render
    from orchestrator.report import make_report as reported

    reports = [reported(journal.find_run(storage, run)) for run in runs]
    if as_json:
        say_json(reports)
    else:
        say(render.compare_screen(reports, next_about("report", runs[-1], storage)))


@click.command()
@click.argument("run")
@STORAGE
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where the page goes, instead of report.html in RUN's directory.",
)
@JSON
@interruptible("writing the report")
def report(run: str, storage: Path, out: Path | None, as_json: bool) -> None:
    """Write RUN as one HTML page that needs nothing else. Measured stands beside predicted.

    The roofline, time per step line by line, memory, MFU over steps, and where the time went; of a
    study the scaling curves with the ideal line, its trials, and where measured and predicted part.
    RUN is the key of a run or a study, the beginning of one, or the path of its directory.

    \b
    Example:
      orch report llama3-70b-4pod-3f9a1c07-1
      orch report llama3-70b-4pod-3f9a1c07-1 -o page.html
      orch report tiny-weak-study-d7c7d06e
    """
    from orchestrator import journal

    found = journal.find_run_or_study(storage, run)
    if isinstance(found, journal.StudyJournal):
        report_study(found, out, as_json=as_json)
    else:
        report_run(found, out, as_json=as_json)


def report_run(found: "Journal", out: Path | None, *, as_json: bool) -> None:
    """A run: its report as JSON, or as a page."""
    from orchestrator.cli import recording
    from orchestrator.render import report_text as render
    from orchestrator.render.layout import fit
    from orchestrator.report import make_report as reported

    told = reported(found)
    if as_json:
        say_json(told)
        return
    path = out or found.path / PAGE
    write(path, page_of(found, told))
    recording.keep_files(found)
    say(fit(f"{told.run}: {render.run_verdict(told)}\n") + wrote(path))


def report_study(found: "StudyJournal", out: Path | None, *, as_json: bool) -> None:
    """A study: its report as JSON, or as a page."""
    from orchestrator.cli import recording
    from orchestrator.render import study_report_screen as render
    from orchestrator.render.layout import fit
    from orchestrator.render.page import study_page
    from orchestrator.study import make_study_report, read_trial_runs

    ran = read_trial_runs(found)
    told = make_study_report(found.key, found.submission().study, ran)
    if as_json:
        say_json(told)
        return
    path = out or found.path / PAGE
    write(path, study_page(told, {one.trial: one.predicted for one in ran}))
    for begun in found.trial_starts()[-1:]:
        recording.keep_files(found.trial_journal(begun))
    said = render.study_verdict(told)
    say(fit(f"{told.study}: {said}\n") + wrote(path))


def wrote(path: Path) -> str:
    """Where a page is, and what to give to a browser."""
    return f"wrote {path}\nNext: open {path.absolute().as_uri()}\n"


def page_of(found: "Journal", told: "Report") -> str:
    """The page of a run, as its journal stands."""
    from orchestrator.errors import JournalUnreadable
    from orchestrator.render.page import RunPage, run_page

    run = found.run()
    rehearsed = found.plan(run.rehearses) if run.rehearses else None
    try:
        proof = found.proof(run.rehearses or run.plan_digest)
    except JournalUnreadable as error:
        click.echo(f"warning: {error}", err=True)
        proof = None
    return run_page(
        RunPage(
            run=run,
            report=told,
            plan=found.plan(run.plan_digest),
            rehearsed=rehearsed,
            proof=proof,
            steps=found.steps(run),
        )
    )


def write(path: Path, text: str) -> None:
    """Write a page, whole or not at all; one that was there before is replaced."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise OrchError(f"{path}: cannot be written: {error.strerror}; see -o FILE") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


COMMANDS = (compare, report)
