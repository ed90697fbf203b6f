"""Show a run on a page: its report, its plan, its charts and its attempts."""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.formatting import (
    count,
    counted,
    elapsed,
    lasting,
    percent,
    scaled,
    seconds,
    span,
    to_digits,
)
from orchestrator.journal.step_table import StepTable
from orchestrator.render.page import run_charts
from orchestrator.render.page.roofline import roofline
from orchestrator.render.page.templates import filled
from orchestrator.render.plan_text import amount, headline
from orchestrator.render.report_text import CAUSES, gap_text, goodput_text, run_verdict
from orchestrator.render.resource_names import resource_name
from orchestrator.render.stage_report_table import HEAD, stage_rows
from orchestrator.render.status_screen import attempt_time, cause
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.report import Goodput, Report
from orchestrator.types.run import Run

Row = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """What the page of a run shows. `plan` is the one that ran, `rehearsed` the plan for chips of
    which it is a small copy; `proof` is of the plan for chips, and
    `mlflow` where the MLflow UI shows the run.
    """

    run: Run
    report: Report
    plan: Plan
    rehearsed: Plan | None
    proof: Proof | None
    steps: StepTable
    mlflow: str | None = None

    @property
    def full(self) -> Plan:
        """Return the plan for chips."""
        return self.rehearsed or self.plan

    @property
    def comparable_s(self) -> float | None:
        """Return the measured step, if it can be compared with the forecast for chips."""
        report = self.report
        is_on_chips = report.measured and report.ratios and not report.rehearsal
        return report.measured.step_s.median if report.measured and is_on_chips else None


def run_page(page: RunPage) -> str:
    """Return the page as HTML."""
    report = page.report
    return filled(
        "run.html",
        title=report.run,
        verdict=run_verdict(report),
        headline=headline(page.full),
        run=page.run,
        mlflow=page.mlflow,
        report=report,
        plan=page.plan,
        full=page.full,
        proof=page.proof,
        steps=page.steps,
        has_warm_steps=bool(page.steps.warm.any()),
        figures=list(figures(report)),
        charts=run_charts,
        roofline=roofline(page.full, page.comparable_s),
        gap=gap_text(report.gap) if report.gap else "",
        goodput=goodput_text(report.goodput) if report.goodput else "",
        goodput_rows=goodput_rows(report.goodput) if report.goodput else [],
        attempt_rows=attempt_rows(page.run),
        stage_head=HEAD,
        stage_rows=stage_rows(report),
        ledger_rows=ledger_rows(page.full),
    )


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
        ("goodput", run_charts.elapsed_or_ms(goodput.goodput_s), percent(goodput.goodput)),
        *(
            (f"{name}: {CAUSES[name]}", run_charts.elapsed_or_ms(s), percent(s / goodput.total_s))
            for name, s in lost
            if s > 0
        ),
    ]


def attempt_rows(run: Run) -> list[Row]:
    return [
        (
            str(one.number),
            one.reason or run.state,
            cause(one) or "-",
            str(one.pods),
            count(one.steps_done),
            attempt_time(one, run.read_at_s) or "-",
        )
        for one in run.attempts
    ]


def ledger_rows(plan: Plan) -> list[Row]:
    return [
        (
            line.name,
            resource_name(line.resource or ""),
            line.formula,
            amount(line),
            seconds(line.value),
        )
        for line in plan.forecast.time
    ]
