"""Show the forecast of a sweep: its trials, and what they cost in all."""

from orchestrator.formatting import count, counted, dollars, lasting, percent, seconds, span
from orchestrator.show.parts import (
    Screen,
    Table,
    fit,
    heading,
    indent,
    labelled,
    next_step,
    paragraph,
    screen,
    warning,
)
from orchestrator.show.scaling_screens import (
    expected,
    scaling_report_screen,
    scaling_screen,
    scaling_verdict,
)
from orchestrator.show.trials_text import key_title, loss_text, refusals, warnings
from orchestrator.values.plan import Estimate
from orchestrator.values.run import LIVE
from orchestrator.values.study import (
    ScalingForecast,
    ScalingReport,
    SweepForecast,
    SweepReport,
    SweepTrialForecast,
    SweepTrialReport,
)

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


# Show a sweep that ran: its trials from the lowest loss to the highest, the best named.


BATCH = "experiment.batch."
LAST = "LOSS is the mean over the last tenth of the steps"
TOKENS = "trials with other batches see other numbers of tokens in the same number of steps"

SweepReportRow = tuple[str, ...]


def sweep_report_screen(report: SweepReport, next_command: str) -> Screen:
    """Return a row for each trial, and the best."""
    ended = sum(map(is_done, report.trials))
    kind = "a rehearsal, " if report.rehearsal else ""
    title = f"{report.name}: {kind}a sweep, {ended} of {len(report.trials)} trials ended"
    rows = [sweep_report_head(report), *(sweep_report_row(report, one) for one in ranked(report))]
    return screen(
        [heading(title)],
        indent([paragraph(f"Sweep: {sweep_verdict(report)}", "bold")]),
        indent([Table(rows=rows, columns=">" + ">" * len(report.vary) + "<>>>>")]),
        [labelled("note:", one) for one in sweep_report_notes(report)],
        [warning(f"{run} is {state}") for run, state in failed(report)],
        next_step(next_command),
    )


def is_done(trial: SweepTrialReport) -> bool:
    return 0 < trial.steps == trial.steps_done


def ranked(report: SweepReport) -> list[SweepTrialReport]:
    """Return the trials that did all their steps by their loss, then the others."""

    def order(trial: SweepTrialReport) -> tuple[bool, bool, float, int]:
        return not is_done(trial), trial.loss is None, trial.loss or 0.0, trial.number

    return sorted(report.trials, key=order)


def sweep_report_head(report: SweepReport) -> SweepReportRow:
    names = (key_title(key, report.vary) for key in report.vary)
    return ("", *names, "STATE", "STEPS", "LOSS", "STEP", "MFU")


def sweep_report_row(report: SweepReport, trial: SweepTrialReport) -> SweepReportRow:
    """Return a trial in cells."""
    return (
        str(trial.number),
        *(trial.settings[key] for key in report.vary),
        state(report, trial),
        f"{count(trial.steps_done)} / {count(trial.steps)}" if trial.steps else "-",
        "-" if trial.loss is None else loss_text(trial.loss),
        seconds(trial.step_s.median) if trial.step_s else "-",
        "-" if trial.mfu is None else percent(trial.mfu),
    )


def state(report: SweepReport, trial: SweepTrialReport) -> str:
    if trial.number == report.best:
        return "best"
    return next(reversed(trial.runs.values()), "not begun")


def sweep_report_notes(report: SweepReport) -> list[str]:
    """Return what the losses of the trials are."""
    texts = []
    if any(one.loss is not None for one in report.trials):
        texts.append(LAST)
    if any(key.startswith(BATCH) for key in report.vary):
        texts.append(TOKENS)
    return texts


def failed(report: SweepReport) -> list[tuple[str, str]]:
    """Return the runs that ended without success, of trials that did not do all their steps."""
    return [
        (run, state)
        for trial in report.trials
        if not is_done(trial)
        for run, state in trial.runs.items()
        if state not in LIVE
    ]


def sweep_verdict(report: SweepReport) -> str:
    """Return the best trial by its settings."""
    best = next((one for one in report.trials if one.number == report.best), None)
    if best is None or best.loss is None:
        return "no trial has done all its steps yet."
    settings = ", ".join(
        f"{key_title(key, report.vary).lower()} {text}" for key, text in best.settings.items()
    )
    text = f"best is trial {best.number} with {settings}: loss {loss_text(best.loss)}"
    others = [one for one in ranked(report) if one.loss is not None and one.number != best.number]
    whole = [one for one in others if is_done(one)]
    if whole and whole[0].loss is not None:
        text += f", {loss_text(whole[0].loss - best.loss)} below trial {whole[0].number}"
    return f"{text}."


# The screens of studies by their kind.


def forecast_screen(forecast: ScalingForecast | SweepForecast, next_command: str = "") -> Screen:
    """Return the trials of a study as planned."""
    if isinstance(forecast, SweepForecast):
        return sweep_screen(forecast, next_command)
    return scaling_screen(forecast, next_command)


def study_report_screen(report: ScalingReport | SweepReport, next_command: str) -> Screen:
    """Return the trials of a study as measured."""
    if isinstance(report, SweepReport):
        return sweep_report_screen(report, next_command)
    return scaling_report_screen(report, next_command)


def verdict_text(report: ScalingReport | SweepReport) -> str:
    """Return a study's name and verdict, as lines."""
    if isinstance(report, SweepReport):
        return fit(f"{report.study}: {sweep_verdict(report)}\n")
    return fit(f"{report.study}: {scaling_verdict(report)}\n")
