"""The stages of a run as a table: what each took, beside its forecast."""

from orchestrator.formatting import count, dollars, elapsed, percent, scaled, seconds, to_digits
from orchestrator.types.report import Report, StageReport, StageTotals

Row = tuple[str, ...]
HEAD = ("stage", "steps", "tokens", "batch", "length", "step", "MFU", "over predicted", "time",
        "dollars")  # fmt: skip


def stage_rows(report: Report) -> list[Row]:
    """Return a row for each stage and one for all; none for a run without stages."""
    if not report.stages or report.stage_totals is None:
        return []
    return [*(stage_row(one) for one in report.stages), total_row(report.stage_totals)]


def stage_row(stage: StageReport) -> Row:
    measured, over = stage.measured, stage.measured_over_predicted
    return (
        str(stage.number),
        f"{count(stage.steps_done)} of {count(stage.steps)}",
        scaled(stage.tokens_done) if stage.tokens_done else "0",
        count(stage.sequences),
        count(stage.length),
        seconds(measured.step_s.median) if measured else "-",
        percent(measured.mfu.median) if measured and measured.mfu else "-",
        "-" if over is None else f"{to_digits(over, 3)} x",
        elapsed(stage.steps_s) if stage.steps_s else "-",
        "-" if stage.dollars is None else dollars(stage.dollars),
    )


def total_row(totals: StageTotals) -> Row:
    over = totals.steps_s / totals.predicted_s if totals.predicted_s else None
    return (
        "all",
        count(totals.steps_done),
        scaled(totals.tokens_done) if totals.tokens_done else "0",
        "",
        "",
        "",
        "",
        "-" if over is None else f"{to_digits(over, 3)} x",
        elapsed(totals.steps_s) if totals.steps_s else "-",
        "-" if totals.dollars is None else dollars(totals.dollars),
    )
