"""a study that was run: its measured scaling beside the predicted one."""

from collections.abc import Sequence

from orchestrator.render.compare_screen import spread
from orchestrator.render.formatting import percent, resource, scaled, seconds, span, to_digits
from orchestrator.render.layout import page, tabulated
from orchestrator.render.report_text import NOT_COMPARED
from orchestrator.render.study_screen import SCALINGS, Kept, scaling_efficiency, title
from orchestrator.types.report import Spread
from orchestrator.types.run import LIVE
from orchestrator.types.study import RepeatedTrial, StudyExplanation, StudyReport, TrialReport


def study_report_screen(found: StudyReport, next_command: str) -> str:
    """Every trial in a row, measured beside predicted, and where the two part."""
    done = sum(one.done for one in found.trials)
    wanted = found.repeats * len(found.trials)
    kind = "a rehearsal, " if found.rehearsal else ""
    blocks = [
        [f"{found.name}: {kind}{done} of {wanted} runs done, {SCALINGS[found.scaling]}"],
        trials(found),
        [*notes(found), *unfinished(found)],
        [explained(found.explanations)] if found.explanations else [],
        [study_verdict(found), f"Next: {next_command}"],
    ]
    return page(blocks)


def trials(found: StudyReport) -> list[str]:
    names = tuple(title(key, found.vary) for key in found.vary)
    head = ("", *names, "RUNS", "STEP", "SPREAD", "TOKENS/S/CHIP", "MFU", "EFFICIENCY",
            "PREDICTED", "OVER")  # fmt: skip
    side = ">" + ">" * len(found.vary) + ">>>>>>>>"
    return tabulated([head, *(row(found, one) for one in found.trials)], side)


def row(found: StudyReport, trial: TrialReport) -> tuple[str, ...]:
    settings = tuple(trial.settings[key] for key in found.vary)
    start = (str(trial.number), *settings, f"{trial.done} / {found.repeats}")
    if trial.measured is None:
        return (*start, "-", "-", "-", "-", "-", "-", "-")
    return (*start, *cells(trial, trial.measured))


def cells(trial: TrialReport, measured: RepeatedTrial) -> tuple[str, ...]:
    return (
        seconds(measured.step_s.median),
        spread(measured.step_s) if len(measured.runs) > 1 else "-",
        scaled(measured.tokens_per_s_per_chip.median),
        percent(measured.mfu.median) if measured.mfu else "-",
        percent(measured.efficiency.median),
        predicted(trial),
        over(trial, measured),
    )


def between(efficiency: Spread) -> str:
    """The median, with the least and the most where repeats differ visibly."""
    middle, low, high = (percent(x) for x in (efficiency.median, efficiency.low, efficiency.high))
    return middle if low == high else f"{middle} ({span(low, high)})"


def predicted(trial: TrialReport) -> str:
    """The predicted efficiency, where it may be held against the measured one."""
    if trial.predicted is None or trial.not_compared:
        return "-"
    kept = trial.predicted.efficiency
    if trial.expected_s is not None:
        return percent(kept.unoverlapped if kept.expected is None else kept.expected)
    return span(percent(kept.lower), percent(kept.unoverlapped))


def over(trial: TrialReport, measured: RepeatedTrial) -> str:
    """The measured step over what was expected, or over the lower bound."""
    if trial.predicted is None or trial.not_compared:
        return "-"
    reference = trial.expected_s or trial.predicted.step_s.lower
    return f"{to_digits(measured.step_s.median / reference, 3)} x"


def notes(found: StudyReport) -> list[str]:
    """Why nothing is held against a prediction, once; or against which one it is."""
    unlike = sorted({one.not_compared for one in found.trials if one.not_compared})
    said = [f"note: {NOT_COMPARED[one]}" for one in unlike]
    if found.rehearsal:
        said.append("note: emulated pods share this machine's cores: more of them are slower each")
    compared = [one for one in found.trials if one.measured and not one.not_compared]
    if compared:
        against = "what was expected" if compared[0].expected_s else "the lower bound"
        said.append(f"note: OVER is the measured step over {against}")
    if any(one.measured for one in found.trials):
        said.append("note: EFFICIENCY is tokens per second and chip over the smallest trial's")
    return said


def unfinished(found: StudyReport) -> list[str]:
    return [
        f"{'note' if state in LIVE else 'warning'}: {run} is {state}"
        for trial in found.trials
        for run, state in trial.unfinished.items()
    ]


def explained(found: Sequence[StudyExplanation]) -> str:
    """The ledger lines that go with the gaps, as a sentence or two."""
    if not found:
        return "No ledger line goes along with where measured and predicted part."
    best, *others = (f"{to_digits(one.times, 3)} times {line(one)}" for one in found)
    said = (
        f"Where measured and predicted part, {best} on top of its forecast would explain"
        f" {percent(found[0].share)} of the squared gaps."
    )
    return f"{said} Nearly as well: {', '.join(others)}." if others else said


def line(found: StudyExplanation) -> str:
    """A ledger line, and what it keeps busy where that is known."""
    busy = f" ({resource(found.resource)})" if found.resource else ""
    return f"{found.line}{busy}"


def study_verdict(found: StudyReport) -> str:
    """The largest measured trial beside the smallest."""
    measured = sum(one.measured is not None for one in found.trials)
    if not measured:
        return "Study: nothing is measured yet."
    if measured == 1:
        return "Study: one trial is measured; efficiency needs another."
    what = "emulated chips" if found.rehearsal else "chips"
    kept = [
        Kept(
            one.chips, one.measured.efficiency.median, between(one.measured.efficiency), one.series
        )
        for one in found.trials
        if one.measured
    ]
    return f"Study: {scaling_efficiency(kept, found.vary, what)}."
