"""Show a run on a cluster: what the cluster offers, what the run costs, how it ended."""

from collections.abc import Callable, Mapping, Sequence

from orchestrator.formatting import (
    DAY_S,
    at_least,
    count,
    counted,
    dollars,
    elapsed,
    percent,
    seconds,
    span,
)
from orchestrator.render.rehearsal_screen import result, why
from orchestrator.render.screen_parts import Screen, Table, fit, indent, screen
from orchestrator.types.plan import Estimate, Plan
from orchestrator.types.run import Run

VERSIONS = ("python", "jax", "libtpu", "ray", "code")


def launch_intro(plan_name: str, address: str, origin: str) -> str:
    return fit(f"{plan_name}: a run on the cluster {address}, from {origin}.\n")


def study_launch_intro(name: str, runs: int, address: str, origin: str) -> str:
    order = ", one after another," if runs != 1 else ""
    return fit(f"{name}: {counted(runs, 'run')}{order} on the cluster {address}, from {origin}.\n")


def cluster_problems(address: str, faults: Sequence[str]) -> str:
    """Return every reason why a cluster cannot run a plan."""
    return "\n".join([f"{address} cannot run this", *(f"  {fault}" for fault in faults)])


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
