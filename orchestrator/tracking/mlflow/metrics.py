"""Every metric by name, and the points of it that steps, plans, proofs and ends give. `views.json`
shows each metric. The part of a name before the slash becomes a section of charts in MLflow. Names
that people know from MaxText are the same here.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import get_args

from orchestrator.formatting import GIB
from orchestrator.journal.heartbeat import Heartbeat
from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.report import Badput, PredictionKind, Report
from orchestrator.values.run import LIVE, Step, TimedStep
from orchestrator.values.study import ScalingReport, SweepReport

# MLflow takes no other characters in a name.
NOT_IN_A_NAME = re.compile(r"[^\w\-. /]")

_STEP_TIME, LOSS, _MEASURED_HBM = "perf/step_time_seconds", "learning/loss", "perf/peak_hbm_gib"
# MLflow cuts the title of a chart after some thirty letters, and both names must fit in it.
_MFU, _MFU_ROOFLINE = "mfu/measured", "mfu/roofline"

_OF_STEPS: dict[str, Callable[[Step, Plan], float | None]] = {
    _STEP_TIME: lambda step, _: step.step_s,
    "perf/step_time_seconds_predicted": lambda _, plan: plan.forecast.step_s.lower,
    _MFU: lambda step, _: step.mfu,
    "mfu/expected": lambda _, plan: plan.forecast.mfu.expected,
    _MFU_ROOFLINE: lambda _, plan: plan.forecast.mfu.lower,
    "perf/per_device_tflops_per_sec": lambda step, plan: (
        step.model_flops_per_s_per_chip
        and step.model_flops_per_s_per_chip * (plan.chips / plan.devices) / 1e12
    ),
    "perf/per_device_tokens_per_sec": lambda step, plan: (
        step.tokens_per_s_per_chip and step.tokens_per_s_per_chip * (plan.chips / plan.devices)
    ),
    "perf/data_wait_seconds": lambda step, _: step.data_s,
    "perf/checkpoint_wait_seconds": lambda step, _: step.checkpoint_s,
    _MEASURED_HBM: lambda step, _: step.peak_hbm_bytes and step.peak_hbm_bytes / GIB,
    LOSS: lambda step, _: step.loss,
    "learning/grad_norm": lambda step, _: step.grad_norm,
    "learning/lr": lambda step, _: step.learning_rate,
}

_OF_PLANS: dict[str, Callable[[Plan], float | None]] = {
    "plan/pods": lambda plan: plan.pods,
    "plan/chips": lambda plan: plan.chips,
    "plan/batch_tokens": lambda plan: plan.batch.tokens,
    "predicted/mfu_unoverlapped": lambda plan: plan.forecast.mfu.unoverlapped,
    "predicted/step_time_seconds_lower": lambda plan: plan.forecast.step_s.lower,
    "predicted/step_time_seconds_expected": lambda plan: plan.forecast.step_s.expected,
    "predicted/step_time_seconds_unoverlapped": lambda plan: plan.forecast.step_s.unoverlapped,
    "predicted/tokens_per_second_upper": lambda plan: plan.forecast.tokens_per_s.lower,
    "predicted/peak_hbm_gib": lambda plan: plan.forecast.memory_bytes_per_device / GIB,
    "predicted/days_expected": lambda plan: plan.forecast.days.expected,
    "predicted/dollars_expected": lambda plan: (
        plan.forecast.dollars.expected if plan.forecast.dollars else None
    ),
}

_OF_PROOFS: dict[str, Callable[[Proof], float]] = {
    "proof/peak_hbm_gib": lambda proof: proof.peak_hbm_bytes_per_device / GIB,
    "proof/hbm_margin_gib": lambda proof: proof.margin_bytes / GIB,
    "proof/compile_seconds": lambda proof: proof.compile_s,
}

_MEDIAN_MFU = "mfu/median"
_TOKENS_PER_S = "summary/tokens_per_second"
_GOODPUT = "summary/goodput"
_MEDIAN_STEP_TIME, _FINAL_LOSS = "summary/step_time_seconds", "summary/loss"
# The median step over the predicted one: 1 is as predicted, 2 is twice as long.
_OVER_PREDICTED: dict[PredictionKind, str] = {
    against: f"summary/step_time_over_{against}" for against in get_args(PredictionKind)
}
_BADPUT: dict[Badput, str] = {
    cause: f"summary/badput_{cause}_seconds" for cause in get_args(Badput)
}

_OF_ENDINGS = (
    _MEDIAN_MFU, _MEDIAN_STEP_TIME, *_OVER_PREDICTED.values(), _TOKENS_PER_S, _FINAL_LOSS, _GOODPUT,
    *_BADPUT.values(),
)  # fmt: skip

# A study's run has the number of pods as its step. Of several series, each ends in its own name.
_OF_PODS = {what: f"scaling/{what}" for what in ("measured", "expected", "roofline")}
_SPEED_OF_PODS = {what: f"speed/{what}" for what in _OF_PODS}
# A sweep's run has the number of the trial as its step.
_SWEEP_LOSS = "sweep/loss"
_OF_STUDIES = (*_OF_PODS.values(), *_SPEED_OF_PODS.values(), _SWEEP_LOSS)

# Only a run in stages, or with evaluations, has these.
_STAGE, _STEPS_DOLLARS = "learning/stage", "summary/dollars_of_steps"
_EVAL_LOSS, _EVAL_PERPLEXITY, _EVAL_TIME = "eval/loss", "eval/perplexity", "eval/seconds"

_ALL = (
    *_OF_STEPS, *_OF_PLANS, *_OF_PROOFS, *_OF_ENDINGS, *_OF_STUDIES, _STAGE, _STEPS_DOLLARS,
    _EVAL_LOSS, _EVAL_PERPLEXITY, _EVAL_TIME,
)  # fmt: skip


class MetricPoint(Value):
    """A value of a metric. Of two at the same step, MLflow shows the later one."""

    name: str
    value: float
    at_s: float
    step: int


def finite(named: Mapping[str, float | None], at_s: float, step: int) -> list[MetricPoint]:
    """Return a point per known, finite value: MLflow would turn infinity into a number."""
    return [
        MetricPoint(name=name, value=float(value), at_s=at_s, step=step)
        for name, value in named.items()
        if value is not None and math.isfinite(value)
    ]


def of_step(timed: TimedStep, plan: Plan) -> list[MetricPoint]:
    """Return one step as measured, and what the plan of its attempt predicts for it."""
    step = timed.step
    named = {name: value(step, plan) for name, value in _OF_STEPS.items()}
    named[_STAGE] = plan.stage.number if plan.stage else None
    if evaluation := step.own_evaluation:
        named[_EVAL_LOSS] = evaluation.loss
        named[_EVAL_PERPLEXITY] = evaluation.perplexity
        named[_EVAL_TIME] = evaluation.evaluation_s
    # A trainer's own metrics keep their names, in a section of their own.
    for name, value in step.trainer_metrics.items():
        named["trainer/" + NOT_IN_A_NAME.sub("_", name)[:200]] = value
    return finite(named, timed.at_s, step.index)


def of_plan(plan: Plan, at_s: float, step: int) -> list[MetricPoint]:
    return finite({name: value(plan) for name, value in _OF_PLANS.items()}, at_s, step)


def of_proof(proof: Proof, at_s: float) -> list[MetricPoint]:
    return finite({name: value(proof) for name, value in _OF_PROOFS.items()}, at_s, 0)


def of_host(beat: Heartbeat) -> list[MetricPoint]:
    """Return what a host is busy with, under the names of MLflow's own system metrics."""
    if beat.usage is None:
        return []
    used, host = beat.usage, NOT_IN_A_NAME.sub("_", beat.process.host)
    named = {
        "cpu_utilization_percentage": 100 * used.cpu,
        "system_memory_usage_percentage": 100 * used.memory,
        "system_memory_usage_megabytes": used.memory_bytes / 1e6,
        "network_receive_megabytes": used.received_bytes / 1e6,
        "network_transmit_megabytes": used.sent_bytes / 1e6,
    }
    return finite({f"system/{host}/{name}": x for name, x in named.items()}, used.at_s, beat.steps)


def of_ending(report: Report, at_s: float) -> list[MetricPoint]:
    """Return the summary of an ended run: medians of its steps, and where its time went."""
    measured, time = report.measured, report.goodput
    if not report.steps_done:
        return []
    named: dict[str, float | None] = {_FINAL_LOSS: report.last_loss}
    named |= {
        _OVER_PREDICTED[ratio.against]: ratio.measured_over_predicted for ratio in report.ratios
    }
    if measured:
        named[_MEDIAN_STEP_TIME] = measured.step_s.median
        named[_TOKENS_PER_S] = measured.tokens_per_s
        named[_MEDIAN_MFU] = measured.mfu.median if measured.mfu else None
    if report.stage_totals:
        named[_STEPS_DOLLARS] = report.stage_totals.dollars
    if profile := report.profile:
        for line in profile.lines:
            for witness in ("measured", "lower", "scheduled", "expected"):
                named[f"profile/{line.kind}_seconds_{witness}"] = getattr(line, f"{witness}_s")
    if time:
        named[_GOODPUT] = time.goodput
        named |= {_BADPUT[cause]: time.badput_s[cause] for cause in _BADPUT}
    return finite(named, at_s, report.steps_done)


def of_study(report: ScalingReport | SweepReport, at_s: float) -> list[MetricPoint]:
    """The points of a study's MLflow run: MFU and speed over pods, or the losses of a sweep."""
    # Those of a trial come once no run of it will change them: a server takes no point back.
    points: list[MetricPoint] = []
    if isinstance(report, SweepReport):
        for trial in report.trials:
            points += finite({_SWEEP_LOSS: trial.loss}, at_s, trial.number)
        return points
    several = len({tuple(trial.series.items()) for trial in report.trials}) > 1
    for measured_trial in report.trials:
        plan, measured = measured_trial.predicted, measured_trial.measured
        failed = sum(state not in LIVE for state in measured_trial.unfinished.values())
        is_ended = measured_trial.done + failed >= report.repeats
        if plan is None or measured is None or not is_ended:
            continue
        # Measured, expected and roofline, at its number of pods. A rehearsal without a forecast of
        # its own has only the measured line.
        mfu = {"measured": measured.mfu.median if measured.mfu else None}
        speed: dict[str, float | None] = {"measured": measured.tokens_per_s_per_chip.median}
        if measured_trial.not_compared is None:
            rate = plan.tokens_per_s_per_chip
            mfu |= {"expected": plan.mfu.expected, "roofline": plan.mfu.lower}
            speed |= {"expected": rate.expected, "roofline": rate.lower}
        series = ", ".join(f"{key} {text}" for key, text in measured_trial.series.items())
        suffix = NOT_IN_A_NAME.sub("_", f" {series}") if several else ""
        values = {_OF_PODS[what] + suffix: value for what, value in mfu.items()}
        for what, value in speed.items():
            values[_SPEED_OF_PODS[what] + suffix] = value and value * measured_trial.chips
        points += finite(values, at_s, plan.pods)
    return points
