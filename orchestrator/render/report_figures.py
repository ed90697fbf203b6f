"""The figures of a report, as its page and its screen show them."""

from collections.abc import Iterator

from orchestrator.formatting import (
    count,
    counted,
    elapsed,
    elapsed_or_ms,
    lasting,
    percent,
    scaled,
    seconds,
    span,
    to_digits,
)
from orchestrator.render.report_text import CAUSES
from orchestrator.types.report import Goodput, Report

Row = tuple[str, ...]


def figures(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield the main numbers: name, value, and a note."""
    measured = report.measured
    if measured:
        step_s = measured.step_s
        spread = (
            f"{span(seconds(step_s.low), seconds(step_s.high))}, {counted(measured.steps, 'step')}"
        )
        yield "step", seconds(step_s.median), spread
        if mfu := measured.mfu:
            yield "MFU", percent(mfu.median), span(percent(mfu.low), percent(mfu.high))
        chip = "emulated chip" if report.rehearsal else "chip"
        total = f"{scaled(measured.tokens_per_s)} in total"
        yield f"tokens/s per {chip}", scaled(measured.tokens_per_s_per_chip), total
    if report.gap:
        one = next(one for one in report.ratios if one.against == report.gap.against)
        name = "over the lower bound" if one.against == "lower" else "over expected"
        yield name, f"{to_digits(one.measured_over_predicted, 3)} x", seconds(one.step_s)
    if report.goodput:
        total = f"of {elapsed(report.goodput.total_s)}"
        yield "goodput", percent(report.goodput.goodput), total
    if report.outlook:
        days = report.outlook.days_left
        interval = span(lasting(days.low), lasting(days.high))
        yield "left", lasting(days.value), f"80 % interval {interval}"
        if report.outlook.odds is not None:
            yield "deadline", percent(report.outlook.odds), "likely to hold"
    if report.first_loss is not None and report.last_loss is not None:
        yield "loss", f"{report.last_loss:.3f}", f"from {report.first_loss:.3f}"
    if evaluation := report.evaluation:
        best = f"{evaluation.best.loss:.3f} after step {count(evaluation.best.steps_done)}"
        yield "held-out loss", f"{evaluation.last.loss:.3f}", f"best {best}"
        perplexity = to_digits(evaluation.last.perplexity, 4)
        yield "perplexity", perplexity, f"of {scaled(evaluation.last.tokens)} held-out tokens"


def goodput_rows(goodput: Goodput) -> list[Row]:
    lost = sorted(goodput.badput_s.items(), key=lambda pair: -pair[1])
    return [
        ("goodput", elapsed_or_ms(goodput.goodput_s), percent(goodput.goodput)),
        *(
            (f"{name}: {CAUSES[name]}", elapsed_or_ms(s), percent(s / goodput.total_s))
            for name, s in lost
            if s > 0
        ),
    ]
