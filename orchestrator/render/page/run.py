"""Render room, pages: one run on a page, held against its plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.render import report as words
from orchestrator.render.page.axes import Axis, from_zero
from orchestrator.render.page.bars import Bar, Mark, Segment, bars
from orchestrator.render.page.html import Html, filled, join, table, tag
from orchestrator.render.page.plots import Band, Curve, Frame, plot
from orchestrator.render.page.roofline import kind_of, roofline
from orchestrator.render.plan import amount, headline
from orchestrator.render.runs import cause, elapsed
from orchestrator.render.text import count, gib, percent, scaled, seconds, to_digits
from orchestrator.stations.codec import short
from orchestrator.stations.plan import Plan
from orchestrator.stations.proof import Proof
from orchestrator.stations.report import Measured, Report
from orchestrator.stations.run import Run, TimedStep

MOST_POINTS = 240
SMALL = 0.012  # resources below this share of the step share a bar
MIB, GIB = 2**20, 2**30


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the page of a run shows. `plan` is the one that ran; `rehearsed` what it is a small copy
    of, and `proof` is of that one, or of `plan` where there is none.
    """

    run: Run
    report: Report
    plan: Plan
    rehearsed: Plan | None
    proof: Proof | None
    steps: Sequence[TimedStep]

    @property
    def full(self) -> Plan:
        """The plan for chips."""
        return self.rehearsed or self.plan


def run_page(shown: Shown) -> str:
    """The whole page."""
    report = shown.report
    return filled(
        "run.html",
        title=report.run,
        kind=rehearsal(shown),
        verdict=words.verdict(report),
        headline=headline(shown.full),
        figures=figures(report),
        time=time(shown),
        roofline=join(roofline(shown.full, compared_s(report)), roofline_note(shown)),
        steps=steps(shown),
        memory=memory(shown),
        goodput=goodput(report),
        attempts=attempts(shown.run),
        ledger=ledger(shown.full),
        made=made(shown),
    )


def rehearsal(shown: Shown) -> Html:
    """What a rehearsal says before anything else."""
    if not shown.report.rehearsal:
        return Html("")
    small = shown.plan
    said = (
        f"A rehearsal: a small copy ({scaled(small.model.parameters)} parameters, {small.devices}"
        f" emulated devices in {small.pods} {'pod' if small.pods == 1 else 'pods'}) on this"
        " machine's CPU. The forecasts below are of the plan for chips; nothing measured here is"
        " held against them."
    )
    return tag("p", said, class_="rehearsal")


def figures(report: Report) -> Html:
    """The numbers that people ask for first."""
    found, spent = report.measured, report.goodput
    entries: list[tuple[str, str, str]] = []
    if found:
        low, high = seconds(found.step_s.low), seconds(found.step_s.high)
        spread = f"{low} to {high}, {count(found.steps)} steps"
        entries.append(("step", seconds(found.step_s.median), spread))
        if found.mfu:
            low, high = percent(found.mfu.low), percent(found.mfu.high)
            entries.append(("MFU", percent(found.mfu.median), f"{low} to {high}"))
        rate = scaled(found.tokens_per_s_per_chip)
        of = "emulated chip" if report.rehearsal else "chip"
        entries.append((f"tokens/s per {of}", rate, f"{scaled(found.tokens_per_s)} in all"))
    entries += [
        ("over the bound", f"{to_digits(one.measured_over_predicted, 3)} x", seconds(one.step_s))
        for one in report.ratios
        if one.against == "lower"
    ]
    if spent:
        entries.append(("goodput", percent(spent.goodput), f"of {elapsed(spent.total_s)}"))
    if report.first_loss is not None and report.last_loss is not None:
        entries.append(("loss", f"{report.last_loss:.3f}", f"from {report.first_loss:.3f}"))
    return join(*(figure(*entry) for entry in entries))


def figure(name: str, value: str, beside: str) -> Html:
    return tag("div", tag("dt", name), tag("dd", value), tag("small", beside), class_="figure")


def compared_s(report: Report) -> float | None:
    """The measured step, where it may stand beside the forecast."""
    return report.measured.step_s.median if report.measured and report.ratios else None


# --- time per step


def time(shown: Shown) -> Html:
    """The ledger by resource on one scale; a rehearsal's own time on a scale of its own."""
    report, forecast = shown.report, shown.full.forecast
    rows = predicted(shown.full)
    marks = [
        Mark(name="lower bound", kind="lower", value=forecast.step_s.lower),
        Mark(name="nothing overlapped", kind="unoverlapped", value=forecast.step_s.unoverlapped),
    ]
    found, gap = report.measured, report.gap
    note = ""
    if found and gap:
        rows.append(measured(found))
        low, high = found.step_s.low, found.step_s.high
        middle = found.step_s.median
        marks.append(Mark(name="measured", kind="measured", value=middle, low=low, high=high))
        note = words.gap(gap)
    said = tag("p", note) if note else Html("")
    drawn = join(bars(rows, seconds, marks), said)
    if found and not gap:
        own = bars([measured(found)], seconds)
        drawn = join(drawn, tag("h3", "Measured here, on its own scale"), own)
    return drawn


def predicted(plan: Plan) -> list[Bar]:
    """A bar for each resource, the busiest first."""
    lines: dict[str, list[Segment]] = {}
    for line in plan.forecast.time:
        name = "ici latency" if line.resource == "latency" else words.resource(line.resource or "")
        lines.setdefault(name, []).append(Segment(name=line.name, value=line.value))
    found = [
        Bar(name=name, kind=kind_of(name), segments=tuple(sorted(all_, key=lambda s: -s.value)))
        for name, all_ in lines.items()
    ]
    ordered = sorted(found, key=lambda bar: -bar.value)
    least = SMALL * plan.forecast.step_s.unoverlapped
    small = [bar for bar in ordered if bar.value < least]
    shown = [bar for bar in ordered if bar.value >= least]
    if not small:
        return shown
    segments = tuple(Segment(name=bar.name, value=bar.value) for bar in small)
    return [*shown, Bar(name="the rest", kind="latency", segments=segments)]


def measured(found: Measured) -> Bar:
    """The mean step, by what it waited for."""
    rest = found.mean_step_s - found.mean_data_s - found.mean_checkpoint_s
    segments = (
        Segment(name="devices, in the median step", value=min(found.device_s, rest)),
        Segment(name="slow steps", value=max(rest - found.device_s, 0.0)),
        Segment(name="waiting for data", value=found.mean_data_s),
        Segment(name="saving", value=found.mean_checkpoint_s),
    )
    return Bar(name="measured, mean", kind="measured", segments=segments)


def roofline_note(shown: Shown) -> Html:
    said = (
        "Slanted lines are roofs: bytes over HBM, the links inside a pod (ici) or the data-center"
        " network (dcn) at their peak rates. A dot stands where the step meets each of them, and"
        " the step can rise until one touches its own. Groups that use the same links take turns."
    )
    if shown.report.rehearsal:
        said += " The rehearsal itself is not on it: its seconds are a CPU's."
    return tag("p", said)


# --- over steps


def steps(shown: Shown) -> Html:
    """MFU over steps with the predicted line, or seconds where it is not known; and the loss."""
    taken = [timed.step for timed in shown.steps]
    warm = [step for step in taken if step.opening is None]
    if not warm:
        return tag("p", "No step was measured after warm-up.")
    last = float(max(step.index for step in taken) + 1)
    roof = shown.report.forecast.mfu.roofline
    restarts = [float(step.index) for step in taken if step.opening and step.index]
    if shown.report.measured and shown.report.measured.mfu and shown.report.ratios:
        points = [(step.index + 1.0, step.mfu) for step in warm if step.mfu is not None]
        flat = Curve(
            name=f"roofline {percent(roof)}", kind="lower", points=((0, roof), (last, roof))
        )
        first = over_steps(points, last, restarts, "MFU", percent, [flat])
    else:
        points = [(step.index + 1.0, step.step_s) for step in warm]
        first = over_steps(points, last, restarts, "seconds a step", seconds, [])
    losses = [(step.index + 1.0, step.loss) for step in taken]
    second = over_steps(losses, last, restarts, "loss", "{:.2f}".format, [], zero=False)
    return join(tag("div", first), tag("div", second))


def over_steps(
    points: list[tuple[float, float]],
    last: float,
    restarts: list[float],
    name: str,
    show: Callable[[float], str],
    beside: list[Curve],
    *,
    zero: bool = True,
) -> Html:
    """A curve of medians in a band from least to most, and lines that stand for predictions."""
    kept = thinned(points)
    values = [value for _, value in points] + [y for curve in beside for _, y in curve.points]
    frame = Frame(
        x=Axis(0.0, max(last, 1.0)),
        y=from_zero(values) if zero else about(values),
        x_name="steps",
        y_name=name,
        show_x=count,
        show_y=show,
    )
    line = Curve(name="measured", kind="measured", points=tuple((x, y) for x, _, y, _ in kept))
    band = Band(kind="measured", points=tuple((x, low, high) for x, low, _, high in kept))
    lines = [
        Curve(
            name="restart" if i == 0 else "",
            kind="restart",
            points=((at, frame.y.low), (at, frame.y.high)),
        )
        for i, at in enumerate(restarts)
    ]
    return plot(frame, [*lines, *beside, line], [band], keyed=bool(beside or lines))


def about(values: list[float]) -> Axis:
    """An axis that holds the values and not zero."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return Axis(low - room, high + room)


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float, float, float]]:
    """At most so many places, each with the least, the median and the most that lie there."""
    size = -(-len(points) // MOST_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [
        (
            median(x for x, _ in group),
            min(y for _, y in group),
            median(y for _, y in group),
            max(y for _, y in group),
        )
        for group in groups
    ]


# --- memory, time lost, tables


def size(value_bytes: float) -> str:
    return gib(value_bytes) if value_bytes >= GIB / 10 else f"{value_bytes / MIB:,.1f} MiB"


def memory(shown: Shown) -> Html:
    """Forecast by lines, compiled by classes, against what the compiler allows."""
    forecast, proof = shown.full.forecast, shown.proof
    largest = max(forecast.memory, key=lambda phase: phase.bytes)
    lines = sorted(largest.lines, key=lambda line: -line.value)
    rows = [
        Bar(
            name=f"forecast: {largest.name}",
            kind="hbm",
            segments=tuple(Segment(name=line.name, value=line.value) for line in lines),
        )
    ]
    if proof:
        held = sorted(proof.ledger, key=lambda line: -line.compiled)
        segments = tuple(Segment(name=line.name, value=line.compiled) for line in held)
        peak = proof.peak_hbm_bytes_per_device
        rest = peak - sum(segment.value for segment in segments)
        more = (Segment(name="the rest", value=rest),) if rest > 0 else ()
        rows.append(Bar(name="compiled", kind="dcn", segments=(*segments, *more)))
    limit = Mark(name="the compiler allows", kind="limit", value=forecast.hbm_bytes_per_device)
    said = [] if proof else ["No proof is kept with this run: nothing was compiled for chips."]
    known = shown.report.memory.measured_bytes
    if known is not None and not shown.report.rehearsal:
        rows.append(
            Bar(name="measured", kind="measured", segments=(Segment(name="peak", value=known),))
        )
    else:
        said.append("What the devices held was not measured.")
    return join(bars(rows, size, [limit]), tag("p", " ".join(said)))


def goodput(report: Report) -> Html:
    """All seconds of the run by where they went."""
    spent = report.goodput
    if spent is None:
        return tag("p", "No attempt has begun.")
    lost = sorted(spent.badput_s.items(), key=lambda pair: -pair[1])
    row = Bar(
        name="from the first attempt to the end",
        kind="goodput",
        segments=(
            Segment(name="steps that counted", value=spent.goodput_s),
            *(Segment(name=words.CAUSES[name], value=s, kind="lost") for name, s in lost if s > 0),
        ),
    )
    rows = [("goodput", elapsed_or_ms(spent.goodput_s), percent(spent.goodput))]
    rows += [
        (f"{name}: {words.CAUSES[name]}", elapsed_or_ms(s), percent(s / spent.total_s))
        for name, s in lost
        if s > 0
    ]
    return join(
        bars([row], elapsed_or_ms, told=3),
        tag("p", words.goodput(spent)),
        table(("where", "time", "share"), rows),
    )


def elapsed_or_ms(value_s: float) -> str:
    return elapsed(value_s) if value_s >= 10 else seconds(value_s)


def attempts(run: Run) -> Html:
    rows = [
        (
            str(one.number),
            one.reason or run.state,
            cause(one) or "-",
            str(one.pods),
            count(one.steps_done),
            elapsed((one.ended_at_s or run.read_at_s) - one.started_at_s)
            if one.reason != "lost"
            else "-",
        )
        for one in run.attempts
    ]
    if not rows:
        return tag("p", "No attempt has begun.")
    return table(("attempt", "ended by", "why", "pods", "steps done", "took"), rows, words=3)


def ledger(plan: Plan) -> Html:
    """Every line of seconds with its formula and numbers."""
    rows = [
        (
            line.name,
            words.resource(line.resource or ""),
            line.formula,
            amount(line),
            seconds(line.value),
        )
        for line in plan.forecast.time
    ]
    return table(("line", "keeps busy", "formula", "amount", "time"), rows, words=4)


def made(shown: Shown) -> Html:
    """Which plan, which spec, by which definition, with which versions."""
    report = shown.report
    facts = [
        ("plan", short(report.plan_digest)),
        ("rehearses plan", short(report.rehearses) if report.rehearses else ""),
        ("spec", short(report.spec_digest)),
        ("MFU counts", report.forecast.mfu_definition),
        *shown.run.environment.items(),
    ]
    entries = (join(tag("dt", name), tag("dd", value)) for name, value in facts if value)
    return tag("dl", *entries, class_="facts")
