"""Show a study on a page: its scaling curves, its trials, and what explains the gaps."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.formatting import count, percent, scaled, seconds
from orchestrator.show.page.charts import expected_bars, resource_bars
from orchestrator.show.page.drawings import (
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
from orchestrator.show.scaling_screens import (
    SCALINGS,
    gap_explanation,
    notes,
    scaling_verdict,
    trial_row,
)
from orchestrator.show.sweep_screens import (
    ranked,
    sweep_report_head,
    sweep_report_notes,
    sweep_report_row,
    sweep_verdict,
)
from orchestrator.show.trials_text import key_title, loss_text
from orchestrator.values.plan import Estimate, Plan
from orchestrator.values.study import (
    PlannedTrial,
    ScalingReport,
    SweepReport,
    SweepTrialReport,
    TrialReport,
)

# The colors of several series; a single one has the first.
KINDS = ("measured", "matmul", "hbm", "ici", "dcn", "host")
MOST_BARS = 12  # trials whose ledgers are drawn

Row = tuple[str, ...]


@dataclass(frozen=True)
class Series:
    """Trials that differ only in size, the smallest first."""

    name: str
    kind: str
    trials: tuple[TrialReport, ...]

    def named(self, what: str) -> str:
        return f"{what}, {self.name}" if self.name else what


def scaling_page(report: ScalingReport, plans: Mapping[int, Plan]) -> str:
    """Return the page as HTML; `plans` has the plan of each trial by its number."""
    series = series_of(report)
    bars = compared_bars(report, plans)
    return filled(
        "study.html",
        title=report.study,
        verdict=sentence(scaling_verdict(report)),
        headline=f"{report.name}: {len(report.trials)} trials, {SCALINGS[report.scaling]}",
        report=report,
        throughput=throughput(series) if series else None,
        efficiency=efficiency(series) if series else None,
        trial_head=trial_head(report),
        trial_rows=[trial_row(report, one) for one in report.trials],
        notes=[f"{sentence(note)}." for note in notes(report)],
        compared=BarChart(bars=bars, show=seconds) if bars else None,
        explanation=gap_explanation(report.explanations),
        chip_head=chip_head(report),
        chip_rows=chip_rows(report),
        unfinished=[pair for one in report.trials for pair in one.unfinished.items()],
    )


def series_of(report: ScalingReport) -> list[Series]:
    """Return the series with a measured trial, each with its color."""
    groups: dict[str, list[TrialReport]] = {}
    for trial in report.trials:
        if trial.measured:
            names = key_names(tuple(trial.series), report.vary)
            series = zip(names, trial.series.values(), strict=True)
            groups.setdefault(" ".join(f"{k} {v}" for k, v in series), []).append(trial)
    return [
        Series(name, KINDS[number % len(KINDS)], tuple(sorted(trials, key=lambda one: one.chips)))
        for number, (name, trials) in enumerate(groups.items())
    ]


def key_names(keys: Sequence[str], vary: Sequence[str]) -> tuple[str, ...]:
    return tuple(key_title(key, vary).lower() for key in keys)


# --- curves


def throughput(series: Sequence[Series]) -> Plot:
    """Return tokens per second over chips: measured, predicted, and ideal."""
    sizes = sizes_of(series)
    lines = [line for one in series for line in throughput_lines(one, sizes)]
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


def sizes_of(series: Sequence[Series]) -> tuple[float, ...]:
    return tuple(sorted({float(trial.chips) for one in series for trial in one.trials}))


def throughput_lines(one: Series, sizes: Sequence[float]) -> list[Curve]:
    points = tuple(
        (float(trial.chips), trial.measured.tokens_per_s_per_chip.median * trial.chips)
        for trial in one.trials
        if trial.measured
    )
    per_chip = points[0][1] / points[0][0]
    ends = (points[0][0], max(points[0][0], sizes[-1]))
    ideal = tuple((x, x * per_chip) for x in ends)
    return [
        Curve(name=one.named("ideal"), kind="ideal", points=ideal),
        *predictions(one, lambda p, at: getattr(p.tokens_per_s_per_chip, at) * p.chips),
        Curve(name=one.named("measured"), kind=one.kind, points=points, dots=True),
    ]


def predictions(one: Series, figure: Callable[[PlannedTrial, str], float]) -> list[Curve]:
    """Return what was predicted, where it can be compared with the measurement."""
    known = [(t, t.predicted) for t in one.trials if t.predicted and not t.not_compared]
    if not known:
        return []
    lines = [("unoverlapped", "unoverlapped", "unoverlapped"), ("lower bound", "lower", "lower")]
    if known[0][0].expected_s is not None:
        at = "expected" if known[0][1].efficiency.expected is not None else "unoverlapped"
        lines = [("expected", "expected", at)]
    return [
        Curve(
            name=one.named(name),
            kind=kind,
            points=tuple((float(trial.chips), figure(plan, at)) for trial, plan in known),
        )
        for name, kind, at in lines
    ]


def efficiency(series: Sequence[Series]) -> Plot:
    """Return tokens per second and chip over those of the smallest trial, with their spread."""
    sizes = sizes_of(series)
    lines = [Curve(name="ideal", kind="ideal", points=((sizes[0], 1.0), (sizes[-1], 1.0)))]
    bands = []
    for one in series:
        lines += predictions(one, lambda plan, at: float(getattr(plan.efficiency, at)))
        spreads = [(float(t.chips), t.measured.efficiency) for t in one.trials if t.measured]
        points = tuple((x, spread.median) for x, spread in spreads)
        lines.append(Curve(name=one.named("measured"), kind=one.kind, points=points, dots=True))
        area = tuple((x, spread.low, spread.high) for x, spread in spreads)
        bands.append(Band(kind=one.kind, points=area))
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


# --- tables and ledgers


def trial_head(report: ScalingReport) -> Row:
    names = key_names(report.vary, report.vary)
    return ("trial", *names, "runs", "step", "spread", "tokens/s/chip", "MFU", "efficiency",
            "predicted", "over")  # fmt: skip


def compared_bars(report: ScalingReport, plans: Mapping[int, Plan]) -> list[Bar]:
    """Return the ledger of each comparable trial as one bar, with its measured step below."""
    bars: list[Bar] = []
    for trial in report.trials:
        if trial.measured is None or trial.not_compared or trial.number not in plans:
            continue
        settings = zip(key_names(report.vary, report.vary), report.vary, strict=True)
        name = ", ".join(f"{label} {trial.settings[key]}" for label, key in settings)
        step = BarPart(name="median step", value=trial.measured.step_s.median)
        measured = Bar(name=f"{name}: measured", kind="measured", segments=(step,))
        bars += [ledger_bar(name, plans[trial.number]), measured]
    return bars[: 2 * MOST_BARS]


def ledger_bar(name: str, plan: Plan) -> Bar:
    """Return the parts of the expected step end to end, or the resources of the unoverlapped."""
    step_s, expected = plan.forecast.step_s, expected_bars(plan)
    if expected and step_s.expected != step_s.unoverlapped:
        return replace(expected[0], name=f"{name}: expected")
    parts = tuple(
        BarPart(name=bar.name, value=bar.value, kind=bar.kind) for bar in resource_bars(plan)
    )
    what = "expected" if expected else "predicted, unoverlapped"
    return Bar(name=f"{name}: {what}", kind="latency", segments=parts)


def chip_head(report: ScalingReport) -> Row:
    names = key_names(report.vary, report.vary)
    return (*names, "chips", "at best", "expected", "MFU", "efficiency", "bottleneck")


def likeliest_text(share: Estimate) -> str:
    """Return what is expected, or the bound as such."""
    if share.expected is None:
        return f"{percent(share.lower)} at best"
    return percent(share.expected)


def chip_rows(report: ScalingReport) -> list[Row]:
    """Return the predictions for chips, where the trials themselves were rehearsed."""
    known = [(one, one.predicted) for one in report.trials if one.predicted and one.not_compared]
    return [
        (
            *(one.settings[key] for key in report.vary),
            count(plan.chips),
            seconds(plan.step_s.lower),
            "-" if plan.step_s.expected is None else seconds(plan.step_s.expected),
            likeliest_text(plan.mfu),
            likeliest_text(plan.efficiency),
            plan.bound,
        )
        for one, plan in known
    ]


# The colors of a few trials; of many, the best alone has a color.
SWEEP_KINDS = ("matmul", "hbm", "ici", "dcn", "host")
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
        trial_head=("trial", *(name.lower() for name in sweep_report_head(report)[1:-1]), "MFU"),
        trial_rows=[sweep_report_row(report, one) for one in ranked(report)],
        words=2 + len(report.vary),
        notes=[f"{sentence(note)}." for note in sweep_report_notes(report)],
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
    few = len(trials) <= len(SWEEP_KINDS) + 1
    ordered = sorted(trials, key=lambda one: one.number == report.best)
    kinds, curves, unnamed = iter(SWEEP_KINDS), list[Curve](), False
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
