"""a rehearsal from its first line to its last."""

from collections.abc import Iterator, Sequence

from orchestrator.journal import run_status
from orchestrator.render.formatting import count, off, percent, scaled, seconds, with_unit
from orchestrator.render.layout import columns, fit, hanging, indent, title
from orchestrator.types.codec import short
from orchestrator.types.plan import Plan
from orchestrator.types.run import Attempt, RecentSteps, Run, State, Step

LARGEST = 4  # lines of a forecast that are named
CLOSE = 0.25  # how far off a forecast on a machine at rest may be
WAITING_FOR_DRIVER = "Ray starts its driver"
AWAITED: dict[State, str] = {
    "submitted": WAITING_FOR_DRIVER,
    "pending": "it waits for slices",
    "starting": "its processes start and compile the step",
    "running": "all steps are done, and it ends",
    "stopping": "it writes a last checkpoint",
}
BUSY = "Other work on this machine slows either; orch calibrate measures it again"


def rehearsal_intro(plan_name: str) -> str:
    """What comes before everything else."""
    return fit(
        f"{plan_name}: a rehearsal. No cluster is named, so this machine runs a small copy;"
        " no chip is asked for.\n"
    )


def resume_intro(run: Run, plan: Plan) -> str:
    """What comes before a rehearsal that goes on."""
    told = f", {run_status.first_line(run.detail)}" if run.detail else ""
    return fit(
        f"{run.run}: a rehearsal, resumed with {plan.pods} pods of {plan.topology} on this machine."
        f"\nIt was {run.state} after {count(run.steps_done)} of {count(run.steps)} steps{told}.\n"
    )


def rehearsal_screen(full: Plan, small: Plan, steps: int, changes: Sequence[str]) -> str:
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
        *(line for name, text in expectation(small) for line in labelled(name, text)),
        f"{steps} steps in {small.hosts} processes, joined by Ray Train on emulated slices",
    ]
    return fit("\n".join(lines) + "\n")


def expectation(plan: Plan) -> Iterator[tuple[str, str]]:
    """What a step should take here, of what that is made, and over which peak its MFU is."""
    forecast = plan.forecast
    if plan.chip_profile is None:
        return
    step_s, reached = forecast.step_s.unoverlapped, forecast.mfu.unoverlapped
    between = ""
    if forecast.step_s.low and forecast.step_s.high:
        between = f" ({seconds(forecast.step_s.low)} to {seconds(forecast.step_s.high)})"
    yield "expected", f"{seconds(step_s)}{between} a step, MFU {percent(reached)}"
    largest = (f"{line.name} {percent(line.value / step_s)}" for line in forecast.time[:LARGEST])
    yield "", ", ".join(largest)
    yield "ceilings", ceilings(plan)


def ceilings(plan: Plan) -> str:
    """The peak that stands for a chip's, and whose it is."""
    assert plan.chip_profile is not None
    machine = plan.forecast.peak_flops_per_s * plan.devices
    return (
        f"measured on this machine, profile {short(plan.chip_profile)}, reaches"
        f" {with_unit(machine, 'FLOP/s')} in {plan.precision.compute}, all devices together"
    )


def devices(plan: Plan) -> str:
    return f"{count(plan.devices)} on {count(plan.hosts)} hosts"


def mesh(plan: Plan) -> str:
    """The axes of a pod that have more than one device."""
    sizes = [
        f"{axis.name} {axis.size}" for axis in plan.axes if axis.link == "ici" and axis.size > 1
    ]
    return ", ".join(sizes) or "one device"


def model(plan: Plan) -> str:
    shape = plan.model
    return f"{scaled(shape.parameters)}: {shape.layers} layers of {count(shape.d_model)}"


def batch(plan: Plan) -> str:
    return f"{count(plan.batch.sequences)} x {count(plan.batch.length)} tokens"


def step_line(one: Step, steps: int) -> str:
    """One step, as it comes."""
    width = len(str(steps))
    return f"step {one.index + 1:{width}} of {steps}  loss {one.loss:.4f}  {seconds(one.step_s)}"


def startup_line(one: Step) -> str | None:
    """What came before the first step of an attempt."""
    if one.startup is None:
        return None
    compiled, state = seconds(one.startup.compile_s), seconds(one.startup.state_s)
    done = one.startup.steps_done
    restored = f", {count(done)} steps restored" if done else ""
    return f"compiled in {compiled}, state ready in {state}{restored}"


def waiting_for(run: Run) -> str:
    """What is waited for while a run that goes on has nothing new."""
    if run.state == "running" and run.steps_done < run.steps:
        return f"step {count(run.steps_done + 1)} of {count(run.steps)}"
    return AWAITED.get(run.state, "")


def why_ended(attempt: Attempt) -> str:
    """Why an attempt ended, in one short line."""
    error = run_status.first_line(attempt.error)
    return f"attempt {attempt.number} ended: {attempt.reason}" + (f": {error}" if error else "")


def steps_traced(profile: tuple[int, int]) -> str:
    first, end = profile
    return f"step {first}" if end == first + 1 else f"steps {first} to {end - 1}"


def new_attempt_line(ended: Attempt, begun: Attempt) -> str:
    """Why another attempt begins, and what of it is not as before."""
    other = f" on {begun.pods} pods" if begun.pods != ended.pods else ""
    return f"again{other}, after {why_ended(ended)}"


def rehearsal_result(run: Run, plan: Plan, recorded: str, next_command: str) -> str:
    """What was measured, what that says about the forecast, and where to look."""
    lines = [f"{run.run}: {run.state}, {run.steps_done} of {run.steps} steps"]
    lines += why(run)
    if run.recent:
        lines += labelled("measured", measured(run.recent))
        lines += labelled("expected", beside(run, run.recent, plan))
        lines += labelled("", BUSY) if is_off(run.recent, plan) else []
    return fit("\n".join([*lines, *where_to_look(run, recorded, next_command)]) + "\n")


def why(run: Run) -> list[str]:
    """Why a run ended so, where there is something to say."""
    lines = enumerate(run.detail.splitlines())
    return [one for at, text in lines for one in labelled("" if at else "why", text)]


def labelled(name: str, text: str) -> list[str]:
    return hanging(f"{name:8} ", text)


def is_off(recent: RecentSteps, plan: Plan) -> bool:
    """Whether the forecast on this machine is further off than a machine at rest explains."""
    ratio = recent.step_s / plan.forecast.step_s.unoverlapped
    return plan.chip_profile is not None and abs(ratio - 1) > CLOSE


def where_to_look(run: Run, recorded: str, next_command: str) -> Iterator[str]:
    """The last lines about a run that has ended, a rehearsal or not."""
    yield f"journal  {run.journal}"
    if run.profile:
        yield f"profile  {run.journal}/profile, an XProf trace of {steps_traced(run.profile)}"
    yield f"mlflow   {recorded}"
    yield f"Next: {next_command}"


def measured(recent: RecentSteps) -> str:
    text = f"{seconds(recent.step_s)} a step, the median of {recent.steps}"
    return text if recent.mfu is None else f"{text}; MFU {percent(recent.mfu)}"


def beside(run: Run, recent: RecentSteps, plan: Plan) -> str:
    """What was expected on the measured ceilings, and how far off that was."""
    if plan.chip_profile is None:
        fewer = "nothing was measured for a plan on other pods than were asked"
        cause = (
            fewer
            if run.pods != run.requested_pods
            else "--no-calibrate left this machine unmeasured"
        )
        return f"unknown: {cause}, so MFU is not known either"
    step_s, name = plan.forecast.step_s.unoverlapped, short(plan.chip_profile)
    text = f"{seconds(step_s)}; measured is {off(recent.step_s, step_s, 'that')}"
    reached = f"MFU {percent(plan.forecast.mfu.unoverlapped)} on this machine's profile {name}"
    return f"{text}; {reached}"
