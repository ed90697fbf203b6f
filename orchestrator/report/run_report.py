"""The report of a run, from its journal."""

import time
from dataclasses import replace

from orchestrator.journal import Journal
from orchestrator.journal.counted_steps import StepsByAttempt, counted_steps
from orchestrator.journal.run_journal import Clock, prediction_of
from orchestrator.journal.run_outlook import outlook_of
from orchestrator.journal.step_table import StepTable, read_table
from orchestrator.report import gap as gaps
from orchestrator.report.measurement import measure, peak_hbm_bytes
from orchestrator.report.stage_reports import rows_of, stage_reports, stage_totals
from orchestrator.report.where_time_went import goodput
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.report import EvaluationReport, MemoryReport, NotCompared, Report
from orchestrator.types.run import Run

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
        ratios=gaps.ratios(plan, compared) if compared else (),
        inside_interval=gaps.inside_interval(plan, compared) if compared else None,
        gap=gaps.gap(plan, compared) if compared else None,
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
