"""Show a study's forecast: the predicted scaling, trial by trial."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.formatting import count, counted, dollars, percent, seconds
from orchestrator.render.screen_parts import (
    Screen,
    Table,
    heading,
    indent,
    next_step,
    paragraph,
    screen,
)
from orchestrator.render.trials_text import key_title, refusals, warnings
from orchestrator.types.plan import Estimate
from orchestrator.types.scaling import PlannedTrial, ScalingForecast, TrialForecast

SCALINGS = {
    "strong": "strong scaling, with the same batch in every trial",
    "weak": "weak scaling, with a batch that grows with the pods",
}


def scaling_screen(forecast: ScalingForecast, next_command: str = "") -> Screen:
    """Return a row for each trial: its step, its efficiency, its bottleneck and its cost."""
    rows = [head(forecast), *(row(forecast, one) for one in forecast.trials)]
    trials = counted(len(forecast.trials), "trial")
    columns = ">" + ">" * len(forecast.vary) + ">>>>><>"
    return screen(
        [heading(f"{forecast.name}: {trials}, {SCALINGS[forecast.scaling]}")],
        indent([paragraph(verdict(forecast), "bold")]),
        indent([Table(rows=rows, columns=columns)]),
        indent([legend(forecast)]),
        [*refusals(forecast), *warnings(forecast)],
        next_step(next_command),
    )


def head(forecast: ScalingForecast) -> tuple[str, ...]:
    names = tuple(key_title(key, forecast.vary) for key in forecast.vary)
    return ("", *names, "CHIPS", "BATCH", "STEP", "MFU", "EFFICIENCY", "BOTTLENECK", "COST")


def row(forecast: ScalingForecast, trial: TrialForecast) -> tuple[str, ...]:
    start = (str(trial.number), *(trial.settings[key] for key in forecast.vary))
    plan = trial.planned
    if plan is None:
        return (*start, "-", "-", "-", "-", "-", "no plan", "-")
    return (
        *start,
        count(plan.chips),
        count(plan.sequences),
        expected(plan.step_s, seconds),
        expected(plan.mfu, percent),
        expected(plan.efficiency, percent),
        plan.bound,
        expected(plan.dollars, dollars) if plan.dollars else "-",
    )


def expected(estimate: Estimate, show: Callable[[float], str]) -> str:
    """Return the expected value; if unknown, what it is at best."""
    return show(estimate.likeliest)


def legend(forecast: ScalingForecast) -> str:
    planned: Sequence[PlannedTrial] = [one.planned for one in forecast.trials if one.planned]
    has_estimate = all(plan.step_s.expected is not None for plan in planned)
    what = "Expected values" if has_estimate else "Values at best, without known runs"
    return f"{what}. Efficiency is tokens per second and chip, over those of the smallest trial."


@dataclass(frozen=True)
class TrialEfficiency:
    """The scaling efficiency of a trial, as a number and as text."""

    chips: int
    fraction: float
    text: str
    series: Mapping[str, str]


def verdict(forecast: ScalingForecast) -> str:
    """Return the efficiency of the largest trial with a plan."""
    planned = [(one, one.planned) for one in forecast.trials if one.planned]
    missing = len(forecast.trials) - len(planned)
    parts = [f"{missing} of {len(forecast.trials)} trials have no plan"] if missing else []
    if planned:
        efficiencies = [
            TrialEfficiency(
                plan.chips,
                plan.efficiency.expected or plan.efficiency.lower,
                expected(plan.efficiency, percent),
                one.series,
            )
            for one, plan in planned
        ]
        parts.append(scaling_efficiency(efficiencies, forecast.vary, "chips"))
    return f"Study: {', '.join(parts)}."


def scaling_efficiency(trials: Sequence[TrialEfficiency], vary: Sequence[str], chips: str) -> str:
    """Return the efficiency of the largest trial; of several series, the lowest and highest."""
    largest: dict[str, TrialEfficiency] = {}
    for one in trials:
        name = ", ".join(f"{key_title(key, vary).lower()} {one.series[key]}" for key in one.series)
        if name not in largest or one.chips > largest[name].chips:
            largest[name] = one
    texts = {name: f"{one.text} on {count(one.chips)} {chips}" for name, one in largest.items()}
    if len(texts) == 1:
        return f"scaling efficiency is {next(iter(texts.values()))}"
    lowest, *_, highest = sorted(largest, key=lambda name: largest[name].fraction)
    ends = (f"{texts[name]} ({name})" for name in (lowest, highest))
    return f"scaling efficiency is between {' and '.join(ends)}"
