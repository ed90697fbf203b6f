"""Show a study on a page: its scaling curves or its losses, its trials, and what they say."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.formatting import count, percent, scaled, seconds
from orchestrator.show.charts import expected_bars, resource_bars
from orchestrator.show.drawings import (
    Axis,
    Band,
    Bar,
    BarChart,
    BarPart,
    Curve,
    Plot,
    around,
    filled,
    from_zero,
    logarithmic,
    sentence,
)
from orchestrator.show.parts import Row
from orchestrator.show.report_screen import loss_text
from orchestrator.show.study_screens import (
    SCALINGS,
    gap_explanation,
    key_names,
    scaling_notes,
    scaling_table,
    scaling_verdict,
    settings_text,
    sweep_notes,
    sweep_table,
    sweep_verdict,
)
from orchestrator.values.plan import Estimate, Plan
from orchestrator.values.study import (
    PlannedTrial,
    ScalingReport,
    SweepReport,
    SweepTrialReport,
    TrialReport,
)

# The colors of several series; a single one has the first.
_KINDS = ("measured", "matmul", "hbm", "ici", "dcn", "host")
_MOST_BARS = 12  # trials whose ledgers are drawn


@dataclass(frozen=True)
class _Series:
    """Trials that differ only in size, the smallest first."""

    name: str
    kind: str
    trials: tuple[TrialReport, ...]

    def named(self, what: str) -> str:
        return f"{what}, {self.name}" if self.name else what


def scaling_page(report: ScalingReport, plans: Mapping[int, Plan]) -> str:
    """Return the page as HTML; `plans` has the plan of each trial by its number."""
    # The series with a measured trial, each with its color.
    groups: dict[str, list[TrialReport]] = {}
    for trial in report.trials:
        if trial.measured:
            name = settings_text(trial.series, report.vary, " ")
            groups.setdefault(name, []).append(trial)
    series = [
        _Series(name, _KINDS[i % len(_KINDS)], tuple(sorted(trials, key=lambda one: one.chips)))
        for i, (name, trials) in enumerate(groups.items())
    ]
    bars = _compared_bars(report, plans)
    head, rows = scaling_table(report)
    return filled(
        "study.html",
        title=report.study,
        verdict=sentence(scaling_verdict(report)),
        headline=f"{report.name}: {len(report.trials)} trials, {SCALINGS[report.scaling]}",
        report=report,
        throughput=_throughput(series) if series else None,
        efficiency=_efficiency(series) if series else None,
        trial_head=head,
        trial_rows=rows,
        notes=[f"{sentence(note)}." for note in scaling_notes(report)],
        compared=BarChart(bars=bars, show=seconds) if bars else None,
        explanation=gap_explanation(report.explanations),
        chip_head=(*key_names(report.vary, report.vary), "chips", "at best", "expected", "MFU",
                   "efficiency", "bottleneck"),
        chip_rows=_chip_rows(report),
        unfinished=[pair for trial in report.trials for pair in trial.unfinished.items()],
    )  # fmt: skip


def _chip_rows(report: ScalingReport) -> list[Row]:
    """Return the predictions for chips, where the trials themselves were rehearsed."""

    def likeliest(share: Estimate) -> str:
        return f"{percent(share.likeliest)}{' at best' if share.expected is None else ''}"

    return [
        (
            *(trial.settings[key] for key in report.vary),
            count(plan.chips),
            seconds(plan.step_s.lower),
            "-" if plan.step_s.expected is None else seconds(plan.step_s.expected),
            likeliest(plan.mfu),
            likeliest(plan.efficiency),
            plan.bound,
        )
        for trial in report.trials
        if (plan := trial.predicted) and trial.not_compared
    ]


def _throughput(series: Sequence[_Series]) -> Plot:
    """Return tokens per second over chips: measured, predicted, and ideal."""
    sizes = _sizes(series)
    lines: list[Curve] = []
    for group in series:
        points = tuple(
            (float(trial.chips), trial.measured.tokens_per_s_per_chip.median * trial.chips)
            for trial in group.trials
            if trial.measured
        )
        first, tokens_per_s = points[0]
        ideal = tuple((x, x * tokens_per_s / first) for x in (first, max(first, sizes[-1])))
        lines += [
            Curve(group.named("ideal"), "ideal", ideal),
            *_predictions(group, lambda p, at: getattr(p.tokens_per_s_per_chip, at) * p.chips),
            Curve(group.named("measured"), group.kind, points, dots=True),
        ]
    return Plot(
        x=logarithmic(sizes, 1.25),
        y=logarithmic((y for line in lines for _, y in line.points), 1.4),
        x_name="chips",
        y_name="tokens per second",
        show_x=count,
        show_y=scaled,
        curves=lines,
        x_ticks=sizes,
    )


def _sizes(series: Sequence[_Series]) -> tuple[float, ...]:
    return tuple(sorted({float(trial.chips) for group in series for trial in group.trials}))


def _predictions(series: _Series, figure: Callable[[PlannedTrial, str], float]) -> list[Curve]:
    """Return what was predicted, where it can be compared with the measurement."""
    known = [(t, t.predicted) for t in series.trials if t.predicted and not t.not_compared]
    if not known:
        return []
    lines = [("unoverlapped", "unoverlapped", "unoverlapped"), ("lower bound", "lower", "lower")]
    if known[0][0].expected_s is not None:
        at = "expected" if known[0][1].efficiency.expected is not None else "unoverlapped"
        lines = [("expected", "expected", at)]
    return [
        Curve(
            series.named(name),
            kind,
            tuple((float(trial.chips), figure(plan, at)) for trial, plan in known),
        )
        for name, kind, at in lines
    ]


def _efficiency(series: Sequence[_Series]) -> Plot:
    """Return tokens per second and chip over those of the smallest trial, with their spread."""
    sizes = _sizes(series)
    lines = [Curve("ideal", "ideal", ((sizes[0], 1.0), (sizes[-1], 1.0)))]
    bands = []
    for group in series:
        lines += _predictions(group, lambda plan, at: float(getattr(plan.efficiency, at)))
        spreads = [(float(t.chips), t.measured.efficiency) for t in group.trials if t.measured]
        points = tuple((x, spread.median) for x, spread in spreads)
        lines.append(Curve(group.named("measured"), group.kind, points, dots=True))
        area = tuple((x, spread.low, spread.high) for x, spread in spreads)
        bands.append(Band(group.kind, area))
    tops = [y for line in lines for _, y in line.points]
    return Plot(
        x=logarithmic(sizes, 1.25),
        y=from_zero([*tops, *(high for band in bands for *_, high in band.points)], 1.1),
        x_name="chips",
        y_name="efficiency",
        show_x=count,
        show_y=lambda value: f"{value * 100:.0f} %",
        curves=lines,
        bands=bands,
        x_ticks=sizes,
    )


def _compared_bars(report: ScalingReport, plans: Mapping[int, Plan]) -> list[Bar]:
    """Return the ledger of each comparable trial as one bar, with its measured step below."""
    bars: list[Bar] = []
    for trial in report.trials:
        if trial.measured is None or trial.not_compared or trial.number not in plans:
            continue
        name = settings_text({key: trial.settings[key] for key in report.vary}, report.vary)
        # The parts of the expected step end to end, or the resources of the unoverlapped.
        plan = plans[trial.number]
        step_s, expected = plan.forecast.step_s, expected_bars(plan)
        if expected and step_s.expected != step_s.unoverlapped:
            ledger = replace(expected[0], name=f"{name}: expected")
        else:
            parts = tuple(
                BarPart(bar.name, bar.value, kind=bar.kind) for bar in resource_bars(plan)
            )
            what = "expected" if expected else "predicted, unoverlapped"
            ledger = Bar(f"{name}: {what}", "latency", parts)
        step = BarPart("median step", trial.measured.step_s.median)
        bars += [ledger, Bar(f"{name}: measured", "measured", (step,))]
    return bars[: 2 * _MOST_BARS]


# The colors of a few trials; of many, the best alone has a color.
_SWEEP_KINDS = ("matmul", "hbm", "ici", "dcn", "host")
_BEST, _OTHER = "measured", "ideal"
_MOST_PLOTS = 4
_EXPONENT, _UNBROKEN = re.compile(r"(?<=\de)-"), "-\N{WORD JOINER}"  # 1e-2 stays on a line
_WIDE = 10.0  # values that differ by this factor have a logarithmic axis


def sweep_page(report: SweepReport) -> str:
    """Return the page as HTML."""
    known = [trial for trial in report.trials if trial.losses]
    plots = [plot for key in report.vary if (plot := _over_setting(report, key))]
    head, rows = sweep_table(report)
    return filled(
        "sweep.html",
        title=report.study,
        verdict=_EXPONENT.sub(_UNBROKEN, sentence(sweep_verdict(report))),
        headline=f"{report.name}: a sweep of {len(report.trials)} trials",
        report=report,
        over_steps=_over_steps(report, known) if known else None,
        over_settings=plots[:_MOST_PLOTS],
        trial_head=head,
        trial_rows=rows,
        words=2 + len(report.vary),
        notes=[f"{sentence(note)}." for note in sweep_notes(report)],
    )


def _over_steps(report: SweepReport, trials: Sequence[SweepTrialReport]) -> Plot:
    """Return the loss of each trial over its steps, the best on top."""
    are_few = len(trials) <= len(_SWEEP_KINDS) + 1
    kinds, curves, is_named = iter(_SWEEP_KINDS), list[Curve](), False
    for trial in sorted(trials, key=lambda trial: trial.number == report.best):
        settings = settings_text({key: trial.settings[key] for key in report.vary}, report.vary)
        points = tuple((float(step), loss) for step, loss in trial.losses)
        if trial.number == report.best:
            kind, name = _BEST, f"{settings} (best)"
        elif are_few:
            kind, name = next(kinds, _OTHER), settings
        else:  # one name for all others
            kind, name, is_named = _OTHER, "" if is_named else "other trials", True
        curves.append(Curve(name, kind, points, dots=len(points) == 1))
    return Plot(
        x=Axis(0.0, float(max(trial.steps for trial in trials)), whole=True),
        y=around([loss for trial in trials for _, loss in trial.losses]),
        x_name="steps",
        y_name="loss",
        show_x=count,
        show_y=loss_text,
        curves=curves,
    )


def _over_setting(report: SweepReport, key: str) -> Plot | None:
    """Return the last loss over a setting that is a number and differs; None for others."""
    known = [(trial, trial.loss) for trial in report.trials if trial.loss is not None]
    try:
        points = [(float(trial.settings[key]), loss, trial.number) for trial, loss in known]
    except ValueError:
        return None
    values = [value for value, *_ in points]
    if len(set(values)) < 2:
        return None
    curves = []
    for name, kind in (("best", _BEST), ("others", "matmul")):
        group = [point for point in points if (point[2] == report.best) == (name == "best")]
        labels = tuple(f"trial {number}: {loss_text(loss)}" for _, loss, number in group)
        places = tuple((value, loss) for value, loss, _ in group)
        if group:
            curves.append(Curve(name, kind, places, dots=True, joined=False, labels=labels))
    is_wide = min(values) > 0 and max(values) / min(values) >= _WIDE
    return Plot(
        x=logarithmic(values, 1.4) if is_wide else around(values),
        y=around([loss for _, loss, _ in points]),
        x_name=key,
        y_name="loss",
        show_x=lambda value: f"{value:g}" if value < 1 else scaled(value),
        show_y=loss_text,
        curves=curves,
    )
