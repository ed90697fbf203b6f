"""Record room: what is measured, predicted and compiled, as points under names. Pure."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.tracking.mlflow import metric_names
from orchestrator.tracking.mlflow.params import NOT_IN_A_NAME
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.report import Report
from orchestrator.types.run import Attempt, TimedStep

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """A value of a metric. Of two at the same step, MLflow shows the later one."""

    name: str
    value: float
    at_s: float
    step: int


def finite(named: Mapping[str, float | None], at_s: float, step: int) -> list[MetricPoint]:
    """Points of what is known and finite: MLflow would turn an infinity into a number."""
    return [
        MetricPoint(name=name, value=float(value), at_s=at_s, step=step)
        for name, value in named.items()
        if value is not None and math.isfinite(value)
    ]


def of_step(timed: TimedStep, plan: Plan) -> list[MetricPoint]:
    """One step, beside what the plan of its attempt says."""
    step, forecast = timed.step, plan.forecast
    of_device = plan.chips / plan.devices
    flops_per_s = step.model_flops_per_s_per_chip
    tokens_per_s = step.tokens_per_s_per_chip
    named = {
        metric_names.STEP_TIME: step.step_s,
        metric_names.STEP_TIME_PREDICTED: forecast.step_s.lower,
        metric_names.MFU: step.mfu,
        metric_names.MFU_PREDICTED: forecast.mfu.lower,
        metric_names.TFLOPS: flops_per_s and flops_per_s * of_device / 1e12,
        metric_names.TOKENS: tokens_per_s and tokens_per_s * of_device,
        metric_names.DATA_WAIT: step.data_s,
        metric_names.CHECKPOINT_WAIT: step.checkpoint_s,
        metric_names.MEASURED_HBM: step.peak_hbm_bytes and step.peak_hbm_bytes / GIB,
        metric_names.LOSS: step.loss,
        metric_names.GRAD_NORM: step.grad_norm,
        metric_names.LEARNING_RATE: step.learning_rate,
    }
    own = {metric_names.TRAINER + own_name(name): x for name, x in step.trainer_metrics.items()}
    return finite(named | own, timed.at_s, step.index)


def own_name(name: str) -> str:
    """A trainer's name for a metric, as MLflow takes it."""
    return NOT_IN_A_NAME.sub("_", name)[:200]


def first_done(
    attempts: Iterable[tuple[Attempt, Sequence[TimedStep]]], done: int
) -> Iterator[tuple[Attempt, TimedStep]]:
    """The steps from `done` on, each when it was first done.

    MLflow cannot take a point back, so that of a step that was done again the first one stays:
    whoever records, and whenever, sends the same points.
    """
    for attempt, steps in attempts:
        for timed in steps:
            if timed.step.index >= done:
                done = timed.step.index + 1
                yield attempt, timed


def of_plan(plan: Plan, at_s: float, step: int) -> list[MetricPoint]:
    """What a plan is, and predicts."""
    forecast = plan.forecast
    named = {
        metric_names.PODS: plan.pods,
        metric_names.CHIPS: plan.chips,
        metric_names.BATCH_TOKENS: plan.batch.tokens,
        metric_names.MFU_ROOFLINE: forecast.mfu.lower,
        metric_names.MFU_EXPECTED: forecast.mfu.expected,
        metric_names.MFU_UNOVERLAPPED: forecast.mfu.unoverlapped,
        metric_names.STEP_TIME_LOWER: forecast.step_s.lower,
        metric_names.STEP_TIME_EXPECTED: forecast.step_s.expected,
        metric_names.STEP_TIME_UNOVERLAPPED: forecast.step_s.unoverlapped,
        metric_names.TOKENS_PER_S_UPPER: forecast.tokens_per_s.lower,
        metric_names.PREDICTED_HBM: forecast.memory_bytes_per_device / GIB,
    }
    return finite(named, at_s, step)


def of_proof(proof: Proof, at_s: float) -> list[MetricPoint]:
    """What the compiler said."""
    named = {
        metric_names.PEAK_HBM: proof.peak_hbm_bytes_per_device / GIB,
        metric_names.HBM_MARGIN: proof.margin_bytes / GIB,
        metric_names.COMPILE_TIME: proof.compile_s,
    }
    return finite(named, at_s, 0)


def of_ending(report: Report, at_s: float) -> list[MetricPoint]:
    """What the run comes to: medians of its steps, and where its time went."""
    found, time = report.measured, report.goodput
    if not report.steps_done:
        return []
    named: dict[str, float | None] = {metric_names.FINAL_LOSS: report.last_loss}
    named |= {
        metric_names.OVER_PREDICTED[one.against]: one.measured_over_predicted
        for one in report.ratios
    }
    if found:
        named[metric_names.MEDIAN_STEP_TIME] = found.step_s.median
        named[metric_names.TOKENS_PER_S] = found.tokens_per_s
        named[metric_names.MEDIAN_MFU] = found.mfu.median if found.mfu else None
    if time:
        named[metric_names.GOODPUT] = time.goodput
        named |= {metric_names.BADPUT[cause]: time.badput_s[cause] for cause in metric_names.BADPUT}
    return finite(named, at_s, report.steps_done)
