"""Render room: a plan beside its runners-up, and what each of them loses."""

from collections.abc import Sequence

from orchestrator.render.text import in_memory, percent, seconds, tabulated
from orchestrator.types.plan import Forecast, Plan

RULE = "loses: per token, midway from lower bound to unoverlapped, as plans are chosen"


def table(plans: Sequence[Plan]) -> list[str]:
    """One row a plan, the chosen one first; losses are per token, as batches may differ."""
    first = plans[0]
    known = all(plan.forecast.step_s.expected is not None for plan in plans)
    figures = ("expected", "MFU") if known else ("lower", "unoverlapped")
    head = ("mesh", "batch", "micro", "remat", "memory", *figures, "loses", "bound")
    rows = [head, *(row(plan, first, known=known) for plan in plans)]
    count = len(plans) - 1
    title = f"the plan and {count} runner{'s' * (count != 1)}-up (data.fsdp.sequence.tensor)"
    return [title, *tabulated(rows, "<>><>>>><"), f"  {RULE}"]


def row(plan: Plan, first: Plan, *, known: bool) -> tuple[str, ...]:
    forecast = plan.forecast
    inside = [str(axis.size) for axis in plan.axes if axis.link == "ici"]
    return (
        ".".join(inside),
        f"{plan.batch.sequences:,}",
        str(plan.batch.microbatches),
        plan.remat,
        in_memory(forecast.memory_bytes_per_device),
        *(expected(forecast) if known else peaks(forecast)),
        loss(plan, first),
        forecast.bound,
    )


def expected(forecast: Forecast) -> tuple[str, str]:
    """The step and its MFU as runs lead to expect them."""
    return seconds(forecast.step_s.expected or 0), percent(forecast.mfu.expected or 0)


def peaks(forecast: Forecast) -> tuple[str, str]:
    """The step at peak rates: all overlapped, and nothing."""
    return seconds(forecast.step_s.lower), seconds(forecast.step_s.unoverlapped)


def loss(plan: Plan, first: Plan) -> str:
    """How much longer a token takes, half way between the two figures."""
    if plan is first:
        return "-"
    return percent(token_s(plan) / token_s(first) - 1)


def token_s(plan: Plan) -> float:
    step_s = plan.forecast.step_s
    return (step_s.lower + step_s.unoverlapped) / 2 / plan.batch.tokens
