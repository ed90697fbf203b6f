"""Render room: a plan beside its runners-up, and what each of them loses."""

from orchestrator.render.text import columns, in_memory, indent, percent, seconds
from orchestrator.stations.plan import Plan


def table(plans: list[Plan]) -> str:
    """One row a plan, the chosen one first; losses are per token, as batches may differ."""
    first = plans[0]
    head = ("mesh", "batch", "micro", "remat", "memory", "lower", "unoverlapped", "loses", "bound")
    rows = [head, *(row(plan, first) for plan in plans)]
    lines = indent(columns(rows, "<>><>>>><"))
    count = len(plans) - 1
    title = f"the plan and {count} runner{'s' * (count != 1)}-up (data.fsdp.sequence.tensor)"
    return "\n".join([title, *lines]) + "\n"


def row(plan: Plan, first: Plan) -> tuple[str, ...]:
    forecast = plan.forecast
    inside = [str(axis.size) for axis in plan.axes if axis.link == "ici"]
    return (
        ".".join(inside),
        f"{plan.batch.sequences:,}",
        str(plan.batch.microbatches),
        plan.remat,
        in_memory(forecast.memory_bytes_per_device),
        seconds(forecast.step_s.lower),
        seconds(forecast.step_s.unoverlapped),
        loss(plan, first),
        forecast.bound,
    )


def loss(plan: Plan, first: Plan) -> str:
    """How much longer a token takes, half way between the two figures."""
    if plan is first:
        return "-"
    return percent(token_s(plan) / token_s(first) - 1)


def token_s(plan: Plan) -> float:
    step_s = plan.forecast.step_s
    return (step_s.lower + step_s.unoverlapped) / 2 / plan.batch.tokens
