"""Show the forecast of a sweep: its trials, and what they cost in all."""

from orchestrator.formatting import count, counted, dollars, lasting, percent, seconds, span
from orchestrator.render.scaling_screen import expected
from orchestrator.render.screen_parts import (
    Screen,
    Table,
    heading,
    indent,
    labelled,
    next_step,
    paragraph,
    screen,
)
from orchestrator.render.trials_text import key_title, refusals, warnings
from orchestrator.types.plan import Estimate
from orchestrator.types.sweep import SweepForecast, SweepTrialForecast

Row = tuple[str, ...]


def sweep_screen(forecast: SweepForecast, next_command: str = "") -> Screen:
    """Return a row for each trial with its cost, and the cost of all."""
    rows = [head(forecast), *(row(forecast, one) for one in forecast.trials)]
    trials = counted(len(forecast.trials), "trial")
    names = ", ".join(forecast.vary)
    return screen(
        [heading(f"{forecast.name}: a sweep of {trials} over {names}")],
        indent([paragraph(verdict(forecast), "bold")]),
        indent([Table(rows=rows, columns=">" * len(head(forecast)))]),
        [labelled("note:", one) for one in notes(forecast)],
        [*refusals(forecast), *warnings(forecast)],
        next_step(next_command),
    )


def head(forecast: SweepForecast) -> Row:
    names = tuple(key_title(key, forecast.vary) for key in forecast.vary)
    return ("", *names, "CHIPS", "BATCH", "STEPS", "STEP", "MFU", "TIME", "COST")


def row(forecast: SweepForecast, trial: SweepTrialForecast) -> Row:
    start = (str(trial.number), *(trial.settings[key] for key in forecast.vary))
    plan = trial.planned
    if plan is None:
        return (*start, "-", "-", "-", "-", "-", "no plan", "-")
    return (
        *start,
        count(plan.chips),
        count(plan.sequences),
        count(plan.steps),
        expected(plan.step_s, seconds),
        expected(plan.mfu, percent),
        expected(plan.days, lasting),
        expected(plan.dollars, dollars) if plan.dollars else "-",
    )


def notes(forecast: SweepForecast) -> list[str]:
    """Return what the figures leave out."""
    planned = [one.planned for one in forecast.trials if one.planned]
    if any(plan.step_s.expected is None for plan in planned):
        return ["values are those at best: no known runs on such chips"]
    return []


def verdict(forecast: SweepForecast) -> str:
    """Return what all trials cost."""
    missing = sum(one.planned is None for one in forecast.trials)
    parts = [f"{missing} of {len(forecast.trials)} trials have no plan"] if missing else []
    runs = counted((len(forecast.trials) - missing) * forecast.repeats, "run")
    if forecast.days:
        parts.append(f"{runs} one after another: {total(forecast.days)}")
    if forecast.dollars:
        expects = forecast.dollars.expected is not None
        parts.append(expected(forecast.dollars, dollars) + ("" if expects else " at best"))
    return f"Sweep: {', '.join(parts)}."


def total(days: Estimate) -> str:
    if days.expected is None:
        return f"{lasting(days.lower)} at best"
    if days.low is None or days.high is None:
        return lasting(days.expected)
    return f"{lasting(days.expected)} ({span(lasting(days.low), lasting(days.high))})"
