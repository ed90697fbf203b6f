"""Show a study on a page: its scaling curves, its trials, and what explains the gaps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.formatting import count, percent, scaled, seconds
from orchestrator.render.page.drawings import (
    Band,
    Bar,
    BarChart,
    BarPart,
    Curve,
    Plot,
    from_zero,
    logarithmic,
)
from orchestrator.render.page.run_charts import expected_bars, resource_bars
from orchestrator.render.page.templates import filled, sentence
from orchestrator.render.scaling_report_screen import (
    gap_explanation,
    notes,
    scaling_verdict,
    trial_row,
)
from orchestrator.render.scaling_screen import SCALINGS
from orchestrator.render.trials_text import key_title
from orchestrator.types.plan import Estimate, Plan
from orchestrator.types.scaling import PlannedTrial, ScalingReport, TrialReport

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
