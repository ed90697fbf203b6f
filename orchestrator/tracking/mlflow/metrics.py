"""Every metric by name, and the points of it that steps, plans, proofs and ends give. Pure.

`views.json` shows each metric. The part of a name before the slash becomes a section of charts in
MLflow. Names that people know from MaxText are the same here.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from orchestrator.formatting import GIB
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.report import Badput, PredictionKind, Report
from orchestrator.values.run import Attempt, TimedStep

# MLflow takes no other characters in a name.
NOT_IN_A_NAME = re.compile(r"[^\w\-. /]")

STEP_TIME = "perf/step_time_seconds"
# MLflow cuts the title of a chart after some thirty letters: these fit next to each other in it.
MFU, MFU_EXPECTED, MFU_ROOFLINE = "mfu/measured", "mfu/expected", "mfu/roofline"
STEP_TIME_PREDICTED = "perf/step_time_seconds_predicted"
TFLOPS = "perf/per_device_tflops_per_sec"
TOKENS = "perf/per_device_tokens_per_sec"
DATA_WAIT = "perf/data_wait_seconds"
CHECKPOINT_WAIT = "perf/checkpoint_wait_seconds"
MEASURED_HBM = "perf/peak_hbm_gib"
LOSS = "learning/loss"
GRAD_NORM = "learning/grad_norm"
LEARNING_RATE = "learning/lr"
# A trainer's own metrics keep their names, in a section of their own.
TRAINER = "trainer/"

OF_STEPS = (
    STEP_TIME, STEP_TIME_PREDICTED, MFU, MFU_EXPECTED, MFU_ROOFLINE, TFLOPS, TOKENS,
    DATA_WAIT, CHECKPOINT_WAIT, MEASURED_HBM, LOSS, GRAD_NORM, LEARNING_RATE,
)  # fmt: skip

PODS, CHIPS = "planning/pods", "planning/chips"
BATCH_TOKENS = "planning/batch_tokens"
MFU_UNOVERLAPPED = "predicted/mfu_unoverlapped"
STEP_TIME_LOWER = "predicted/step_time_seconds_lower"
STEP_TIME_EXPECTED = "predicted/step_time_seconds_expected"
STEP_TIME_UNOVERLAPPED = "predicted/step_time_seconds_unoverlapped"
TOKENS_PER_S_UPPER = "predicted/tokens_per_second_upper"
PREDICTED_HBM = "predicted/peak_hbm_gib"
DAYS_EXPECTED, DOLLARS_EXPECTED = "predicted/days_expected", "predicted/dollars_expected"

OF_PLANS = (
    PODS, CHIPS, BATCH_TOKENS, MFU_UNOVERLAPPED, STEP_TIME_LOWER, STEP_TIME_EXPECTED,
    STEP_TIME_UNOVERLAPPED, TOKENS_PER_S_UPPER, PREDICTED_HBM, DAYS_EXPECTED, DOLLARS_EXPECTED,
)  # fmt: skip

PEAK_HBM = "proof/peak_hbm_gib"
HBM_MARGIN = "proof/hbm_margin_gib"
COMPILE_TIME = "proof/compile_seconds"

OF_PROOFS = (PEAK_HBM, HBM_MARGIN, COMPILE_TIME)

MEDIAN_MFU = "mfu/median"
MEDIAN_STEP_TIME = "summary/step_time_seconds"
TOKENS_PER_S = "summary/tokens_per_second"
FINAL_LOSS = "summary/loss"
GOODPUT = "summary/goodput"
# The median step over the predicted one: 1 is as predicted, 2 is twice as long.
OVER_PREDICTED: dict[PredictionKind, str] = {
    against: f"summary/step_time_over_{against}" for against in get_args(PredictionKind)
}
BADPUT: dict[Badput, str] = {cause: f"summary/badput_{cause}_seconds" for cause in get_args(Badput)}

OF_ENDINGS = (
    MEDIAN_MFU, MEDIAN_STEP_TIME, *OVER_PREDICTED.values(), TOKENS_PER_S, FINAL_LOSS, GOODPUT,
    *BADPUT.values(),
)  # fmt: skip

# Metrics of a study's run, with the number of pods as the step; of several series each has its name
# behind.
OF_PODS: dict[str, str] = {what: f"scaling/{what}" for what in ("measured", "expected", "roofline")}
SPEED_OF_PODS: dict[str, str] = {what: f"speed/{what}" for what in OF_PODS}
# Metrics of a sweep's run, with the number of the trial as the step.
SWEEP_LOSS = "sweep/loss"

OF_STUDIES = (*OF_PODS.values(), *SPEED_OF_PODS.values(), SWEEP_LOSS)

# Only a run in stages has these.
STAGE, STEPS_DOLLARS = "learning/stage", "summary/dollars_of_steps"

OF_STAGES = (STAGE, STEPS_DOLLARS)

# Only a run with evaluations has these.
EVAL_LOSS, EVAL_PERPLEXITY, EVAL_TIME = "eval/loss", "eval/perplexity", "eval/seconds"

OF_EVALUATIONS = (EVAL_LOSS, EVAL_PERPLEXITY, EVAL_TIME)

ALL = (*OF_STEPS, *OF_PLANS, *OF_PROOFS, *OF_ENDINGS, *OF_STUDIES, *OF_STAGES, *OF_EVALUATIONS)


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """A value of a metric. Of two at the same step, MLflow shows the later one."""

    name: str
    value: float
    at_s: float
    step: int


def finite(named: Mapping[str, float | None], at_s: float, step: int) -> list[MetricPoint]:
    """A point for each value that is known and finite: MLflow would turn infinity into a number."""
    return [
        MetricPoint(name=name, value=float(value), at_s=at_s, step=step)
        for name, value in named.items()
        if value is not None and math.isfinite(value)
    ]


def of_step(timed: TimedStep, plan: Plan) -> list[MetricPoint]:
    """One step as measured, and what the plan of its attempt predicts for it."""
    step, forecast = timed.step, plan.forecast
    of_device = plan.chips / plan.devices
    flops_per_s = step.model_flops_per_s_per_chip
    tokens_per_s = step.tokens_per_s_per_chip
    named = {
        STEP_TIME: step.step_s,
        STEP_TIME_PREDICTED: forecast.step_s.lower,
        MFU: step.mfu,
        MFU_EXPECTED: forecast.mfu.expected,
        MFU_ROOFLINE: forecast.mfu.lower,
        TFLOPS: flops_per_s and flops_per_s * of_device / 1e12,
        TOKENS: tokens_per_s and tokens_per_s * of_device,
        DATA_WAIT: step.data_s,
        CHECKPOINT_WAIT: step.checkpoint_s,
        MEASURED_HBM: step.peak_hbm_bytes and step.peak_hbm_bytes / GIB,
        LOSS: step.loss,
        GRAD_NORM: step.grad_norm,
        LEARNING_RATE: step.learning_rate,
        STAGE: plan.stage.number if plan.stage else None,
    }
    if evaluation := step.own_evaluation:
        named[EVAL_LOSS] = evaluation.loss
        named[EVAL_PERPLEXITY] = evaluation.perplexity
        named[EVAL_TIME] = evaluation.evaluation_s
    own = {TRAINER + trainer_metric_name(name): x for name, x in step.trainer_metrics.items()}
    return finite(named | own, timed.at_s, step.index)


def trainer_metric_name(name: str) -> str:
    """A trainer's name for a metric, as MLflow takes it."""
    return NOT_IN_A_NAME.sub("_", name)[:200]


def first_done(
    attempts: Iterable[tuple[Attempt, Sequence[TimedStep]]], done: int
) -> Iterator[tuple[Attempt, TimedStep]]:
    """The steps from `done` on, each as it was first done.

    MLflow cannot take a point back. When a step is repeated after a failure, its first point stays,
    so every process that records the run sends the same points.
    """
    for attempt, steps in attempts:
        for timed in steps:
            if timed.step.index >= done:
                done = timed.step.index + 1
                yield attempt, timed


def of_plan(plan: Plan, at_s: float, step: int) -> list[MetricPoint]:
    """The size of a plan, and its forecast."""
    forecast = plan.forecast
    named = {
        PODS: plan.pods,
        CHIPS: plan.chips,
        BATCH_TOKENS: plan.batch.tokens,
        MFU_UNOVERLAPPED: forecast.mfu.unoverlapped,
        STEP_TIME_LOWER: forecast.step_s.lower,
        STEP_TIME_EXPECTED: forecast.step_s.expected,
        STEP_TIME_UNOVERLAPPED: forecast.step_s.unoverlapped,
        TOKENS_PER_S_UPPER: forecast.tokens_per_s.lower,
        PREDICTED_HBM: forecast.memory_bytes_per_device / GIB,
        DAYS_EXPECTED: forecast.days.expected,
        DOLLARS_EXPECTED: forecast.dollars.expected if forecast.dollars else None,
    }
    return finite(named, at_s, step)


def of_proof(proof: Proof, at_s: float) -> list[MetricPoint]:
    """Memory and time of the compilation."""
    named = {
        PEAK_HBM: proof.peak_hbm_bytes_per_device / GIB,
        HBM_MARGIN: proof.margin_bytes / GIB,
        COMPILE_TIME: proof.compile_s,
    }
    return finite(named, at_s, 0)


def of_ending(report: Report, at_s: float) -> list[MetricPoint]:
    """The summary of an ended run: medians of its steps, and where its time went."""
    measured, time = report.measured, report.goodput
    if not report.steps_done:
        return []
    named: dict[str, float | None] = {FINAL_LOSS: report.last_loss}
    named |= {OVER_PREDICTED[one.against]: one.measured_over_predicted for one in report.ratios}
    if measured:
        named[MEDIAN_STEP_TIME] = measured.step_s.median
        named[TOKENS_PER_S] = measured.tokens_per_s
        named[MEDIAN_MFU] = measured.mfu.median if measured.mfu else None
    if report.stage_totals:
        named[STEPS_DOLLARS] = report.stage_totals.dollars
    if time:
        named[GOODPUT] = time.goodput
        named |= {BADPUT[cause]: time.badput_s[cause] for cause in BADPUT}
    return finite(named, at_s, report.steps_done)
