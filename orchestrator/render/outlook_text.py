"""What is left of a run, as text: days, dollars, and whether the deadline still holds."""

from datetime import UTC, datetime

from orchestrator.formatting import dollars, lasting, percent, span
from orchestrator.types.outlook import Outlook


def outlook_rows(outlook: Outlook) -> list[tuple[str, str]]:
    """Return a name and a text for each thing that is known."""
    rows = [("left", left_text(outlook))]
    if cost := cost_text(outlook):
        rows.append(("cost", cost))
    if deadline := deadline_text(outlook):
        rows.append(("deadline", deadline))
    return rows


def left_text(outlook: Outlook) -> str:
    days = outlook.days_left
    interval = span(lasting(days.low), lasting(days.high))
    ends = span(moment(outlook.ends_at_s.low), moment(outlook.ends_at_s.high))
    return (
        f"{lasting(days.value)} (80 % interval {interval}), until {ends};"
        f" goodput {percent(outlook.goodput.value)}"
    )


def cost_text(outlook: Outlook) -> str:
    if outlook.dollars_so_far is None or outlook.dollars_left is None:
        return ""
    left = span(dollars(outlook.dollars_left.low), dollars(outlook.dollars_left.high))
    return f"{dollars(outlook.dollars_so_far)} so far, {left} to come"


def deadline_text(outlook: Outlook) -> str:
    if outlook.deadline_at_s is None or outlook.odds is None:
        return ""
    return f"{moment(outlook.deadline_at_s)}, {percent(outlook.odds)} likely"


def moment(at_s: float) -> str:
    """Return a time of day in UTC, to the minute."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M}"


def outlook_text(outlook: Outlook) -> str:
    """Return all of it in one sentence."""
    return "; ".join(f"{name}: {text}" for name, text in outlook_rows(outlook)) + "."
