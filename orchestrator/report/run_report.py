"""The report of a run, from its journal."""

import time
from collections.abc import Sequence

from orchestrator.journal import Journal, StepReader
from orchestrator.journal.run_journal import Clock, prediction_of
from orchestrator.report import gap as gaps
from orchestrator.report.goodput import StepsByAttempt, counted_attempts, goodput
from orchestrator.report.measurement import measure, peak_hbm_bytes
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.report import MemoryReport, NotCompared, Report
from orchestrator.types.run import Run, Step

SCHEMA = 2


def make_report(journal: Journal, clock: Clock = time.time) -> Report:
    """The report of a run, as its journal is now."""
    run = journal.run(clock)
    plan = journal.plan(run.plan_digest)
    steps = {one.number: StepReader(journal.path, one.number).read() for one in run.attempts}
    return compare_run(run, plan, steps, journal.proof(run.plan_digest))


def compare_run(run: Run, plan: Plan, steps: StepsByAttempt, proof: Proof | None = None) -> Report:
    """The report of a run with these steps, compared with the plan of its newest attempt."""
    counted = _counted_steps(run, steps)
    measured = measure(plan, counted)
    not_compared: NotCompared | None = None
    if run.rehearsal and not plan.chip_profile:
        not_compared = "cpu_rehearsal"
    compared = measured if not_compared is None else None
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
        plan_digest=plan.digest,
        chip=plan.chip,
        chips=plan.chips,
        devices=plan.devices,
        pods=plan.pods,
        steps=run.steps,
        steps_done=run.steps_done,
        attempts=len(run.attempts),
        first_loss=counted[0].loss if counted else None,
        last_loss=counted[-1].loss if counted else None,
        forecast=prediction_of(plan),
        measured=measured,
        not_compared=not_compared,
        ratios=gaps.ratios(plan, compared) if compared else (),
        inside_interval=gaps.inside_interval(plan, compared) if compared else None,
        gap=gaps.gap(plan, compared) if compared else None,
        goodput=goodput(run, steps),
        memory=_memory(run, plan, counted, proof),
    )


def _memory(run: Run, plan: Plan, steps: Sequence[Step], proof: Proof | None) -> MemoryReport:
    return MemoryReport(
        forecast_bytes=plan.forecast.memory_bytes_per_device,
        compiled_bytes=proof.peak_hbm_bytes_per_device if proof else None,
        measured_bytes=peak_hbm_bytes(steps),
        hbm_bytes=None if run.rehearsal else plan.forecast.hbm_bytes_per_device,
    )


def _counted_steps(run: Run, steps: StepsByAttempt) -> Sequence[Step]:
    """The steps that count, in order: of each step its last attempt, if it had the newest plan."""
    same_plan = {one.number for one in run.attempts if one.plan_digest == run.plan_digest}
    counts = counted_attempts(steps)
    counted = [
        timed.step
        for number in sorted(steps)
        for timed in steps[number]
        if number in same_plan and counts[timed.step.index] == number
    ]
    return sorted(counted, key=lambda step: step.index)
