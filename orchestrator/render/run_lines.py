"""Lines of a run that is followed: what it waits for, its steps, and its attempts."""

from orchestrator.formatting import count, counted, seconds
from orchestrator.journal.run_status import first_line
from orchestrator.types.run import Attempt, Run, State, Step

WAITING_FOR_DRIVER = "the driver starts"
WAITING: dict[State, str] = {
    "submitted": WAITING_FOR_DRIVER,
    "pending": "waiting for slices",
    "starting": "processes start and compile the step",
    "running": "all steps are done; the run ends",
    "stopping": "writing a last checkpoint",
}


def step_line(one: Step, steps: int) -> str:
    width = len(str(steps))
    held_out = one.own_evaluation
    more = f"  held-out loss {held_out.loss:.4f}" if held_out else ""
    took = seconds(one.step_s)
    return f"step {one.index + 1:{width}} of {steps}  loss {one.loss:.4f}  {took}{more}"


def startup_line(one: Step) -> str | None:
    """Return what came before the first step of an attempt."""
    if one.startup is None:
        return None
    compiled, state = seconds(one.startup.compile_s), seconds(one.startup.state_s)
    done = one.startup.steps_done
    restored = f", {count(done)} steps restored" if done else ""
    return f"compiled in {compiled}, state ready in {state}{restored}"


def waiting_for(run: Run) -> str:
    """Return what a run waits for while it shows nothing new."""
    if run.state == "running" and run.steps_done < run.steps:
        return f"step {count(run.steps_done + 1)} of {count(run.steps)}"
    return WAITING.get(run.state, "")


def new_attempt_line(ended: Attempt, started: Attempt) -> str:
    """Return why another attempt starts, and on how many pods if that changed."""
    other = f" on {counted(started.pods, 'pod')}" if started.pods != ended.pods else ""
    error = first_line(ended.error)
    why = f"attempt {ended.number} ended: {ended.reason}" + (f": {error}" if error else "")
    return f"new attempt{other}; {why}"
