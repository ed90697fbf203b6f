"""The part of a plan's screen about goodput: where time goes that trains nothing, and saves."""

from orchestrator.formatting import (
    DAY_S,
    count,
    counted,
    elapsed,
    lasting,
    percent,
    seconds,
    span,
    to_digits,
    with_unit,
)
from orchestrator.render.screen_parts import Part, Table, section
from orchestrator.types.goodput import GoodputForecast, GoodputLine, LossKind
from orchestrator.types.plan import Plan

SMALL_LOSS = 0.01  # of all time: smaller losses are shown as one line
LOSSES: dict[LossKind, str] = {
    "saving": "steps wait for saves",
    "lost_steps": "steps done again",
    "detection": "until a failure is seen",
    "waiting": "waiting for a slice",
    "restart": "starting processes",
    "restore": "restoring",
    "evaluation": "evaluating",
    "fewer_pods": "running on fewer pods",
    "stage_changes": "changes of stages",
}


def goodput_part(plan: Plan, *, full: bool) -> list[Part]:
    """Return the losses, the failures behind them, and what a save needs."""
    forecast = plan.forecast.goodput
    if not plan.ledger_describes_trainer:
        return []
    notes = [failures_text(forecast), save_text(forecast)]
    shown, small = split_losses(forecast, 0 if full else SMALL_LOSS)
    rows = [loss_row(line) for line in shown]
    if small:
        rows.append((counted(len(small), "smaller loss", "es"), "", "", percent(sum(small))))
    sizes = [*(line.share for line in shown), *([sum(small)] if small else []), 0]
    table = Table(
        rows=[*rows, total_row(forecast)],
        columns="<<<>",
        bars=sizes,
        row_styles={len(rows): "bold"},
    )
    return section("goodput", [table, *(note for note in notes if note)])


def split_losses(forecast: GoodputForecast, least: float) -> tuple[list[GoodputLine], list[float]]:
    """Return the losses that are shown, the largest first, and the shares of the smaller ones;
    none where the spec states the goodput.
    """
    if forecast.stated:
        return [], []
    shown = [line for line in forecast.lines if line.share >= least]
    small = [line.share for line in forecast.lines if line.share < least]
    return sorted(shown, key=lambda line: -line.share), small


def loss_row(line: GoodputLine) -> tuple[str, ...]:
    often = f"x {to_digits(line.per_day, 3)} a day"
    return LOSSES[line.kind], seconds(line.each_s), often, percent(line.share)


def total_row(forecast: GoodputForecast) -> tuple[str, ...]:
    if forecast.stated:
        return "goodput", "", "of the spec", percent(forecast.expected)
    interval = f"80 % interval {span(percent(forecast.low), percent(forecast.high))}"
    return "goodput", "", interval, percent(forecast.expected)


def failures_text(forecast: GoodputForecast) -> str:
    """Return how often something fails, and how that is known."""
    between_s = forecast.seconds_between_failures
    if between_s is None:
        return ""
    inputs = forecast.inputs
    rates = "rates of another chip, assumed" if inputs.assumed else "rates"
    names = ", ".join(inputs.sources["failures_per_day"])
    return f"a failure every {elapsed(between_s)} ({rates}: {names})"


def save_text(forecast: GoodputForecast) -> str:
    """Return the bytes of a save, its times, and the best interval."""
    save, every = forecast.inputs.save, forecast.every_steps
    if not save.write_s.value:
        return ""
    text = (
        f"a save every {count(every)} steps ({lasting(forecast.every_s / DAY_S)}):"
        f" {with_unit(save.bytes, 'B')}, of a chip {with_unit(save.host_bytes_per_chip, 'B')};"
        f" steps wait {seconds(save.blocking_s.value)}, the storage takes"
        f" {seconds(save.write_s.value)} at {with_unit(save.storage_bytes_per_s.value, 'B/s')}"
        f" and needs {with_unit(forecast.needed_bytes_per_s, 'B/s')}"
    )
    best = forecast.best_every_steps
    if every == best or forecast.stated or forecast.seconds_between_failures is None:
        return text
    return f"{text}; best every {count(best)} steps ({percent(forecast.best)})"
