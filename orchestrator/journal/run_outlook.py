"""What is left of a run, from its journal. Pure."""

from datetime import UTC, datetime

from orchestrator.formatting import DAY_S
from orchestrator.goodput.outlook import SoFar, outlook
from orchestrator.types.outlook import Outlook
from orchestrator.types.plan import Plan
from orchestrator.types.run import Run

UNITS = {"d": DAY_S, "h": 3600.0}


def outlook_of(
    run: Run, plan: Plan, deadline: str | None, median_step_s: float | None = None
) -> Outlook | None:
    """What is left, with the median of all steps, or else of the last ones.

    The forecast of a rehearsal is about chips unless its plan has a profile of this machine.
    """
    recent_s = run.recent.step_s if run.recent else None
    begins = run.last_step is not None and run.last_step.step.startup is not None
    started_s = run.attempts[0].started_at_s if run.attempts else run.read_at_s
    so_far = SoFar(
        now_s=run.read_at_s,
        running_s=max(run.read_at_s - started_s, 0.0),
        steps_done=run.steps_done,
        steps=run.steps,
        median_step_s=median_step_s or recent_s,
        measured_steps=run.steps_done - begins,
        starts=max(len(run.attempts), 1),
        ended=run.ended_at_s is not None or run.state == "lost",
    )
    about_devices = not run.rehearsal or plan.chip_profile is not None
    at_s = None if deadline is None else deadline_at_s(deadline, run.submitted_at_s)
    return outlook(plan, so_far, at_s, forecast=about_devices and plan.ledger_describes_trainer)


def deadline_at_s(deadline: str, submitted_at_s: float) -> float:
    """A date, or a duration since the run was submitted, in seconds since 1970-01-01 UTC."""
    if "-" in deadline:
        return datetime.fromisoformat(deadline).replace(tzinfo=UTC).timestamp()
    return submitted_at_s + float(deadline[:-1]) * UNITS[deadline[-1]]
