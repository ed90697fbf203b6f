"""The report of a run on a screen: the verdict first, then its figures."""

from orchestrator.render.report_figures import figures, goodput_rows
from orchestrator.render.report_text import gap_text, goodput_text, run_verdict
from orchestrator.render.screen_parts import (
    Detail,
    Part,
    Screen,
    Table,
    heading,
    indent,
    next_step,
    paragraph,
    screen,
    section,
)
from orchestrator.render.stage_report_table import HEAD, stage_rows
from orchestrator.types.report import Report


def report_screen(report: Report, page: str, next_command: str, detail: Detail) -> Screen:
    """Return the verdict; unless that is enough its figures, and in full where the time went."""
    ending = [paragraph(f"wrote {page}"), *next_step(next_command)]
    first = [heading(f"{report.run}: {run_verdict(report)}")]
    if detail == "brief":
        return screen(first, ending)
    shown = [Table(rows=[*figures(report)], columns="<>w")]
    more = lost_time(report) if detail == "full" else []
    return screen(first, section("figures", shown), *more, sentences(report), ending)


def sentences(report: Report) -> list[Part]:
    """Return what the time beyond the prediction went into, and what all of it did."""
    texts = [gap_text(report.gap)] if report.gap else []
    texts += [goodput_text(report.goodput)] if report.goodput else []
    return indent(map(paragraph, texts))


def lost_time(report: Report) -> list[list[Part]]:
    """Return the stages, and every cause of lost time."""
    stages = stage_rows(report)
    table = [Table(rows=[HEAD, *stages], columns="<" + ">" * (len(HEAD) - 1))] if stages else []
    rows = goodput_rows(report.goodput) if report.goodput else []
    causes = [Table(rows=rows, columns="<>>")] if rows else []
    return [section("stages", table), section("where the time went", causes)]
