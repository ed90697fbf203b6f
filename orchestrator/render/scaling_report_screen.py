"""Show a study that ran: its measured scaling, compared with the prediction."""

from collections.abc import Sequence

from orchestrator.formatting import percent, scaled, seconds, span, to_digits
from orchestrator.render.compare_screen import spread
from orchestrator.render.report_text import NOT_COMPARED
from orchestrator.render.resource_names import resource_name
from orchestrator.render.scaling_screen import SCALINGS, TrialEfficiency, scaling_efficiency
from orchestrator.render.screen_parts import (
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
from orchestrator.render.trials_text import key_title
from orchestrator.types.report import Spread
from orchestrator.types.run import LIVE
from orchestrator.types.scaling import GapExplanation, RepeatedTrial, ScalingReport, TrialReport

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
