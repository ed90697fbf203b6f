"""Reports for tests: runs with invented steps."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import journal
from orchestrator.evidence.report import _compare_run
from orchestrator.journal.events import AnyEvent, AttemptEnded, AttemptStarted, Ended
from orchestrator.journal.listing import StudyJournal, StudyRequest
from orchestrator.journal.ownership import Writer
from orchestrator.journal.run_state import Observation, build_run
from orchestrator.journal.steps import StepLog
from orchestrator.planning.planner import make_plan
from orchestrator.values.plan import Plan
from orchestrator.values.report import Report
from orchestrator.values.run import Run, Startup, Step, TimedStep
from orchestrator.values.study import Study
from tests.journals import CLAIM, Clock, run_request, state_after, step, table_of, tiny_plan

Steps = dict[int, list[TimedStep]]
OPENING_S, STATE_S, COMPILE_S, FIRST_S = 10.0, 3.0, 20.0, 4.0


def timed(start_s: float, indices: range, step_s: float, **changes: Any) -> list[TimedStep]:
    """Steps one after another, the first with its startup."""
    opening = Startup(steps_done=indices.start, skipped=(), state_s=STATE_S, compile_s=COMPILE_S)
    now_s = start_s + OPENING_S + STATE_S + COMPILE_S
    planned = []
    for index in indices:
        first = index == indices.start
        one = step(index, step_s=FIRST_S if first else step_s, **({} if first else changes))
        one = replace(one, startup=opening, mfu=None) if first else one
        now_s += one.step_s
        planned.append(TimedStep(at_s=now_s, step=one))
    return planned


def compare(run: Run, plan: Plan, steps: Steps) -> Report:
    """The report of a run with these steps."""
    return _compare_run(run, plan, {number: table_of(taken) for number, taken in steps.items()})


def run_of(*events: AnyEvent, now_s: float = 10_000.0) -> Run:
    """The run with these events."""
    sight = Observation(now_s=now_s, heartbeat_at_s=now_s)
    run = build_run("it-1", "/runs/it-1", state_after(CLAIM, *events), sight)
    return replace(run, plan_digest=tiny_plan().digest)


def preempted_run(step_s: float = 0.5) -> tuple[Run, Steps]:
    """A run whose first attempt is preempted after ten steps; the second repeats the last five."""
    plan = tiny_plan().digest
    first = timed(10.0, range(10), step_s)
    second = timed(100.0, range(5, 20), step_s, data_s=0.1)
    events: list[AnyEvent] = [
        AttemptStarted(at_s=10.0, attempt=1, plan_digest=plan, pods=2),
        AttemptEnded(at_s=60.0, attempt=1, reason="preemption"),
        AttemptStarted(at_s=100.0, attempt=2, plan_digest=plan, pods=2),
        AttemptEnded(at_s=second[-1].at_s + 1, attempt=2, reason="finished"),
        Ended(at_s=second[-1].at_s + 2, state="succeeded"),
    ]
    return run_of(*events), {1: first, 2: second}


def finished_run(
    storage: Path, key: str, *, plan: Plan, steps: Sequence[Step], **changes: Any
) -> Writer:
    """The journal of a successful run with these steps."""
    clock = Clock()
    fields = {"plan": plan, "steps": len(steps)} | changes
    created = journal.create_run(storage, run_request(**fields), key, clock)
    return finish(created.journal, plan, steps, clock)


def finish(recorded: journal.Journal, plan: Plan, steps: Sequence[Step], clock: Clock) -> Writer:
    """Drive a run that was created to a successful end with these steps."""
    writer = journal.claim_run(recorded, clock=clock)
    clock.now_s += 5
    number = writer.start_attempt(plan, tuple(f"slice {pod}" for pod in range(plan.pods)))
    clock.now_s += OPENING_S + STATE_S + COMPILE_S
    with StepLog(writer.journal.path, number, clock=clock) as log:
        for taken in steps:
            clock.now_s += taken.step_s
            log.append(taken)
    writer.end_attempt("finished")
    writer.end_run("succeeded")
    return writer


def finished_study(
    storage: Path,
    study: Study,
    step_s: Callable[[Plan, int], float],
    *,
    steps: int = 6,
    **changes: Any,
) -> StudyJournal:
    """A study in which every repeat of every trial has run."""
    recorded = journal.open_study(storage, StudyRequest(study=study, steps=steps), {})
    plans = {trial.number: make_plan(trial.spec) for trial in study.trials}
    for repeat in range(1, study.repeats + 1):
        for trial in study.trials:
            plan = plans[trial.number]
            started = journal.start_trial(recorded, trial.number, repeat)
            taken = [
                taken_step.step for taken_step in timed(0.0, range(steps), step_s(plan, repeat))
            ]
            fields = {"spec": trial.spec, "study": recorded.key} | changes
            finished_run(storage, started.run, plan=plan, steps=taken, **fields)
    return recorded
