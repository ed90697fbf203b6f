"""The verdict on a plan: five lines that come first, and one sentence that comes last."""

from collections.abc import Callable, Sequence

from orchestrator.formatting import (
    at_least,
    count,
    counted,
    dollars,
    in_memory,
    lasting,
    percent,
    scaled,
)
from orchestrator.render.plan_text import INTERVAL, likely, time_and_cost
from orchestrator.render.resource_names import in_words
from orchestrator.render.screen_parts import Part, Table
from orchestrator.types.offers import DeadlineOdds
from orchestrator.types.plan import Estimate, Forecast, Plan


def verdict_lines(plan: Plan, compiled: str, odds: DeadlineOdds | None = None) -> list[Part]:
    """Return whether it fits, its time, cost and MFU with their intervals, and what binds it; then
    how likely the deadline holds, what a shorter run takes, and what the compiler says where it was
    asked.
    """
    if not plan.ledger_describes_trainer:
        return []
    more = [("deadline", deadline_text(odds))] if odds else []
    if plan.run_share < 1:
        more.append(("this run", shorter_run(plan)))
    if compiled:
        more.append(("proof", compiled))
    return [verdict_table(plan.forecast, plan.tokens, more)]


def verdict_table(forecast: Forecast, tokens: float, more: Sequence[tuple[str, str]] = ()) -> Table:
    """Return the five lines of a forecast, and more lines below them."""
    rows = [
        ("fits", fits_text(forecast)),
        ("time", time_text(forecast, tokens)),
        ("cost", cost_text(forecast)),
        ("MFU", mfu_text(forecast.mfu)),
        ("bound by", bound_text(forecast)),
    ]
    styles = dict.fromkeys(range(1, len(rows)), "bold")
    styles[0] = "green" if forecast.fits else "red"
    return Table(rows=[*rows, *more], columns="<w", row_styles=styles)


def fits_text(forecast: Forecast) -> str:
    used, limit = forecast.memory_bytes_per_device, forecast.hbm_bytes_per_device
    text = f"{in_memory(used)} of {in_memory(limit)} per device ({percent(used / limit)})"
    if forecast.host_memory_bytes_per_chip:
        on_host = in_memory(forecast.host_memory_bytes_per_chip)
        known = forecast.host_bytes_per_chip
        of = f" of {in_memory(known)}" if known else ""
        text += f", {on_host}{of} of the host per chip"
    return f"{'yes' if forecast.fits else 'no'}: {text}"


def time_text(forecast: Forecast, tokens: float) -> str:
    return f"{with_interval(forecast.days, lasting)}; {scaled(tokens)} tokens"


def cost_text(forecast: Forecast) -> str:
    if forecast.dollars is None:
        return "unknown: no price of a chip-hour (resources.dollars_per_chip_hour)"
    price = f"${forecast.dollars_per_chip_hour:,.2f} a chip-hour"
    return f"{with_interval(forecast.dollars, dollars)}; {price}"


def mfu_text(mfu: Estimate) -> str:
    """Return the expected MFU, and the most that any run can reach."""
    most = f"at most {percent(mfu.lower)}"
    if mfu.expected is None:
        return most
    return f"{percent(mfu.expected)}, {INTERVAL} {likely(mfu, percent)}; {most}"


def deadline_text(odds: DeadlineOdds) -> str:
    """Return how likely the deadline holds, for a run that begins now."""
    within = "" if odds.deadline == f"{odds.days:g}d" else f", in {lasting(odds.days)}"
    if odds.odds is None:
        return f"{odds.deadline}{within}: nothing is expected, so how likely is unknown"
    return f"{odds.deadline}{within}: {percent(odds.odds)} likely, if it begins now"


def bound_text(forecast: Forecast) -> str:
    text = f"{forecast.bound}: {in_words(forecast.bound)}"
    return f"{text}, {ahead}" if (ahead := ahead_of_next(forecast)) else text


def ahead_of_next(forecast: Forecast) -> str:
    """Return how much longer the bottleneck takes than the next resource."""
    margin = forecast.bound_by
    if not margin:
        return ""
    longer = (
        f"{percent(margin)} longer than" if margin < 1 else f"{1 + margin:.1f} times as long as"
    )
    return f"{longer} the next"


def with_interval(estimate: Estimate, show: Callable[[float], str]) -> str:
    """Return the expected value with its interval; without one, the least it can be."""
    if estimate.expected is None:
        return at_least(show(estimate.lower))
    return f"{show(estimate.expected)}, {INTERVAL} {likely(estimate, show)}"


def shorter_run(plan: Plan) -> str:
    """Return what a run takes and costs that ends before all tokens are used."""
    steps = f"{count(plan.run_steps or 0)} of {count(plan.total_steps)} steps"
    return f"{steps}: {', '.join(time_and_cost(plan.forecast, plan.run_share))}"


def verdict(plan: Plan) -> str:
    """Return the plan in one line."""
    forecast = plan.forecast
    if not plan.ledger_describes_trainer:
        return f"Plan: a mesh for {plan.trainer}, whose memory, time and cost are unknown."
    parts = ["fits" if forecast.fits else "does not fit", f"bound by {forecast.bound}"]
    parts += time_and_cost(forecast, 1)
    if plan.run_share == 1:
        return f"Plan: {', '.join(parts)}."
    shorter = ", ".join(time_and_cost(forecast, plan.run_share))
    return f"Plan: {', '.join(parts)}; {counted(plan.run_steps or 0, 'step')}: {shorter}."
