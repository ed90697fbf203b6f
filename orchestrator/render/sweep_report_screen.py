"""Show a sweep that ran: its trials from the lowest loss to the highest, the best named."""

from orchestrator.formatting import count, percent, seconds
from orchestrator.render.screen_parts import (
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
from orchestrator.render.trials_text import key_title, loss_text
from orchestrator.types.run import LIVE
from orchestrator.types.sweep import SweepReport, SweepTrialReport

BATCH = "experiment.batch."
LAST = "LOSS is the mean over the last tenth of the steps"
TOKENS = "trials with other batches see other numbers of tokens in the same number of steps"

Row = tuple[str, ...]


def sweep_report_screen(report: SweepReport, next_command: str) -> Screen:
    """Return a row for each trial, and the best."""
    ended = sum(map(is_done, report.trials))
    kind = "a rehearsal, " if report.rehearsal else ""
    title = f"{report.name}: {kind}a sweep, {ended} of {len(report.trials)} trials ended"
    rows = [head(report), *(row(report, one) for one in ranked(report))]
    return screen(
        [heading(title)],
        indent([paragraph(f"Sweep: {sweep_verdict(report)}", "bold")]),
        indent([Table(rows=rows, columns=">" + ">" * len(report.vary) + "<>>>>")]),
        [labelled("note:", one) for one in notes(report)],
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


def head(report: SweepReport) -> Row:
    names = (key_title(key, report.vary) for key in report.vary)
    return ("", *names, "STATE", "STEPS", "LOSS", "STEP", "MFU")


def row(report: SweepReport, trial: SweepTrialReport) -> Row:
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


def notes(report: SweepReport) -> list[str]:
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
