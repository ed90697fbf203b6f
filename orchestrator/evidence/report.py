"""The report of a run, from its journal."""

import time
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from orchestrator.formatting import HOUR_S
from orchestrator.journal.run_journal import Clock, Journal, outlook_of, prediction_of
from orchestrator.journal.steps import (
    Floats,
    Mask,
    StepsByAttempt,
    StepTable,
    counted_rows,
    counted_steps,
    read_table,
)
from orchestrator.values.plan import Forecast, Plan
from orchestrator.values.proof import Proof
from orchestrator.values.report import (
    Badput,
    EvaluationReport,
    Gap,
    GapPart,
    Goodput,
    Measurement,
    MemoryReport,
    NotCompared,
    PredictionKind,
    Ratio,
    Report,
    Spread,
    StageReport,
    StageTotals,
    Suspect,
)
from orchestrator.values.run import Attempt, Run

# Measured against predicted step time, and the parts of the difference. Pure.


def predicted_times(plan: Plan) -> dict[PredictionKind, float]:
    """The predicted seconds of a step."""
    step_s = plan.forecast.step_s
    times: dict[PredictionKind, float] = {"lower": step_s.lower}
    if step_s.expected is not None:
        times["expected"] = step_s.expected
    if step_s.unoverlapped != step_s.expected:
        times["unoverlapped"] = step_s.unoverlapped
    return times


def reference(plan: Plan) -> tuple[PredictionKind, float]:
    """The prediction that a measurement is compared with: the expected step or the lower bound."""
    times = predicted_times(plan)
    against: PredictionKind = "expected" if "expected" in times else "lower"
    return against, times[against]


def inside_interval(plan: Plan, measured: Measurement) -> bool | None:
    """Whether the median step is in the 80 % prediction interval; None without an interval."""
    low, high = plan.forecast.step_s.low, plan.forecast.step_s.high
    if low is None or high is None:
        return None
    return low <= measured.step_s.median <= high


def ratios(plan: Plan, measured: Measurement) -> tuple[Ratio, ...]:
    """The median step over each predicted one."""
    return tuple(
        Ratio(against=name, step_s=s, measured_over_predicted=measured.step_s.median / s)
        for name, s in predicted_times(plan).items()
    )


def gap(plan: Plan, measured: Measurement) -> Gap:
    """How much longer a step took than predicted, part by part."""
    against, predicted_s = reference(plan)
    forecast = plan.forecast
    usual_s, slow_s = device_times(measured)
    return Gap(
        against=against,
        s=measured.mean_step_s - predicted_s,
        parts=(
            GapPart(name="devices", s=usual_s - predicted_s),
            GapPart(name="slow steps", s=slow_s),
            GapPart(name="waiting for data", s=measured.mean_data_s),
            GapPart(name="saving", s=measured.mean_checkpoint_s),
        ),
        exposed=None if plan.chip_profile else exposed_share(forecast, measured.device_s),
        suspects=() if plan.chip_profile else suspects(forecast, measured.device_s),
    )


def device_times(measured: Measurement) -> tuple[float, float]:
    """The mean seconds of a step on the devices: the usual part, and what slow steps add.

    The usual part is the median, or the mean where that is smaller.
    """
    mean_s = measured.mean_step_s - measured.mean_data_s - measured.mean_checkpoint_s
    usual_s = min(measured.device_s, mean_s)
    return usual_s, mean_s - usual_s


def exposed_share(forecast: Forecast, device_s: float) -> float | None:
    """The share of the time that could overlap and did not; None where nothing can."""
    overlappable_s = forecast.step_s.unoverlapped - forecast.step_s.lower
    return (device_s - forecast.step_s.lower) / overlappable_s if overlappable_s > 0 else None


def busy_seconds(forecast: Forecast) -> dict[str, float]:
    """Seconds of each resource at its peak rate, the busiest first."""
    seconds: dict[str, float] = {}
    for line in forecast.time:
        name = line.resource or ""
        seconds[name] = seconds.get(name, 0.0) + line.value
    return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))


def suspects(forecast: Forecast, device_s: float) -> tuple[Suspect, ...]:
    """The resources, each as if it alone set the pace; the one that had to slow down least first.

    Latency keeps nothing busy and has no rate.
    """
    return tuple(
        Suspect(resource=name, busy_s=s, rate_if_alone=s / device_s)
        for name, s in busy_seconds(forecast).items()
        if name != "latency" and device_s > 0
    )


# What the steps after warm-up took, and their spread. Pure.


def measure(plan: Plan, steps: StepTable) -> Measurement | None:
    """The measurement of the steps after warm-up; the first step of an attempt does not count."""
    warm = steps.warm
    if not warm.any():
        return None
    taken_s, data_s, saving_s = steps.step_s[warm], steps.data_s[warm], steps.checkpoint_s[warm]
    step_s = spread(taken_s)
    mfu, flops = _known(steps.mfu[warm]), _known(steps.model_flops_per_s_per_chip[warm])
    tokens_per_s = plan.batch.tokens / step_s.median
    return Measurement(
        steps=len(taken_s),
        step_s=step_s,
        mfu=spread(mfu) if len(mfu) else None,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_chip=tokens_per_s / plan.chips,
        model_flops_per_s_per_chip=float(np.median(flops)) if len(flops) else None,
        mean_step_s=float(taken_s.mean()),
        mean_data_s=float(data_s.mean()),
        mean_checkpoint_s=float(saving_s.mean()),
        device_s=float(np.median(taken_s - data_s - saving_s)),
    )


def peak_hbm_bytes(steps: StepTable) -> int | None:
    """The most memory that a device was seen to use; None where devices do not say."""
    known = _known(steps.peak_hbm_bytes)
    return int(known.max()) if len(known) else None


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def spread(values: Floats) -> Spread:
    """Median, tenth and ninetieth percentile; all the same for a single value."""
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return Spread(median=float(middle), low=float(low), high=float(high))


# What each stage of a run took, beside its forecast. Pure.


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


# Where the time of a run went. Pure.


@dataclass
class _Account:
    """Seconds by where they went."""

    goodput_s: float = 0.0
    badput_s: dict[Badput, float] = field(
        default_factory=lambda: dict.fromkeys(get_args(Badput), 0.0)
    )

    def add(self, cause: Badput, seconds: float) -> None:
        self.badput_s[cause] += max(0.0, seconds)


def goodput(run: Run, steps: StepsByAttempt) -> Goodput | None:
    """Where the time went; None before the first attempt."""
    if not run.attempts:
        return None
    started_s = run.attempts[0].started_at_s
    total_s = max(0.0, _end_s(run, steps) - started_s)
    account, counted = _Account(), counted_rows(steps)
    usual_s = _usual_step_s(steps)
    for attempt in run.attempts:
        table = steps.get(attempt.number)
        if table is not None and len(table):
            _count_startup(account, attempt, table, usual_s)
            _count_steps(account, table, usual_s, counted[attempt.number])
        _count_recovery(account, run, attempt, table)
    return _close(account, total_s, waited_s=max(0.0, started_s - run.submitted_at_s))


def _count_startup(account: _Account, attempt: Attempt, table: StepTable, usual_s: float) -> None:
    """The time before the second step of an attempt, and of each stage that begins in it."""
    for row, startup in table.startups.items():
        first_s = float(table.step_s[row])
        if row == 0:
            evaluated_s = sum(one.evaluation_s for at, one in table.evaluations.items() if at == 0)
            before_s = float(table.at_s[0]) - evaluated_s - first_s - attempt.started_at_s
            account.add("tpu_initialization", before_s - startup.state_s - startup.compile_s)
        restores = startup.steps_done > 0
        state: Badput = "unproductive_checkpoint_restore_time" if restores else "training_prep"
        account.add(state, startup.state_s)
        account.add("program_startup", startup.compile_s + max(0.0, first_s - usual_s))


def _count_steps(account: _Account, table: StepTable, usual_s: float, counted: Mask) -> None:
    """The steps; of the first of an attempt, only as long as a usual one takes."""
    step_s = np.where(table.warm, table.step_s, np.minimum(table.step_s, usual_s))
    account.add("wasted_progress_from_disruption", float(step_s[~counted].sum()))
    evaluations = table.evaluations.items()
    account.add(
        "wasted_progress_from_disruption",
        sum(one.evaluation_s for row, one in evaluations if not counted[row]),
    )
    account.add("evaluation", sum(one.evaluation_s for row, one in evaluations if counted[row]))
    data_s, saving_s = table.data_s[counted], table.checkpoint_s[counted]
    account.add("data_loading_sync", float(np.maximum(data_s, 0.0).sum()))
    account.add("unproductive_checkpoint_save_time", float(np.maximum(saving_s, 0.0).sum()))
    account.goodput_s += float(np.maximum(step_s[counted] - data_s - saving_s, 0.0).sum())


def _count_recovery(account: _Account, run: Run, attempt: Attempt, table: StepTable | None) -> None:
    """The time between the last step of an attempt and the start of the next."""
    later = next((one for one in run.attempts if one.number > attempt.number), None)
    if later:
        stopped_s = table.at_s[-1] if table is not None and len(table) else attempt.started_at_s
        cause: Badput = "infrastructure_recovery_from_disruption"
        account.add(cause, later.started_at_s - float(stopped_s))


def _usual_step_s(steps: StepsByAttempt) -> float:
    """The median step after warm-up; 0 where no attempt did a second step."""
    warm = np.concatenate([np.zeros(0), *(table.step_s[1:] for table in steps.values())])
    return float(np.median(warm)) if len(warm) else 0.0


def _end_s(run: Run, steps: StepsByAttempt) -> float:
    """The end of the run, or the last thing known of it."""
    if run.ended_at_s is not None:
        return run.ended_at_s
    steps_s = [float(table.at_s[-1]) for table in steps.values() if len(table)]
    attempts_s = [at for one in run.attempts for at in (one.started_at_s, one.ended_at_s) if at]
    return max([*steps_s, *attempts_s])


def _close(account: _Account, total_s: float, *, waited_s: float) -> Goodput:
    """The account with the rest as `other`.

    Clocks of two machines may differ by seconds, so the total is at least what was counted.
    """
    counted_s = account.goodput_s + sum(account.badput_s.values())
    total_s = max(total_s, counted_s)
    account.badput_s["other"] = total_s - counted_s
    return Goodput(
        total_s=total_s,
        goodput_s=account.goodput_s,
        goodput=account.goodput_s / total_s if total_s else 0.0,
        badput_s=account.badput_s,
        waited_s=waited_s,
    )


SCHEMA = 5


def make_report(journal: Journal, clock: Clock = time.time) -> Report:
    """The report of a run, as its journal is now."""
    report, _ = report_and_steps(journal, clock)
    return report


def report_and_steps(journal: Journal, clock: Clock = time.time) -> tuple[Report, StepTable]:
    """The report, and the steps of the whole run in order: of each its last attempt."""
    run = journal.run(clock)
    steps: dict[int, StepTable] = {}
    problems = list(journal.spec_problems())
    for attempt in run.attempts:
        steps[attempt.number], more = read_table(journal.path, attempt)
        problems += map(str, more)
    run = replace(run, problems=tuple(dict.fromkeys([*run.problems, *problems])))
    plan, proof = journal.plan(run.plan_digest), journal.proof(journal.current_plan(run).digest)
    return compare_run(run, plan, steps, proof, journal.deadline()), counted_steps(steps)


def compare_run(
    run: Run,
    plan: Plan,
    steps: StepsByAttempt,
    proof: Proof | None = None,
    deadline: str | None = None,
) -> Report:
    """The report of a run with these steps, compared with the plan of its newest attempt."""
    whole, plan = plan, plan.stage_of(max(run.steps_done - 1, 0))
    same_plan = {one.number for one in run.attempts if one.plan_digest == run.plan_digest}
    counted = counted_steps(steps, same_plan)
    measured = measure(plan, counted.rows(rows_of(plan, counted)) if whole.stages else counted)
    has_no_forecast = run.rehearsal and not plan.chip_profile
    not_compared: NotCompared | None = "cpu_rehearsal" if has_no_forecast else None
    compared = measured if not_compared is None else None
    stages = stage_reports(whole, counted_steps(steps), compared=not_compared is None)
    return Report(
        schema=SCHEMA,
        run=run.run,
        id=run.id,
        name=run.name,
        state=run.state,
        reason=run.reason,
        rehearsal=run.rehearsal,
        rehearses=run.rehearses,
        spec_digest=run.spec_digest,
        plan_digest=whole.digest,
        chip=plan.chip,
        chips=plan.chips,
        devices=plan.devices,
        pods=plan.pods,
        steps=run.steps,
        steps_done=run.steps_done,
        attempts=len(run.attempts),
        first_loss=float(counted.loss[0]) if len(counted) else None,
        last_loss=float(counted.loss[-1]) if len(counted) else None,
        evaluation=evaluations(counted_steps(steps)),
        forecast=prediction_of(plan),
        measured=measured,
        not_compared=not_compared,
        ratios=ratios(plan, compared) if compared else (),
        inside_interval=inside_interval(plan, compared) if compared else None,
        gap=gap(plan, compared) if compared else None,
        goodput=goodput(run, steps),
        outlook=outlook_of(run, whole, deadline, measured.step_s.median if measured else None),
        memory=_memory(run, plan, counted, proof),
        stages=stages,
        stage_totals=stage_totals(stages),
        problems=run.problems,
    )


def evaluations(steps: StepTable) -> EvaluationReport | None:
    """The evaluations of all steps that count; None where there is none."""
    made = [steps.evaluations[row] for row in sorted(steps.evaluations)]
    if not made:
        return None
    best = min(made, key=lambda one: one.loss)
    return EvaluationReport(count=len(made), first=made[0], best=best, last=made[-1])


def _memory(run: Run, plan: Plan, steps: StepTable, proof: Proof | None) -> MemoryReport:
    return MemoryReport(
        forecast_bytes=plan.forecast.memory_bytes_per_device,
        compiled_bytes=proof.peak_hbm_bytes_per_device if proof else None,
        measured_bytes=peak_hbm_bytes(steps),
        hbm_bytes=None if run.rehearsal else plan.forecast.hbm_bytes_per_device,
    )


# Reports: what a run measured, compared with its forecast.


__all__ = ["compare_run", "make_report", "report_and_steps"]
