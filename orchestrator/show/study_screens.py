"""Show studies: the forecast of their trials, what was measured, and what it says."""

from collections.abc import Mapping, Sequence

from orchestrator import formatting as fmt
from orchestrator.planning.plan_warnings import warning_texts
from orchestrator.show import parts as ui
from orchestrator.show.plan_text import resource_name
from orchestrator.show.report_screen import NOT_COMPARED, loss_text, spread
from orchestrator.values import study as studies
from orchestrator.values.run import LIVE
from orchestrator.values.study import key_names, settings_text

SCALINGS = {
    "strong": "strong scaling, with the same batch in every trial",
    "weak": "weak scaling, with a batch that grows with the pods",
}
_Forecast = studies.ScalingForecast | studies.SweepForecast
_Report = studies.ScalingReport | studies.SweepReport
_TOO_WIDE = 1_000  # larger ratios, of toy models, have two digits


def forecast_screen(forecast: _Forecast, next_command: str = "") -> ui.Screen:
    """Return a row for each trial as planned, and what all of them cost or how they scale."""
    kind, verdict, remark = forecast_texts(forecast)
    is_sweep = isinstance(forecast, studies.SweepForecast)
    return ui.screen(
        [ui.heading(f"{forecast.name}: {kind}")],
        ui.indent([ui.heading(verdict)]),
        ui.indent([planned_trials(forecast)]),
        (ui.notes if is_sweep else ui.indent)([remark] if remark else []),
        map(ui.warning, trial_warnings(forecast)),
        ui.next_step(next_command),
    )


def forecast_texts(forecast: _Forecast) -> tuple[str, str, str]:
    """Return what kind of study it is, the verdict, and what the figures of its trials are."""
    planned = [trial.planned for trial in forecast.trials if trial.planned]
    are_expected = all(plan.step_s.expected is not None for plan in planned)
    kind = fmt.counted(len(forecast.trials), "trial")
    missing = len(forecast.trials) - len(planned)
    parts = [f"{missing} of {len(forecast.trials)} trials have no plan"] if missing else []
    if isinstance(forecast, studies.SweepForecast):
        kind = f"a sweep of {kind} over {', '.join(forecast.vary)}"
        if days := forecast.days:
            total = fmt.lasting(days.likeliest)
            if days.expected is None:
                total += " at best"
            elif days.low is not None and days.high is not None:
                total += f" ({fmt.span(fmt.lasting(days.low), fmt.lasting(days.high))})"
            runs = fmt.counted(len(planned) * forecast.repeats, "run")
            parts.append(f"{runs} one after another: {total}")
        if cost := forecast.dollars:
            is_expected = cost.expected is not None
            parts.append(f"{fmt.dollars(cost.likeliest)}{'' if is_expected else ' at best'}")
        at_best = "values are those at best: no known runs on such chips"
        return kind, f"Sweep: {', '.join(parts)}.", "" if are_expected else at_best
    kind = f"{kind}, {SCALINGS[forecast.scaling]}"
    efficiencies: list[_Efficiency] = []
    for trial in forecast.trials:
        if plan := trial.planned:
            share = plan.efficiency.expected or plan.efficiency.lower
            text = fmt.percent(plan.efficiency.likeliest)
            efficiencies.append((plan.chips, share, text, trial.series))
    if efficiencies:
        parts.append(_scaling_efficiency(efficiencies, forecast.vary, "chips"))
    what = "Expected values" if are_expected else "Values at best, without known runs"
    smallest = "tokens per second and chip, over those of the smallest trial"
    return kind, f"Study: {', '.join(parts)}.", f"{what}. Efficiency is {smallest}."


def planned_trials(forecast: _Forecast) -> ui.Table:
    """Return the figures of each trial, expected or else at best."""
    names, last = ("STEP", "MFU", "EFFICIENCY", "BOTTLENECK"), "<"
    if isinstance(forecast, studies.SweepForecast):
        names, last = ("STEPS", "STEP", "MFU", "TIME"), ">"
    keys = map(str.upper, key_names(forecast.vary, forecast.vary))
    rows: list[ui.Row] = [("", *keys, "CHIPS", "BATCH", *names, "COST")]
    for trial in forecast.trials:
        cells: ui.Row = ("-", "-", "-", "-", "-", "no plan", "-")
        if plan := trial.planned:
            speed: ui.Row = (fmt.seconds(plan.step_s.likeliest), fmt.percent(plan.mfu.likeliest))
            if isinstance(plan, studies.PlannedTrial):
                speed = (*speed, fmt.percent(plan.efficiency.likeliest), plan.bound)
            else:
                speed = (fmt.count(plan.steps), *speed, fmt.lasting(plan.days.likeliest))
            cost = fmt.dollars(plan.dollars.likeliest) if plan.dollars else "-"
            cells = (fmt.count(plan.chips), fmt.count(plan.sequences), *speed, cost)
        rows.append((str(trial.number), *(trial.settings[key] for key in forecast.vary), *cells))
    return ui.Table(rows, f"{'>' * (len(rows[0]) - 2)}{last}>")


def trial_warnings(forecast: _Forecast) -> list[str]:
    """Return why trials have no plan, then the warnings; those of all plans name no trial."""
    planned = sum(trial.planned is not None for trial in forecast.trials)
    refused: dict[str, list[str]] = {}
    warned: dict[str, list[str]] = {}
    for trial in forecast.trials:
        if trial.infeasible:
            refused.setdefault(trial.infeasible, []).append(str(trial.number))
        for text in warning_texts(trial.planned.warnings if trial.planned else (), values=False):
            warned.setdefault(text, []).append(str(trial.number))
    lines = [f"no plan for trial {', '.join(trials)}: {why}" for why, trials in refused.items()]
    for text, trials in warned.items():
        which = f"{'trial' if len(trials) == 1 else 'trials'} {', '.join(trials)}: "
        lines.append(f"{'' if len(trials) == planned else which}{text}")
    return lines


# The scaling efficiency of a trial: its chips, a fraction, the fraction as text, and its series.
_Efficiency = tuple[int, float, str, Mapping[str, str]]


def _scaling_efficiency(trials: Sequence[_Efficiency], vary: Sequence[str], chips: str) -> str:
    """Return the efficiency of the largest trial; of several series, the lowest and highest."""
    largest: dict[str, tuple[int, float, str]] = {}  # chips, fraction and text by series
    for number, fraction, text, series in trials:
        name = settings_text(series, vary)
        if name not in largest or number > largest[name][0]:
            largest[name] = number, fraction, f"{text} on {fmt.count(number)} {chips}"
    if len(largest) == 1:
        return f"scaling efficiency is {next(iter(largest.values()))[2]}"
    lowest, *_, highest = sorted(largest, key=lambda name: largest[name][1])
    ends = (f"{largest[name][2]} ({name})" for name in (lowest, highest))
    return f"scaling efficiency is between {' and '.join(ends)}"


def study_report_screen(report: _Report, next_command: str) -> ui.Screen:
    """Return a row for each trial as measured, and what they say together."""
    kind = "a rehearsal, " if report.rehearsal else ""
    total, failed, remarks = len(report.trials), list[ui.Part](), list[ui.Part]()
    if isinstance(report, studies.SweepReport):
        head, rows = sweep_table(report)
        ended = sum(map(_is_done, report.trials))
        title = f"a sweep, {ended} of {total} trials ended"
        verdict, columns = f"Sweep: {sweep_verdict(report)}", "<>>>>"
        remarks = ui.notes(sweep_notes(report))
        for swept in report.trials:
            ends = () if _is_done(swept) else swept.runs.items()
            failed += [ui.warning(f"{run} is {end}") for run, end in ends if end not in LIVE]
    else:
        head, rows = scaling_table(report)
        done = sum(trial.done for trial in report.trials)
        title = f"{done} of {report.repeats * total} runs done, {SCALINGS[report.scaling]}"
        verdict, columns = f"Study: {scaling_verdict(report)}", ">>>>>>>>"
        remarks = ui.notes(scaling_notes(report))
        for trial in report.trials:
            for run, state in trial.unfinished.items():
                text = f"{run} is {state}"
                remarks.append(ui.labelled("note:", text) if state in LIVE else ui.warning(text))
        failed = [gap_explanation(report.explanations)] if report.explanations else []
    columns = ">" + ">" * len(report.vary) + columns
    return ui.screen(
        [ui.heading(f"{report.name}: {kind}{title}")],
        ui.indent([ui.heading(verdict)]),
        ui.indent([ui.Table([("", *map(str.upper, head[1:])), *rows], columns)]),
        remarks,
        failed,
        ui.next_step(next_command),
    )


def verdict_text(report: _Report) -> str:
    if isinstance(report, studies.SweepReport):
        return ui.fit(f"{report.study}: {sweep_verdict(report)}\n")
    return ui.fit(f"{report.study}: {scaling_verdict(report)}\n")


def scaling_table(report: studies.ScalingReport) -> tuple[ui.Row, list[ui.Row]]:
    """Return the head and a row for each trial, measured next to predicted."""
    head = ("trial", *key_names(report.vary, report.vary), "runs", "step", "spread",
            "tokens/s/chip", "MFU", "efficiency", "predicted", "over")  # fmt: skip
    rows: list[ui.Row] = []
    for trial in report.trials:
        cells: ui.Row = ("-",) * 5
        predicted, over = "-", "-"
        if measured := trial.measured:
            cells = (
                fmt.seconds(measured.step_s.median),
                spread(measured.step_s) if len(measured.runs) > 1 else "-",
                fmt.scaled(measured.tokens_per_s_per_chip.median),
                fmt.percent(measured.mfu.median) if measured.mfu else "-",
                fmt.percent(measured.efficiency.median),
            )
        if measured and trial.predicted and not trial.not_compared:
            # Over the expected step, or over the lower bound.
            efficiency = trial.predicted.efficiency
            predicted = f"{fmt.percent(efficiency.lower)} at best"
            if trial.expected_s is not None:
                predicted = fmt.percent(efficiency.expected or efficiency.unoverlapped)
            ratio = measured.step_s.median / (trial.expected_s or trial.predicted.step_s.lower)
            over = fmt.scaled(ratio, 2) if ratio >= _TOO_WIDE else fmt.to_digits(ratio, 3)
            over += " x"
        settings = (trial.settings[key] for key in report.vary)
        start = str(trial.number), *settings, f"{trial.done} / {report.repeats}"
        rows.append((*start, *cells, predicted, over))
    return head, rows


def scaling_notes(report: studies.ScalingReport) -> list[str]:
    """Return why trials are not compared with a prediction, or with which one they are."""
    codes = sorted({trial.not_compared for trial in report.trials if trial.not_compared})
    texts = [NOT_COMPARED[code] for code in codes]
    if report.rehearsal:
        texts.append("emulated pods share this machine's cores, so more of them are slower each")
    compared = [trial for trial in report.trials if trial.measured and not trial.not_compared]
    if compared:
        against = "the expected step" if compared[0].expected_s else "the lower bound"
        texts.append(f"OVER is the measured step over {against}")
    if any(trial.measured for trial in report.trials):
        texts.append("EFFICIENCY is tokens per second and chip over the smallest trial's")
    return texts


def gap_explanation(explanations: Sequence[studies.GapExplanation]) -> str:
    if not explanations:
        return "No ledger line varies as the gap between measured and predicted does."
    texts = []
    for gap in explanations:
        resource = f" ({resource_name(gap.resource)})" if gap.resource else ""
        texts.append(f"{fmt.to_digits(gap.times, 3)} times {gap.line}{resource}")
    share = fmt.percent(explanations[0].share)
    text = f"Adding {texts[0]} to the forecast would explain {share} of the squared gaps."
    return f"{text} Nearly as well: {', '.join(texts[1:])}." if texts[1:] else text


def scaling_verdict(report: studies.ScalingReport) -> str:
    measured = [(trial, trial.measured) for trial in report.trials if trial.measured]
    if not measured:
        return "nothing is measured yet."
    if len(measured) == 1:
        return "one trial is measured; efficiency needs another."
    efficiencies: list[_Efficiency] = []
    for trial, found in measured:
        # The median, with the range where repeats differ visibly.
        efficiency = found.efficiency
        low, high = fmt.percent(efficiency.low), fmt.percent(efficiency.high)
        text = fmt.percent(efficiency.median)
        text += "" if low == high else f" ({fmt.span(low, high)})"
        efficiencies.append((trial.chips, efficiency.median, text, trial.series))
    chips = "emulated chips" if report.rehearsal else "chips"
    return f"{_scaling_efficiency(efficiencies, report.vary, chips)}."


def _is_done(trial: studies.SweepTrialReport) -> bool:
    return 0 < trial.steps == trial.steps_done


def _ranked(report: studies.SweepReport) -> list[studies.SweepTrialReport]:
    """Return the trials that did all their steps by their loss, then the others."""

    def order(trial: studies.SweepTrialReport) -> tuple[bool, bool, float, int]:
        return not _is_done(trial), trial.loss is None, trial.loss or 0.0, trial.number

    return sorted(report.trials, key=order)


def sweep_table(report: studies.SweepReport) -> tuple[ui.Row, list[ui.Row]]:
    """Return the head and a row for each trial, the best first."""
    names = key_names(report.vary, report.vary)
    rows = []
    for trial in _ranked(report):
        state = next(reversed(trial.runs.values()), "not begun")
        cells = (
            "best" if trial.number == report.best else state,
            f"{fmt.count(trial.steps_done)} / {fmt.count(trial.steps)}" if trial.steps else "-",
            "-" if trial.loss is None else loss_text(trial.loss),
            fmt.seconds(trial.step_s.median) if trial.step_s else "-",
            "-" if trial.mfu is None else fmt.percent(trial.mfu),
        )
        rows.append((str(trial.number), *(trial.settings[key] for key in report.vary), *cells))
    return ("trial", *names, "state", "steps", "loss", "step", "MFU"), rows


def sweep_notes(report: studies.SweepReport) -> list[str]:
    texts = []
    if any(trial.loss is not None for trial in report.trials):
        texts.append("LOSS is the mean over the last tenth of the steps")
    tokens = "trials with other batches see other numbers of tokens in the same number of steps"
    batches = [key for key in report.vary if key.startswith("experiment.batch.")]
    return [*texts, tokens] if batches else texts


def sweep_verdict(report: studies.SweepReport) -> str:
    best = next((trial for trial in report.trials if trial.number == report.best), None)
    if best is None or best.loss is None:
        return "no trial has done all its steps yet."
    settings = settings_text(best.settings, report.vary)
    text = f"best is trial {best.number} with {settings}: loss {loss_text(best.loss)}"
    for trial in _ranked(report):
        if trial.loss is not None and trial.number != best.number and _is_done(trial):
            return f"{text}, {loss_text(trial.loss - best.loss)} below trial {trial.number}."
    return f"{text}."
