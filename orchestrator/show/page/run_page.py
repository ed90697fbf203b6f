"""Show a run on a page: its report, its plan, its charts and its attempts."""

from dataclasses import dataclass

from orchestrator.formatting import count, seconds
from orchestrator.journal.steps import StepTable
from orchestrator.show.page import charts
from orchestrator.show.page.charts import roofline
from orchestrator.show.page.drawings import filled
from orchestrator.show.plan_text import amount, headline, resource_name
from orchestrator.show.report_screen import (
    HEAD,
    figures,
    gap_text,
    goodput_rows,
    goodput_text,
    run_verdict,
    stage_rows,
)
from orchestrator.show.status_screen import attempt_time, cause
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.report import Report
from orchestrator.values.run import Run

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
        charts=charts,
        roofline=roofline(page.full, page.comparable_s),
        gap=gap_text(report.gap) if report.gap else "",
        goodput=goodput_text(report.goodput) if report.goodput else "",
        goodput_rows=goodput_rows(report.goodput) if report.goodput else [],
        attempt_rows=attempt_rows(page.run),
        stage_head=HEAD,
        stage_rows=stage_rows(report),
        ledger_rows=ledger_rows(page.full),
    )


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
