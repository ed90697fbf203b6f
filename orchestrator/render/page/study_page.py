"""a study on a page: its scaling curves beside the ideal and the predicted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.render import study_report_screen
from orchestrator.render.formatting import count, percent, scaled, seconds, span
from orchestrator.render.page.axes import from_zero, logarithmic
from orchestrator.render.page.bars import Bar, Segment, bars
from orchestrator.render.page.html import Html, filled, join, table, tag
from orchestrator.render.page.ledger import expected, predicted
from orchestrator.render.page.plots import Band, Curve, Frame, plot
from orchestrator.render.study_screen import SCALINGS, key_title
from orchestrator.types.plan import Plan
from orchestrator.types.study import PlannedTrial, StudyReport, TrialReport

# The colours of several series, the first also that of a single one.
KINDS = ("measured", "matmul", "hbm", "ici", "dcn", "host")
MOST_BARS = 12  # trials whose ledgers are drawn


@dataclass(frozen=True)
class Series:
    """Trials that differ in size alone, the smallest first."""

    name: str
    kind: str
    trials: tuple[TrialReport, ...]


def study_page(report: StudyReport, plans: Mapping[int, Plan]) -> str:
    """The whole page; `plans` are what was predicted for each trial, by its number."""
    return filled(
        "study.html",
        title=report.study,
        kind=rehearsal(report),
        verdict=study_report_screen.study_verdict(report),
        headline=f"{report.name}: {len(report.trials)} trials, {SCALINGS[report.scaling]}",
        curves=curves(report),
        trials=trials(report),
        parted=parted(report, plans),
        chips=chips(report),
        unfinished=unfinished(report),
    )


def rehearsal(report: StudyReport) -> Html:
    """What rehearsed trials say before anything else."""
    if not report.rehearsal:
        return Html("")
    said = (
        "A rehearsal: small copies on emulated pods, which share this machine's cores. More pods"
        " are slower here however well the plan scales: this shows that every trial runs, not how"
        " fast chips would be."
    )
    return tag("p", said, class_="rehearsal")


def series_of(report: StudyReport) -> list[Series]:
    """The series with a measured trial, each with its colour."""
    found: dict[str, list[TrialReport]] = {}
    for trial in report.trials:
        if trial.measured:
            name = " ".join(
                f"{key_title(k, report.vary).lower()} {v}" for k, v in trial.series.items()
            )
            found.setdefault(name, []).append(trial)
    return [
        Series(name, KINDS[i % len(KINDS)], tuple(sorted(trials, key=lambda one: one.chips)))
        for i, (name, trials) in enumerate(found.items())
    ]


# --- curves


def curves(report: StudyReport) -> Html:
    """Tokens per second over chips, and efficiency, with the ideal and the predicted beside."""
    found = series_of(report)
    if not found:
        return tag("p", "Nothing is measured yet.")
    return join(tag("div", throughput(found)), tag("div", efficiency(found)))


def throughput(found: Sequence[Series]) -> Html:
    sizes = sizes_of(found)
    lines = [line for one in found for line in throughput_lines(one, sizes)]
    levels = [y for line in lines for _, y in line.points]
    frame = Frame(
        x=logarithmic(sizes, 1.25),
        y=logarithmic(levels, 1.4),
        x_name="chips",
        y_name="tokens per second",
        show_x=count,
        show_y=scaled,
        x_ticks=sizes,
    )
    return plot(frame, lines)


def sizes_of(found: Sequence[Series]) -> tuple[float, ...]:
    return tuple(sorted({float(trial.chips) for one in found for trial in one.trials}))


def throughput_lines(one: Series, sizes: Sequence[float]) -> list[Curve]:
    """Measured; what it would be if every chip did as much as one of the smallest; predicted."""
    points = tuple((float(t.chips), rate_of(t) * t.chips) for t in one.trials)
    each = points[0][1] / points[0][0]
    ends = (points[0][0], max(points[0][0], sizes[-1]))
    ideal = Curve(name=named("ideal", one), kind="ideal", points=tuple((x, x * each) for x in ends))
    measured = Curve(name=named("measured", one), kind=one.kind, points=points, dots=True)
    return [ideal, *predictions(one, lambda p, at: getattr(p.tokens_per_s_per_chip, at) * p.chips),
            measured]  # fmt: skip


def rate_of(trial: TrialReport) -> float:
    assert trial.measured
    return trial.measured.tokens_per_s_per_chip.median


def named(what: str, one: Series) -> str:
    return f"{what}, {one.name}" if one.name else what


def predictions(one: Series, figure: Callable[[PlannedTrial, str], float]) -> list[Curve]:
    """What was predicted, where it may stand beside the measured."""
    known = [(t, t.predicted) for t in one.trials if t.predicted and not t.not_compared]
    if not known:
        return []
    wanted = [("nothing overlapped", "unoverlapped"), ("lower bound", "lower")]
    if known[0][0].expected_s is not None:
        at = "expected" if known[0][1].efficiency.expected is not None else "unoverlapped"
        wanted = [("expected", at)]
    return [
        Curve(
            name=named(name, one),
            kind="expected" if name == "expected" else at,
            points=tuple((float(t.chips), figure(plan, at)) for t, plan in known),
        )
        for name, at in wanted
    ]


def efficiency(found: Sequence[Series]) -> Html:
    """Tokens per second and chip over those of the smallest trial; a band where repeats differ."""
    sizes = sizes_of(found)
    lines = [Curve(name="ideal", kind="ideal", points=((sizes[0], 1.0), (sizes[-1], 1.0)))]
    spread = []
    for one in found:
        lines += predictions(one, lambda plan, at: float(getattr(plan.efficiency, at)))
        kept = [(float(t.chips), t.measured.efficiency) for t in one.trials if t.measured]
        points = tuple((x, value.median) for x, value in kept)
        lines.append(Curve(name=named("measured", one), kind=one.kind, points=points, dots=True))
        band = tuple((x, value.low, value.high) for x, value in kept)
        spread.append(Band(kind=one.kind, points=band))
    tops = [y for line in lines for _, y in line.points] + [h for b in spread for *_, h in b.points]
    frame = Frame(
        x=logarithmic(sizes, 1.25),
        y=from_zero(tops, 1.1),
        x_name="chips",
        y_name="efficiency",
        show_x=count,
        show_y=lambda value: f"{value * 100:.0f} %",
        x_ticks=sizes,
    )
    return plot(frame, lines, spread)


# --- tables and ledgers


def trials(report: StudyReport) -> Html:
    names = tuple(key_title(key, report.vary).lower() for key in report.vary)
    head = ("trial", *names, "runs", "step", "spread", "tokens/s/chip", "MFU", "efficiency",
            "predicted", "over")  # fmt: skip
    notes = study_report_screen.notes(report)
    said = join(*(tag("p", f"{note[0].upper()}{note[1:]}.") for note in notes))
    return join(
        table(head, [study_report_screen.trial_row(report, one) for one in report.trials]), said
    )


def parted(report: StudyReport, plans: Mapping[int, Plan]) -> Html:
    """The ledger of each trial as one bar, its measured step below it, and what goes with the gaps.

    Only where the two may be compared.
    """
    rows = []
    for trial in report.trials:
        if trial.measured is None or trial.not_compared or trial.number not in plans:
            continue
        name = ", ".join(
            f"{key_title(k, report.vary).lower()} {trial.settings[k]}" for k in report.vary
        )
        rows.append(whole(name, plans[trial.number]))
        step = Segment(name="median step", value=trial.measured.step_s.median)
        rows.append(Bar(name=f"{name}: measured", kind="measured", segments=(step,)))
    if not rows:
        return tag("p", "No trial may be held against a prediction.")
    drawn = bars(rows[: 2 * MOST_BARS], seconds)
    return join(drawn, tag("p", study_report_screen.gap_explanation(report.explanations)))


def whole(name: str, plan: Plan) -> Bar:
    """All that a step is expected to be made of, end to end; or the roofline's lines, by resource.

    On measured ceilings the two are one.
    """
    step_s, made = plan.forecast.step_s, expected(plan)
    if made and step_s.expected != step_s.unoverlapped:
        return replace(made[0], name=f"{name}: expected")
    what = "expected" if made else "predicted, nothing overlapped"
    segments = tuple(
        Segment(name=bar.name, value=bar.value, kind=bar.kind) for bar in predicted(plan)
    )
    return Bar(name=f"{name}: {what}", kind="latency", segments=segments)


def chips(report: StudyReport) -> Html:
    """What is predicted for chips, where the trials themselves were rehearsed."""
    known = [(one, one.predicted) for one in report.trials if one.predicted and one.not_compared]
    if not known:
        return Html("")
    names = tuple(key_title(key, report.vary).lower() for key in report.vary)
    head = (*names, "chips", "step, lower", "nothing overlapped", "MFU", "efficiency", "binds")
    rows = [
        (
            *(one.settings[key] for key in report.vary),
            count(plan.chips),
            seconds(plan.step_s.lower),
            seconds(plan.step_s.unoverlapped),
            span(percent(plan.mfu.lower), percent(plan.mfu.unoverlapped)),
            span(percent(plan.efficiency.lower), percent(plan.efficiency.unoverlapped)),
            plan.bound,
        )
        for one, plan in known
    ]
    body = join(tag("h2", "Predicted for chips"), table(head, rows, words=0))
    return tag("section", body)


def unfinished(report: StudyReport) -> Html:
    """Runs that have not succeeded."""
    rows = [(run, state) for one in report.trials for run, state in one.unfinished.items()]
    if not rows:
        return Html("")
    return tag("section", tag("h2", "Not done"), table(("run", "state"), rows, words=2))
