"""Show a run while it goes on: how a rehearsal starts, its steps, and how it ended."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from orchestrator.formatting import (
    DAY_S,
    at_least,
    count,
    counted,
    dollars,
    elapsed,
    off,
    percent,
    scaled,
    seconds,
    span,
    with_unit,
)
from orchestrator.journal.run_state import first_line
from orchestrator.network.rematerialization import summary_of
from orchestrator.show.parts import (
    Command,
    Part,
    Screen,
    Table,
    Title,
    fit,
    indent,
    labelled,
    next_step,
    screen,
    warning,
)
from orchestrator.values.codec import short
from orchestrator.values.plan import Estimate, Plan
from orchestrator.values.run import RecentSteps, Run

OF_MACHINE = {"unsteady_profile"}  # warnings about a rehearsal's own forecast
LARGEST = 4  # lines of a forecast that are named
CLOSE = 0.25  # how far the forecast of an idle machine may be off
BUSY = "Other work on this machine changes either; orch calibrate measures it again"


def rehearsal_intro(plan_name: str) -> str:
    return fit(
        f"{plan_name}: a rehearsal. No cluster is configured, so this machine runs a small copy;"
        " no chip is reserved.\n"
    )


def resume_intro(run: Run, plan: Plan) -> str:
    why = f", {first_line(run.detail)}" if run.detail else ""
    return fit(
        f"{run.run}: a rehearsal, resumed with {counted(plan.pods, 'pod')} of {plan.topology} on"
        f" this machine.\nIt was {run.state} after {count(run.steps_done)} of {count(run.steps)}"
        f" steps{why}.\n"
    )


def rehearsal_screen(full: Plan, small: Plan, steps: int, changes: Sequence[str]) -> Screen:
    """Return the plan, its small copy, and what is expected of the copy on this machine."""
    plans = (full, small)
    rows = [
        ("", "plan", "rehearsal"),
        ("pods", *(f"{plan.pods} of {plan.topology}" for plan in plans)),
        ("devices", *(f"{count(plan.devices)} on {counted(plan.hosts, 'host')}" for plan in plans)),
        ("mesh", *(mesh(plan) for plan in plans)),
        ("model", *(model(plan) for plan in plans)),
        ("batch", *(batch(plan) for plan in plans)),
        ("remat", summary_of(full.remat), summary_of(small.remat)),
    ]
    processes = (
        f"{counted(steps, 'step')} in {counted(small.hosts, 'process', 'es')} on emulated slices"
    )
    return screen(
        [Title(left="rehearsal", right=f"plan {short(small.digest)}")],
        indent([Table(rows=rows, columns="<<<")]),
        [
            *(labelled("not rehearsed:", change) for change in changes),
            *facts(expectation(small)),
            *(warning(one.text) for one in small.warnings if one.code in OF_MACHINE),
            processes,
        ],
    )


def facts(rows: Sequence[tuple[str, str]]) -> list[Part]:
    """Return labelled lines, all labels as wide as the widest of any run's."""
    return [Table(rows=[(f"{name:8}", text) for name, text in rows], columns="<w", gap=1)]


def expectation(plan: Plan) -> list[tuple[str, str]]:
    """Return the expected step on this machine, its parts, and the peak that its MFU is over."""
    if plan.chip_profile is None:
        return []
    forecast = plan.forecast
    step_s = forecast.step_s
    interval = ""
    if step_s.low and step_s.high:
        interval = f" ({span(seconds(step_s.low), seconds(step_s.high))})"
    if not plan.ledger_describes_trainer:  # its step was measured; its parts and FLOPs are unknown
        return [("expected", f"{seconds(step_s.unoverlapped)}{interval} a step")]
    reached = percent(forecast.mfu.unoverlapped)
    parts = (
        f"{line.name} {percent(line.value / step_s.unoverlapped)}"
        for line in forecast.time[:LARGEST]
    )
    return [
        ("expected", f"{seconds(step_s.unoverlapped)}{interval} a step, MFU {reached}"),
        ("", ", ".join(parts)),
        ("peak", measured_peak(plan, plan.chip_profile)),
    ]


def measured_peak(plan: Plan, profile: str) -> str:
    """Return the peak of this machine that takes the place of a chip's."""
    peak = with_unit(plan.forecast.peak_flops_per_s * plan.devices, "FLOP/s")
    return (
        f"{peak} in {plan.precision.compute} on all devices together, measured on this machine"
        f" (profile {short(profile)})"
    )


def mesh(plan: Plan) -> str:
    """Return the axes of a pod with more than one device."""
    inside = (axis for axis in plan.axes if axis.link == "ici" and axis.size > 1)
    sizes = [f"{axis.name} {axis.size}" for axis in inside]
    return ", ".join(sizes) or "one device"


def model(plan: Plan) -> str:
    shape = plan.model
    return f"{scaled(shape.parameters)}: {shape.layers} layers of {count(shape.d_model)}"


def batch(plan: Plan) -> str:
    return f"{count(plan.batch.sequences)} x {count(plan.batch.length)} tokens"


def rehearsal_result(run: Run, plan: Plan, record: str, next_command: str) -> Screen:
    """Return the measurement, how far the forecast was off, and where to look."""
    rows = list(why(run))
    if run.recent:
        rows += [("measured", measured(run.recent)), ("expected", forecast(run, run.recent, plan))]
        rows += [("", BUSY)] if is_off(run.recent, plan) else []
    return result(run, rows, record, next_command)


def result(run: Run, rows: Sequence[tuple[str, str]], record: str, next_command: str) -> Screen:
    """Return the last lines about a run that has ended."""
    places = [Command(text=f"journal  {run.journal}")]
    if run.profile:
        trace = f"{run.journal}/profile, an XProf trace of {steps_traced(run.profile)}"
        places.append(Command(text=f"profile  {trace}"))
    places.append(Command(text=record))
    state = f"{run.run}: {run.state}, {run.steps_done} of {run.steps} steps"
    return screen([state, *facts(rows), *places, *next_step(next_command)])


def steps_traced(profile: tuple[int, int]) -> str:
    first, end = profile
    return f"step {first}" if end == first + 1 else f"steps {first} to {end - 1}"


def why(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the reason for which a run ended, a line each."""
    for number, line in enumerate(run.detail.splitlines()):
        yield "" if number else "why", line


def is_off(recent: RecentSteps, plan: Plan) -> bool:
    """Return whether the forecast for this machine is further off than an idle machine explains."""
    ratio = recent.step_s / plan.forecast.step_s.unoverlapped
    return plan.chip_profile is not None and abs(ratio - 1) > CLOSE


def measured(recent: RecentSteps) -> str:
    text = f"{seconds(recent.step_s)} a step, the median of {recent.steps}"
    return text if recent.mfu is None else f"{text}; MFU {percent(recent.mfu)}"


def forecast(run: Run, recent: RecentSteps, plan: Plan) -> str:
    """Return the forecast for this machine, and how far the measurement is from it."""
    if plan.chip_profile is None:
        cause = "--no-calibrate skipped the calibration of this machine"
        if run.pods != run.requested_pods:
            cause = "this number of pods is not calibrated"
        return f"unknown: {cause}, so MFU is unknown too"
    step_s = plan.forecast.step_s.unoverlapped
    known = plan.ledger_describes_trainer
    reached = f" MFU {percent(plan.forecast.mfu.unoverlapped)}," if known else ""
    return (
        f"{seconds(step_s)}; measured is {off(recent.step_s, step_s, 'that')};{reached}"
        f" from this machine's profile {short(plan.chip_profile)}"
    )


# Show a run on a cluster: what the cluster offers, what the run costs, how it ended.


VERSIONS = ("python", "jax", "libtpu", "ray", "code")


def launch_intro(plan_name: str, address: str, origin: str) -> str:
    return fit(f"{plan_name}: a run on the cluster {address}, from {origin}.\n")


def study_launch_intro(name: str, runs: int, address: str, origin: str) -> str:
    order = ", one after another," if runs != 1 else ""
    return fit(f"{name}: {counted(runs, 'run')}{order} on the cluster {address}, from {origin}.\n")


def cluster_screen(address: str, slices: str, hosts: str, storage: str, price: str) -> Screen:
    """Return what a cluster has for a run, and what the run costs."""
    rows = [
        ("slices", slices),
        ("hosts", hosts),
        ("storage", f"{storage}, writable from every host"),
        ("run", price),
    ]
    return screen([f"cluster {address}"], indent([Table(rows=rows, columns="<w")]))


def hosts(number: int, versions: Mapping[str, str]) -> str:
    """Return the number of hosts and the versions that all of them share."""
    shown = [f"{name} {versions[name]}" for name in VERSIONS if name in versions]
    return f"{count(number)}, all with {', '.join(shown)}"


def cost_of_runs(runs: Sequence[tuple[Plan, int]]) -> str:
    """Return the chips, time and money of a run, or of runs that follow each other."""
    largest = max((plan for plan, _ in runs), key=lambda plan: plan.chips)
    chips = counted(largest.chips, f"{largest.chip} chip")
    if len(runs) > 1:
        chips = f"at most {chips}, {counted(len(runs), 'run')}"
    return f"{chips}, {count(sum(steps for _, steps in runs))} steps, {cost(runs)}"


def cost(runs: Sequence[tuple[Plan, int]]) -> str:
    """Return the time and money of a number of steps of each plan."""
    unknown = {plan.trainer for plan, _ in runs if not plan.ledger_describes_trainer}
    if unknown:
        return f"time and cost of {', '.join(sorted(unknown))} are unknown"
    days = [(plan, plan.forecast.days, steps) for plan, steps in runs]
    time = between(days, lambda value: duration(value * DAY_S))
    priced = [(plan, plan.forecast.dollars, steps) for plan, steps in runs if plan.forecast.dollars]
    if len(priced) < len(runs):
        return f"{time}; no price is known"
    return f"{time}, {between(priced, dollars)}"


def between(runs: Sequence[tuple[Plan, Estimate, int]], show: Callable[[float], str]) -> str:
    """Return the sums over the ends of the 80 % intervals; without them, the least it can be."""
    shares = [(estimate, steps * plan.batch.tokens / plan.tokens) for plan, estimate, steps in runs]
    low = sum((estimate.low or estimate.lower) * share for estimate, share in shares)
    if any(estimate.high is None for estimate, _ in shares):
        return at_least(show(low))
    high = sum((estimate.high or 0.0) * share for estimate, share in shares)
    return span(show(low), show(high))


def duration(value_s: float) -> str:
    return elapsed(value_s) if value_s >= 1 else "less than 1 s"


def submitted_screen(run: Run, job: str) -> Screen:
    """Return where the run is, once its job has started."""
    rows = [("run", run.run), ("job", job), ("journal", run.journal)]
    return screen(["submitted"], indent([Table(rows=rows, columns="<<")]))


def detached_text(key: str, follow_command: str, cancel_command: str) -> str:
    """Return what is shown when a person stops following a run."""
    return (
        f"{key} continues without this command; {cancel_command} stops it\nNext: {follow_command}\n"
    )


def launch_result(run: Run, record: str, next_command: str) -> Screen:
    """Return how the run ended, and where to look."""
    rows = list(why(run))
    if run.recent:
        mfu = f", MFU {percent(run.recent.mfu)}" if run.recent.mfu is not None else ""
        rows.append(("measured", f"{seconds(run.recent.step_s)} a step{mfu}"))
    return result(run, rows, record, next_command)
