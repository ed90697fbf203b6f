"""The points of a study's MLflow run: MFU and speed over pods, or the losses of a sweep. Pure."""

from collections.abc import Iterator

from orchestrator.tracking.mlflow.metrics import (
    NOT_IN_A_NAME,
    OF_PODS,
    SPEED_OF_PODS,
    SWEEP_LOSS,
    MetricPoint,
    finite,
)
from orchestrator.types.run import LIVE
from orchestrator.types.scaling import ScalingReport, TrialReport
from orchestrator.types.sweep import SweepReport


def study_points(report: ScalingReport | SweepReport, at_s: float) -> list[MetricPoint]:
    """All points of a study as it is measured by now.

    Those of a trial come once no run of it will change them: a server takes no point back.
    """
    if isinstance(report, SweepReport):
        losses = ((one.number, one.loss) for one in report.trials)
        return [
            point for number, loss in losses for point in finite({SWEEP_LOSS: loss}, at_s, number)
        ]
    series = {tuple(one.series.items()) for one in report.trials}
    return [
        point
        for trial in report.trials
        if _has_ended(trial, report.repeats)
        for point in _points(trial, at_s, named=len(series) > 1)
    ]


def _has_ended(trial: TrialReport, repeats: int) -> bool:
    failed = sum(state not in LIVE for state in trial.unfinished.values())
    return trial.done + failed >= repeats


def _points(trial: TrialReport, at_s: float, *, named: bool) -> Iterator[MetricPoint]:
    """Measured, expected and roofline of a trial, at its number of pods.

    A rehearsal without a forecast of its own has the measured line alone.
    """
    if trial.measured is None or trial.predicted is None:
        return
    plan, compared = trial.predicted, trial.not_compared is None
    chips = trial.chips
    mfu = {"measured": trial.measured.mfu.median if trial.measured.mfu else None}
    speed: dict[str, float | None] = {
        "measured": trial.measured.tokens_per_s_per_chip.median * chips
    }
    if compared:
        rate = plan.tokens_per_s_per_chip
        mfu |= {"expected": plan.mfu.expected, "roofline": plan.mfu.lower}
        speed |= {
            "expected": None if rate.expected is None else rate.expected * chips,
            "roofline": rate.lower * chips,
        }
    series = ", ".join(f"{key} {text}" for key, text in trial.series.items())
    suffix = NOT_IN_A_NAME.sub("_", f" {series}") if named else ""
    values = {OF_PODS[what] + suffix: value for what, value in mfu.items()}
    values |= {SPEED_OF_PODS[what] + suffix: value for what, value in speed.items()}
    yield from finite(values, at_s, plan.pods)
