"""Render room: a study as tables: its predicted scaling."""

from collections.abc import Callable, Iterable

from orchestrator.render.text import columns, count, dollars, indent, percent, seconds, span
from orchestrator.stations.plan import Bounds
from orchestrator.stations.study import Planned, StudyForecast, TrialForecast

SCALINGS = {
    "strong": "strong scaling: every trial has the same batch",
    "weak": "weak scaling: the batch grows with the pods",
}


def screen(found: StudyForecast, next_command: str = "") -> str:
    """Every trial in a row: what it takes, what that is worth beside the smallest, what binds."""
    count_ = len(found.trials)
    trials = f"{count_} trial{'s' * (count_ != 1)}"
    table = columns([head(found), *(row(found, one) for one in found.trials)], alignment(found))
    blocks = [
        [f"{found.name}: {trials}, {SCALINGS[found.scaling]}"],
        indent(table),
        indent(legend()),
        refusals(found),
        [verdict(found), *([f"Next: {next_command}"] if next_command else [])],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def head(found: StudyForecast) -> tuple[str, ...]:
    names = tuple(title(key, found.vary) for key in found.vary)
    return ("", *names, "CHIPS", "BATCH", "STEP", "MFU", "EFFICIENCY", "BINDS", "DOLLARS")


def title(key: str, keys: Iterable[str]) -> str:
    """The last part of a key, and more of it where two end alike."""
    last = key.rpartition(".")[2]
    alike = sum(one.rpartition(".")[2] == last for one in keys) > 1
    return (key if alike else last).upper()


def alignment(found: StudyForecast) -> str:
    return ">" + ">" * len(found.vary) + ">>>>><>"


def row(found: StudyForecast, trial: TrialForecast) -> tuple[str, ...]:
    start = (str(trial.number), *(trial.settings[key] for key in found.vary))
    if trial.planned is None:
        return (*start, "-", "-", "-", "-", "-", "no plan", "-")
    return (*start, *cells(trial.planned))


def cells(plan: Planned) -> tuple[str, ...]:
    money = both(plan.dollars, dollars) if plan.dollars else "-"
    return (
        count(plan.chips),
        count(plan.sequences),
        both(plan.step_s, seconds),
        fused(percent(plan.mfu.roofline), percent(plan.mfu.unoverlapped)),
        both(plan.efficiency, percent),
        plan.bound,
        money,
    )


def both(bounds: Bounds, show: Callable[[float], str]) -> str:
    return fused(show(bounds.lower), show(bounds.unoverlapped))


def fused(low: str, high: str) -> str:
    """Two quantities with their unit once where it is the same: 127 to 422 ms."""
    number, _, unit = low.partition(" ")
    return span(number if low != high and unit and high.endswith(f" {unit}") else low, high)


def legend() -> list[str]:
    return [
        "From the lower bound to nothing overlapped. Efficiency is tokens per second and chip over",
        "those of the smallest trial.",
    ]


def refusals(found: StudyForecast) -> list[str]:
    """Why trials have no plan; trials that are refused alike are told together."""
    reasons: dict[str, list[str]] = {}
    for one in found.trials:
        if one.refused:
            reasons.setdefault(one.refused, []).append(str(one.number))
    return [
        f"warning: no plan for trial {', '.join(numbers)}: {why}"
        for why, numbers in reasons.items()
    ]


def verdict(found: StudyForecast) -> str:
    """The largest trial that has a plan, beside the smallest."""
    planned = [one.planned for one in found.trials if one.planned]
    missing = len(found.trials) - len(planned)
    parts = [f"{missing} of {len(found.trials)} trials cannot be served"] if missing else []
    if planned:
        largest = max(planned, key=lambda one: one.chips)
        kept = both(largest.efficiency, percent)
        parts.append(
            f"{count(largest.chips)} chips keep {kept} of the smallest trial's tokens per second"
            " and chip"
        )
    return f"Study: {', '.join(parts)}."
