"""Show a sweep on a page: losses over steps and over settings, and the table of trials."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.formatting import count, scaled
from orchestrator.render.page.drawings import Axis, Curve, Plot, around, logarithmic
from orchestrator.render.page.templates import filled, sentence
from orchestrator.render.sweep_report_screen import (
    head,
    notes,
    ranked,
    row,
    sweep_verdict,
)
from orchestrator.render.trials_text import key_title, loss_text
from orchestrator.types.sweep import SweepReport, SweepTrialReport

# The colors of a few trials; of many, the best alone has a color.
KINDS = ("matmul", "hbm", "ici", "dcn", "host")
BEST, OTHER = "measured", "ideal"
MOST_PLOTS = 4
EXPONENT, UNBROKEN = re.compile(r"(?<=\de)-"), "-\N{WORD JOINER}"  # 1e-2 stays on a line
WIDE = 10.0  # values that differ by so much have a logarithmic axis


@dataclass(frozen=True)
class Point:
    """The loss of a trial over the value of a setting."""

    trial: SweepTrialReport
    value: float
    loss: float


def sweep_page(report: SweepReport) -> str:
    """Return the page as HTML."""
    verdict = sweep_verdict(report)
    known = [one for one in report.trials if one.losses]
    return filled(
        "sweep.html",
        title=report.study,
        verdict=EXPONENT.sub(UNBROKEN, sentence(verdict)),
        headline=f"{report.name}: a sweep of {len(report.trials)} trials",
        report=report,
        over_steps=over_steps(report, known) if known else None,
        over_settings=over_settings(report),
        trial_head=("trial", *(name.lower() for name in head(report)[1:-1]), "MFU"),
        trial_rows=[row(report, one) for one in ranked(report)],
        words=2 + len(report.vary),
        notes=[f"{sentence(note)}." for note in notes(report)],
    )


def name_of(report: SweepReport, trial: SweepTrialReport) -> str:
    """Return the settings of a trial, as a key names it."""
    settings = (
        f"{key_title(key, report.vary).lower()} {trial.settings[key]}" for key in report.vary
    )
    text = ", ".join(settings)
    return f"{text} (best)" if trial.number == report.best else text


def over_steps(report: SweepReport, trials: Sequence[SweepTrialReport]) -> Plot:
    """Return the loss of each trial over its steps, the best on top."""
    few = len(trials) <= len(KINDS) + 1
    ordered = sorted(trials, key=lambda one: one.number == report.best)
    kinds, curves, unnamed = iter(KINDS), list[Curve](), False
    for trial in ordered:
        best = trial.number == report.best
        kind = BEST if best else next(kinds, OTHER) if few else OTHER
        name = name_of(report, trial) if few or best else "" if unnamed else "other trials"
        unnamed = unnamed or not (few or best)
        points = tuple((float(step), loss) for step, loss in trial.losses)
        curves.append(Curve(name=name, kind=kind, points=points, dots=len(points) == 1))
    return Plot(
        x=Axis(0.0, float(max(one.steps for one in trials)), whole=True),
        y=around([loss for one in trials for _, loss in one.losses]),
        x_name="steps",
        y_name="loss",
        show_x=count,
        show_y=loss_text,
        curves=curves,
    )


def over_settings(report: SweepReport) -> list[Plot]:
    """Return the last loss over each setting that is a number and differs."""
    plots = []
    for key in report.vary:
        points = points_of(report, key)
        if len({one.value for one in points}) > 1:
            plots.append(over_setting(report, key, points))
    return plots[:MOST_PLOTS]


def points_of(report: SweepReport, key: str) -> list[Point]:
    """Return the trials with a loss; none where a value of the setting is no number."""
    known = [(one, one.loss) for one in report.trials if one.loss is not None]
    try:
        return [Point(one, float(one.settings[key]), loss) for one, loss in known]
    except ValueError:
        return []


def over_setting(report: SweepReport, key: str, points: Sequence[Point]) -> Plot:
    groups = {
        "best": [one for one in points if one.trial.number == report.best],
        "others": [one for one in points if one.trial.number != report.best],
    }
    kinds = {"best": BEST, "others": "matmul"}
    values = [one.value for one in points]
    is_wide = min(values) > 0 and max(values) / min(values) >= WIDE
    return Plot(
        x=logarithmic(values, 1.4) if is_wide else around(values),
        y=around([one.loss for one in points]),
        x_name=key,
        y_name="loss",
        show_x=lambda value: f"{value:g}" if value < 1 else scaled(value),
        show_y=loss_text,
        curves=[
            Curve(
                name=name,
                kind=kinds[name],
                points=tuple((one.value, one.loss) for one in group),
                dots=True,
                joined=False,
                labels=tuple(f"trial {p.trial.number}: {loss_text(p.loss)}" for p in group),
            )
            for name, group in groups.items()
            if group
        ],
    )
