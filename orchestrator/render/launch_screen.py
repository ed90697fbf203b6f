"""a run on a named cluster: what it asks, what it costs, how it ended."""

from collections.abc import Mapping, Sequence

from orchestrator.render.formatting import DAY_S, count, dollars, elapsed, percent, seconds, span
from orchestrator.render.layout import columns, fit, indent
from orchestrator.render.rehearsal_screen import where_to_look, why
from orchestrator.types.plan import Estimate, Plan
from orchestrator.types.run import Run

CENT = 0.01


def launch_intro(plan_name: str, address: str, place: str) -> str:
    """What comes before everything else."""
    return fit(f"{plan_name}: a run on the cluster {address}, which {place} names.\n")


def study_launch_intro(name: str, runs: int, address: str, place: str) -> str:
    """The same, of a study's runs."""
    these = f"{runs} run{'s, one after another,' if runs != 1 else ''}"
    return fit(f"{name}: {these} on the cluster {address}, which {place} names.\n")


def cluster_problems(address: str, faults: Sequence[str]) -> str:
    """Why a cluster cannot serve a run: all that is missing."""
    return "\n".join([f"{address} cannot serve this run", *(f"  {fault}" for fault in faults)])


def cluster_screen(address: str, slices: str, hosts: str, storage: str, price: str) -> str:
    """What a cluster has for a run, and what the run comes to."""
    rows = [
        ("slices", slices),
        ("hosts", hosts),
        ("storage", f"{storage}, written from all of them"),
        ("asks for", price),
    ]
    return fit("\n".join([f"cluster {address}", "", *indent(columns(rows, "<<"))]))


def hosts(number: int, versions: Mapping[str, str]) -> str:
    """What all hosts agree on."""
    shown = ", ".join(
        f"{name} {versions[name]}"
        for name in ("python", "jax", "libtpu", "ray", "code")
        if name in versions
    )
    return f"{count(number)}, all with {shown}"


def cost_of_run(plan: Plan, steps: int) -> str:
    """Chips, time and money of so many steps."""
    return (
        f"{count(plan.chips)} {plan.chip} chips, {count(steps)} steps, {amounts([(plan, steps)])}"
    )


def cost_of_runs(runs: Sequence[tuple[Plan, int]]) -> str:
    """Chips, time and money of runs that follow each other."""
    most = max((plan for plan, _ in runs), key=lambda plan: plan.chips)
    these = (
        f"{len(runs)} run{'s' * (len(runs) != 1)}, {count(sum(steps for _, steps in runs))} steps"
    )
    return f"{count(most.chips)} {most.chip} chips at most, {these}, {amounts(runs)}"


def amounts(runs: Sequence[tuple[Plan, int]]) -> str:
    """Time and money of so many steps of each plan."""
    time = span(
        *(duration(days * DAY_S) for days in ends([(p, p.forecast.days, n) for p, n in runs]))
    )
    priced = [(p, p.forecast.dollars, n) for p, n in runs if p.forecast.dollars]
    if len(priced) < len(runs):
        return f"{time}; no price is known"
    return f"{time}, {span(*(money(value) for value in ends(priced)))}"


def ends(runs: Sequence[tuple[Plan, Estimate, int]]) -> tuple[float, float]:
    """Sums of what is expected, where that is known; else from peak rates."""
    shares = [(bounds, steps * plan.batch.tokens / plan.tokens) for plan, bounds, steps in runs]
    low = sum((bounds.low or bounds.lower) * share for bounds, share in shares)
    return low, sum((bounds.high or bounds.unoverlapped) * share for bounds, share in shares)


def duration(value_s: float) -> str:
    return elapsed(value_s) if value_s >= 1 else "less than 1 s"


def money(value: float) -> str:
    return dollars(value) if value >= CENT else "less than $0.01"


def submitted_screen(run: Run, job: str) -> str:
    """Where the run is, once its job has started."""
    rows = [("run", run.run), ("job", job), ("journal", run.journal)]
    return "\n".join(["submitted", "", *(f"  {line}" for line in columns(rows, "<<"))]) + "\n"


def detached_text(key: str, following: str, cancelling: str) -> str:
    """What is said to somebody who looks away from a run that goes on."""
    return f"{key} goes on without this command; {cancelling} stops it\nNext: {following}\n"


def launch_result(run: Run, recorded: str, next_command: str) -> str:
    """How the run ended, and where to look."""
    lines = [f"{run.run}: {run.state}, {run.steps_done} of {run.steps} steps"]
    lines += why(run)
    if run.recent:
        mfu = f", MFU {percent(run.recent.mfu)}" if run.recent.mfu is not None else ""
        lines.append(f"measured {seconds(run.recent.step_s)} a step{mfu}")
    return fit("\n".join([*lines, *where_to_look(run, recorded, next_command)]) + "\n")
