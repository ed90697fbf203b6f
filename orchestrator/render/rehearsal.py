"""Render room: a rehearsal from its first line to its last."""

from collections.abc import Sequence

from orchestrator.journal import fold
from orchestrator.render.text import columns, count, indent, scaled, seconds, title
from orchestrator.stations.codec import short
from orchestrator.stations.plan import AXES, Plan
from orchestrator.stations.run import Attempt, Run, Step


def first_line(plan_name: str) -> str:
    """What comes before everything else."""
    return (
        f"{plan_name}: a rehearsal. No cluster is named, so this machine runs a small copy;"
        " no chip is asked for.\n"
    )


def resumed(run: Run, plan: Plan) -> str:
    """What comes before a rehearsal that goes on."""
    told = f", {fold.first_line(run.why)}" if run.why else ""
    return (
        f"{run.run}: a rehearsal, resumed with {plan.pods} pods of {plan.topology} on this machine."
        f"\nIt was {run.state} after {count(run.steps_done)} of {count(run.steps)} steps{told}.\n"
    )


def opening(full: Plan, small: Plan, steps: int, changes: Sequence[str]) -> str:
    """The rehearsal's own plan beside the plan that it is a copy of."""
    rows = [
        ("", "plan", "rehearsal"),
        ("pods", *(f"{plan.pods} of {plan.topology}" for plan in (full, small))),
        ("devices", *(devices(plan) for plan in (full, small))),
        ("mesh", *(mesh(plan) for plan in (full, small))),
        ("model", *(model(plan) for plan in (full, small))),
        ("batch", *(batch(plan) for plan in (full, small))),
        ("remat", full.remat, small.remat),
    ]
    lines = [
        title("rehearsal", f"plan {short(small.digest)}"),
        "",
        *indent(columns(rows, "<<<")),
        "",
        *(f"not rehearsed: {change}" for change in changes),
        f"{steps} steps in {small.hosts} processes, joined by Ray Train on emulated slices",
    ]
    return "\n".join(lines) + "\n"


def devices(plan: Plan) -> str:
    return f"{count(plan.devices)} on {count(plan.hosts)} hosts"


def mesh(plan: Plan) -> str:
    """The axes that have more than one device."""
    sizes = [f"{axis} {plan.mesh[axis]}" for axis in AXES if plan.mesh[axis] > 1]
    return ", ".join(sizes) or "one device"


def model(plan: Plan) -> str:
    shape = plan.model
    return f"{scaled(shape.parameters)}: {shape.layers} layers of {count(shape.d_model)}"


def batch(plan: Plan) -> str:
    return f"{count(plan.batch.sequences)} x {count(plan.batch.length)} tokens"


def step(one: Step, steps: int) -> str:
    """One step, as it comes."""
    width = len(str(steps))
    return f"step {one.index + 1:{width}} of {steps}  loss {one.loss:.4f}  {seconds(one.step_s)}"


def begun(one: Step) -> str | None:
    """What came before the first step of an attempt."""
    if one.opening is None:
        return None
    compiled, state = seconds(one.opening.compile_s), seconds(one.opening.state_s)
    done = one.opening.steps_done
    restored = f", {count(done)} steps restored" if done else ""
    return f"compiled in {compiled}, state ready in {state}{restored}"


def why_ended(attempt: Attempt) -> str:
    """Why an attempt ended, in one short line."""
    error = fold.first_line(attempt.error)
    return f"attempt {attempt.number} ended: {attempt.reason}" + (f": {error}" if error else "")


def steps_traced(profile: tuple[int, int]) -> str:
    first, end = profile
    return f"step {first}" if end == first + 1 else f"steps {first} to {end - 1}"


def ending(run: Run, next_command: str) -> str:
    """What was measured, what that says about the forecast, and where to look."""
    lines = [f"{run.run}: {run.state}, {run.steps_done} of {run.steps} steps"]
    if run.why:
        lines.append(f"why      {run.why}")
    if run.recent:
        per_step = f"{seconds(run.recent.step_s)} a step, the median of {run.recent.steps}"
        lines.append(f"measured {per_step}")
        lines.append("forecast none to hold it against: these CPU devices have no peak, so no MFU")
    lines.append(f"journal  {run.journal}")
    if run.profile:
        traced = f"an XProf trace of {steps_traced(run.profile)}"
        lines.append(f"profile  {run.journal}/profile, {traced}")
    return "\n".join([*lines, f"Next: {next_command}"]) + "\n"
