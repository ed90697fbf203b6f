"""Show a study's forecast: the predicted scaling, trial by trial."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.formatting import (
    count,
    counted,
    dollars,
    percent,
    scaled,
    seconds,
    span,
    to_digits,
)
from orchestrator.show.parts import (
    Part,
    Screen,
    Table,
    heading,
    indent,
    labelled,
    next_step,
    paragraph,
    screen,
    warning,
)
from orchestrator.show.plan_text import resource_name
from orchestrator.show.report_screen import NOT_COMPARED, spread
from orchestrator.show.trials_text import key_title, refusals, warnings
from orchestrator.values.plan import Estimate
from orchestrator.values.report import Spread
from orchestrator.values.run import LIVE
from orchestrator.values.study import (
    GapExplanation,
    PlannedTrial,
    RepeatedTrial,
    ScalingForecast,
    ScalingReport,
    TrialForecast,
    TrialReport,
)

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


# Show a study that ran: its measured scaling, compared with the prediction.


EMULATED_PODS = "emulated pods share this machine's cores, so more of them are slower each"
EFFICIENCY = "EFFICIENCY is tokens per second and chip over the smallest trial's"
TOO_WIDE = 1_000  # larger ratios, of toy models, have two digits


def scaling_report_screen(report: ScalingReport, next_command: str) -> Screen:
    """Return a row for each trial, measured next to predicted, and what explains the gaps."""
    done = sum(one.done for one in report.trials)
    total = report.repeats * len(report.trials)
    kind = "a rehearsal, " if report.rehearsal else ""
    title = f"{report.name}: {kind}{done} of {total} runs done, {SCALINGS[report.scaling]}"
    return screen(
        [heading(title)],
        indent([paragraph(f"Study: {scaling_verdict(report)}", "bold")]),
        indent([trials(report)]),
        [*(labelled("note:", note) for note in notes(report)), *unfinished(report)],
        [gap_explanation(report.explanations)] if report.explanations else [],
        next_step(next_command),
    )


def trials(report: ScalingReport) -> Table:
    names = tuple(key_title(key, report.vary) for key in report.vary)
    head = ("", *names, "RUNS", "STEP", "SPREAD", "TOKENS/S/CHIP", "MFU", "EFFICIENCY",
            "PREDICTED", "OVER")  # fmt: skip
    rows = [head, *(trial_row(report, one) for one in report.trials)]
    return Table(rows=rows, columns=">" + ">" * len(report.vary) + ">>>>>>>>")


def trial_row(report: ScalingReport, trial: TrialReport) -> tuple[str, ...]:
    settings = tuple(trial.settings[key] for key in report.vary)
    start = (str(trial.number), *settings, f"{trial.done} / {report.repeats}")
    measured = trial.measured
    if measured is None:
        return (*start, "-", "-", "-", "-", "-", "-", "-")
    return (
        *start,
        seconds(measured.step_s.median),
        spread(measured.step_s) if len(measured.runs) > 1 else "-",
        scaled(measured.tokens_per_s_per_chip.median),
        percent(measured.mfu.median) if measured.mfu else "-",
        percent(measured.efficiency.median),
        predicted_efficiency(trial),
        over_predicted(trial, measured),
    )


def efficiency_text(efficiency: Spread) -> str:
    """Return the median, with the range where repeats differ visibly."""
    median, low, high = (percent(x) for x in (efficiency.median, efficiency.low, efficiency.high))
    return median if low == high else f"{median} ({span(low, high)})"


def predicted_efficiency(trial: TrialReport) -> str:
    if trial.predicted is None or trial.not_compared:
        return "-"
    efficiency = trial.predicted.efficiency
    if trial.expected_s is not None:
        return percent(efficiency.expected or efficiency.unoverlapped)
    return f"{percent(efficiency.lower)} at best"


def over_predicted(trial: TrialReport, measured: RepeatedTrial) -> str:
    """Return the measured step over the expected one, or over the lower bound."""
    if trial.predicted is None or trial.not_compared:
        return "-"
    reference_s = trial.expected_s or trial.predicted.step_s.lower
    ratio = measured.step_s.median / reference_s
    return f"{scaled(ratio, 2) if ratio >= TOO_WIDE else to_digits(ratio, 3)} x"


def notes(report: ScalingReport) -> list[str]:
    """Return why trials are not compared with a prediction, or with which one they are."""
    codes = sorted({one.not_compared for one in report.trials if one.not_compared})
    texts = [NOT_COMPARED[code] for code in codes]
    if report.rehearsal:
        texts.append(EMULATED_PODS)
    compared = [one for one in report.trials if one.measured and not one.not_compared]
    if compared:
        against = "the expected step" if compared[0].expected_s else "the lower bound"
        texts.append(f"OVER is the measured step over {against}")
    if any(one.measured for one in report.trials):
        texts.append(EFFICIENCY)
    return texts


def unfinished(report: ScalingReport) -> list[Part]:
    return [
        labelled("note:", f"{run} is {state}") if state in LIVE else warning(f"{run} is {state}")
        for trial in report.trials
        for run, state in trial.unfinished.items()
    ]


def gap_explanation(explanations: Sequence[GapExplanation]) -> str:
    """Return the ledger lines that vary as the gaps between measured and predicted do."""
    if not explanations:
        return "No ledger line varies as the gap between measured and predicted does."
    best, *others = (f"{to_digits(one.times, 3)} times {ledger_line(one)}" for one in explanations)
    share = percent(explanations[0].share)
    text = f"Adding {best} to the forecast would explain {share} of the squared gaps."
    return f"{text} Nearly as well: {', '.join(others)}." if others else text


def ledger_line(one: GapExplanation) -> str:
    return one.line + (f" ({resource_name(one.resource)})" if one.resource else "")


def scaling_verdict(report: ScalingReport) -> str:
    """Return a sentence about the measured efficiency of the largest trial."""
    measured = [(one, one.measured) for one in report.trials if one.measured]
    if not measured:
        return "nothing is measured yet."
    if len(measured) == 1:
        return "one trial is measured; efficiency needs another."
    efficiencies = [
        TrialEfficiency(
            one.chips, trial.efficiency.median, efficiency_text(trial.efficiency), one.series
        )
        for one, trial in measured
    ]
    chips = "emulated chips" if report.rehearsal else "chips"
    return f"{scaling_efficiency(efficiencies, report.vary, chips)}."
