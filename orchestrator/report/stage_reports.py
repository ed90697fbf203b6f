"""What each stage of a run took, beside its forecast. Pure."""

from orchestrator.formatting import HOUR_S
from orchestrator.journal.step_table import Mask, StepTable
from orchestrator.report.measurement import measure
from orchestrator.types.plan import Plan
from orchestrator.types.report import StageReport, StageTotals


def rows_of(plan: Plan, steps: StepTable) -> Mask:
    """The steps of a plan, of those of its whole run."""
    return (steps.index >= plan.first_step) & (steps.index < plan.end_step)


def stage_reports(plan: Plan, steps: StepTable, *, compared: bool) -> tuple[StageReport, ...]:
    """A report for each stage of a run with these steps; none for a run without stages.

    `compared`: whether the forecast is about the devices that the run is on.
    """
    return tuple(_stage_report(one, steps, compared=compared) for one in plan.stages)


def _stage_report(stage: Plan, steps: StepTable, *, compared: bool) -> StageReport:
    own = steps.rows(rows_of(stage, steps))
    measured, predicted_s = measure(stage, own), stage.forecast.step_s.likeliest
    took_s = float(own.step_s.sum())
    return StageReport(
        number=stage.stage.number if stage.stage else 1,
        first_step=stage.first_step,
        steps=stage.total_steps,
        steps_done=len(own),
        tokens_done=int(own.tokens.sum()),
        sequences=stage.batch.sequences,
        length=stage.batch.length,
        mesh=stage.mesh,
        predicted_step_s=predicted_s if compared else None,
        measured=measured,
        measured_over_predicted=(
            measured.step_s.median / predicted_s if compared and measured else None
        ),
        steps_s=took_s,
        dollars=_dollars(stage, took_s) if compared else None,
    )


def _dollars(stage: Plan, steps_s: float) -> float | None:
    """The price of all rented chips for that time."""
    price = stage.forecast.dollars_per_chip_hour
    if price is None or stage.chip_profile is not None:
        return None
    return price * stage.chips * stage.forecast.goodput.inputs.rented * steps_s / HOUR_S


def stage_totals(stages: tuple[StageReport, ...]) -> StageTotals | None:
    """What all stages took together; None for a run without stages."""
    if not stages:
        return None
    predicted = [one.steps_done * s for one in stages if (s := one.predicted_step_s) is not None]
    paid = [one.dollars for one in stages if one.dollars is not None]
    return StageTotals(
        steps_done=sum(one.steps_done for one in stages),
        tokens_done=sum(one.tokens_done for one in stages),
        steps_s=sum(one.steps_s for one in stages),
        predicted_s=sum(predicted) if len(predicted) == len(stages) else None,
        dollars=sum(paid) if len(paid) == len(stages) else None,
    )
