"""Report room: a journal to a Report, the arrow of this room."""

import time
from collections.abc import Sequence

from orchestrator.journal import Journal, StepReader
from orchestrator.journal.reading import Clock, foretold
from orchestrator.report import gap as gaps
from orchestrator.report.goodput import Steps, goodput, newest
from orchestrator.report.measure import measured, peak_hbm_bytes
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.report import MemoryReport, Report
from orchestrator.types.run import Run, Step

SCHEMA = 1
UNLIKE = (
    "a rehearsal's seconds are those of this machine's CPU, and its forecast is of"
    " {chip} chips: they are not held against each other"
)


def report(journal: Journal, clock: Clock = time.time) -> Report:
    """What the run of a journal came to, beside what its plan said."""
    run = journal.run(clock)
    plan = journal.plan(run.plan_digest)
    steps = {one.number: StepReader(journal.path, one.number).read() for one in run.attempts}
    return reported(run, plan, steps, proof_of(journal, run.plan_digest))


def proof_of(journal: Journal, plan_digest: str) -> Proof | None:
    """The proof that is kept of a plan; None where there is none."""
    if not journal.places.proof(plan_digest).exists():
        return None
    return journal.proof(plan_digest)


def reported(run: Run, plan: Plan, steps: Steps, proof: Proof | None = None) -> Report:
    """A run with its steps by attempt, held against the plan of its newest attempt."""
    forecast, counted = plan.forecast, _counted(run, steps)
    found = measured(plan, counted)
    unlike = UNLIKE.format(chip=plan.chip) if run.rehearsal and not plan.chip_profile else None
    held = found if unlike is None else None
    return Report(
        schema=SCHEMA,
        run=run.run,
        id=run.id,
        name=run.name,
        state=run.state,
        why=run.why,
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
        forecast=foretold(plan),
        measured=found,
        not_compared=unlike,
        ratios=gaps.ratios(plan, held) if held else (),
        inside_interval=gaps.is_inside(plan, held) if held else None,
        gap=gaps.gap(plan, held) if held else None,
        goodput=goodput(run, steps),
        memory=MemoryReport(
            forecast_bytes=forecast.memory_bytes_per_device,
            compiled_bytes=proof.peak_hbm_bytes_per_device if proof else None,
            measured_bytes=peak_hbm_bytes(counted),
            hbm_bytes=None if run.rehearsal else forecast.hbm_bytes_per_device,
        ),
    )


def _counted(run: Run, steps: Steps) -> Sequence[Step]:
    """The steps that count, in order: of one that was redone the newest, and of the attempts those
    on the newest attempt's plan.
    """
    same = {one.number for one in run.attempts if one.plan_digest == run.plan_digest}
    kept = newest(steps)
    found = [
        timed.step
        for number in sorted(steps)
        for timed in steps[number]
        if number in same and kept[timed.step.index] == number
    ]
    return sorted(found, key=lambda step: step.index)
