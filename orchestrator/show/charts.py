"""The charts of a run's page. Each function is a chart; run.html places it with one line."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from orchestrator import formatting as fmt
from orchestrator.evidence.report import HostHeat, RunReading, device_times
from orchestrator.journal.steps import Floats, StepTable
from orchestrator.show import drawings as draw
from orchestrator.show.plan_text import resource_name
from orchestrator.show.report_screen import CAUSES, SLOW_TIMES
from orchestrator.values.plan import LedgerLine, Plan
from orchestrator.values.proof import Proof
from orchestrator.values.report import Goodput, Report
from orchestrator.values.run import Attempt

_SMALL = 0.012  # of the step: smaller resources share a bar
_MOST_POINTS = 240
_FAR = 2.0  # a roofline this many times above all else is left out of the plot of MFU
_LEAST = 0.02  # of the lower bound: resources that are busy for less have no roof
_MOST_ROOFS = 5


def _color(resource: str) -> str:
    return resource.partition(" ")[0]  # `ici` of `ici tensor`


def step_time(plan: Plan, report: Report | None = None) -> draw.BarChart:
    """Return the forecast by resource, and the measured step where it can be compared."""
    step_s = plan.forecast.step_s
    bars = [*resource_bars(plan), *expected_bars(plan)]
    marks = [draw.Mark("lower bound", "lower", step_s.lower)]
    if step_s.expected is not None:
        marks.append(draw.Mark("expected", "expected", step_s.expected, step_s.low, step_s.high))
    if step_s.unoverlapped != step_s.expected:
        marks.append(draw.Mark("unoverlapped", "unoverlapped", step_s.unoverlapped))
    if report and report.measured:
        usual_s, slow_s = device_times(report.measured)
        spent = {
            "devices": usual_s,
            "slow steps": slow_s,
            "waiting for data": report.measured.mean_data_s,
            "saving": report.measured.mean_checkpoint_s,
        }
        parts = tuple(draw.BarPart(name, part_s) for name, part_s in spent.items() if part_s > 0)
        measured = draw.Bar("measured, mean", "measured", parts)
        if report.gap is None:
            return draw.BarChart(bars=[measured], show=fmt.seconds)
        bars.append(measured)
        took_s = report.measured.step_s
        marks.append(draw.Mark("measured", "measured", took_s.median, took_s.low, took_s.high))
    return draw.BarChart(bars=bars, show=fmt.seconds, marks=marks)


def resource_bars(plan: Plan) -> list[draw.Bar]:
    """Return a bar for each resource, the busiest first, and one for all small ones."""
    lines: dict[str, list[LedgerLine]] = {}
    for line in plan.forecast.time:
        name = "ici latency" if line.resource == "latency" else resource_name(line.resource or "")
        lines.setdefault(name, []).append(line)
    bars = [draw.Bar(name, _color(name), _parts(group)) for name, group in lines.items()]
    bars.sort(key=lambda bar: -bar.value)
    least = _SMALL * plan.forecast.step_s.unoverlapped
    small = tuple(draw.BarPart(bar.name, bar.value) for bar in bars if bar.value < least)
    rest = [draw.Bar("the rest", "latency", small)] if small else []
    return [*(bar for bar in bars if bar.value >= least), *rest]


def expected_bars(plan: Plan) -> list[draw.Bar]:
    parts = _parts(plan.forecast.expected_time)
    return [draw.Bar("expected", "expected", parts)] if parts else []


def _parts(lines: Sequence[LedgerLine]) -> tuple[draw.BarPart, ...]:
    ordered = sorted(lines, key=lambda line: -line.value)
    return tuple(draw.BarPart(line.name, line.value) for line in ordered)


def _forecast_memory(plan: Plan) -> draw.Bar:
    largest = max(plan.forecast.memory, key=lambda phase: phase.bytes)
    return draw.Bar(f"forecast: {largest.name}", "hbm", _parts(largest.lines))


def rehearsal_memory(plan: Plan) -> draw.BarChart:
    return draw.BarChart(bars=[_forecast_memory(plan)], show=fmt.in_memory)


def memory(plan: Plan, proof: Proof | None, measured_bytes: float | None) -> draw.BarChart:
    """Return memory as forecast, compiled and measured, against the compiler limit."""
    bars = [_forecast_memory(plan)]
    if proof:
        ledger = sorted(proof.ledger, key=lambda line: -line.compiled)
        parts = [draw.BarPart(line.name, line.compiled) for line in ledger]
        rest = proof.peak_hbm_bytes_per_device - sum(part.value for part in parts)
        parts += [draw.BarPart("the rest", rest)] if rest > 0 else []
        bars.append(draw.Bar("compiled", "dcn", tuple(parts)))
    if measured_bytes is not None:
        peak = draw.BarPart("peak", measured_bytes)
        bars.append(draw.Bar("measured", "measured", (peak,)))
    limit = draw.Mark("compiler limit", "limit", plan.forecast.hbm_bytes_per_device)
    return draw.BarChart(bars=bars, show=fmt.in_memory, marks=[limit])


def goodput(spent: Goodput) -> draw.BarChart:
    lost = sorted(spent.badput_s.items(), key=lambda pair: -pair[1])
    parts = (
        draw.BarPart("steps that count", spent.goodput_s),
        *(draw.BarPart(CAUSES[name], s, kind="lost") for name, s in lost if s > 0),
    )
    bar = draw.Bar("from the first attempt to the end", "goodput", parts)
    return draw.BarChart(bars=[bar], show=fmt.elapsed_or_ms, named=3)


# Parts of an attempt's time, with a color each; the rest has that of lost time.
_SPANS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("starting processes", "ici", ("tpu_initialization",)),
    ("compiling", "matmul", ("program_startup",)),
    ("first state or restore", "hbm", ("training_prep", "unproductive_checkpoint_restore_time")),
    ("steps", "goodput", ("goodput",)),
    ("repeated steps", "measured", ("wasted_progress_from_disruption",)),
    ("waiting for data", "dcn", ("data_loading_sync",)),
    ("saving", "expected", ("unproductive_checkpoint_save_time",)),
    ("evaluating", "host", ("evaluation",)),
    ("not training", "lost", ("infrastructure_recovery_from_disruption", "other")),
)
_SPAN_OF = {cause: (name, kind) for name, kind, causes in _SPANS for cause in causes}
_MOST_ATTEMPTS = 8


def attempt_parts(reading: RunReading) -> list[tuple[Attempt, float, list[draw.BarPart]]]:
    """Return each attempt, the seconds from the first one until it began, and what it did."""
    found, run, spans = [], reading.run, reading.spans
    for attempt, later in zip_longest(run.attempts, run.attempts[1:]):
        parts = list[draw.BarPart]()
        for cause, s in spans[attempt.number]:
            name, kind = _SPAN_OF[cause]
            if parts and parts[-1].name == name:
                parts[-1] = replace(parts[-1], value=parts[-1].value + s)
            elif s > 0:
                parts.append(draw.BarPart(name, s, kind))
        if not later:  # since its last step
            ended_s = run.ended_at_s or run.read_at_s
            since_s = ended_s - attempt.started_at_s - sum(part.value for part in parts)
            what = _SPAN_OF["other" if parts else "tpu_initialization"]
            parts += [draw.BarPart(what[0], since_s, what[1])] if since_s > 0 else []
        found.append((attempt, attempt.started_at_s - run.attempts[0].started_at_s, parts))
    return found


def timeline(reading: RunReading) -> draw.BarChart:
    """Return a bar for each of the newest attempts, on one axis of time."""
    bars, names = list[draw.Bar](), set[str]()
    attempts = attempt_parts(reading)[-_MOST_ATTEMPTS:]
    for attempt, start_s, parts in attempts:
        names |= {part.name for part in parts}
        how = attempt.reason or reading.run.state
        name = f"attempt {attempt.number}: {how}"
        bars.append(draw.Bar(name, "goodput", tuple(parts), start_s - attempts[0][1]))
    key = [(name, kind) for name, kind, _ in _SPANS if name in names]
    return draw.BarChart(bars=bars, show=fmt.elapsed_or_ms, named=5, key=key)


def over_steps(plan: Plan, report: Report, steps: StepTable) -> list[draw.Plot]:
    """Return speed, time, loss and learning rate over steps."""
    warm, last, plots = steps.rows(steps.warm), float(steps.index[-1] + 1), list[draw.Plot]()
    levels, bands = list[draw.Curve](), list[draw.Band]()
    if report.measured and report.measured.mfu and report.ratios:
        # MFU with lines of the expected one, with its band, and of the roofline, which is left out
        # where it lies so far above that the others would be flat.
        known, mfu = warm.rows(~np.isnan(warm.mfu)), plan.forecast.mfu
        highest = max(float(known.mfu.max()), mfu.high or mfu.expected or 0.0)
        if mfu.expected is None or mfu.lower <= _FAR * highest:
            level = ((0.0, mfu.lower), (last, mfu.lower))
            levels.append(draw.Curve(f"roofline {fmt.percent(mfu.lower)}", "lower", level))
        if mfu.expected is not None:
            level = ((0.0, mfu.expected), (last, mfu.expected))
            levels.append(draw.Curve(f"expected {fmt.percent(mfu.expected)}", "expected", level))
        if mfu.low is not None and mfu.high is not None:
            points = ((0.0, mfu.low, mfu.high), (last, mfu.low, mfu.high))
            bands.append(draw.Band("expected", points))
        plots.append(_over_steps(steps, known, known.mfu, "MFU", fmt.percent, levels, bands))
    # Seconds per step, with the forecast and its interval where they can be compared.
    levels, bands, step_s = [], [], plan.forecast.step_s
    if report.measured and report.ratios:
        against = ("lower bound", "lower", step_s.lower)
        if step_s.expected is not None:
            against = ("expected", "expected", step_s.expected)
        name, kind, level_s = against
        if level_s * _FAR >= report.measured.step_s.median:
            said = f"{name} {fmt.seconds(level_s)}"
            levels.append(draw.Curve(said, kind, ((0.0, level_s), (last, level_s))))
        if levels and step_s.low is not None and step_s.high is not None:
            points = ((0.0, step_s.low, step_s.high), (last, step_s.low, step_s.high))
            bands.append(draw.Band("expected", points))
    evaluations = [steps.evaluations[row] for row in sorted(steps.evaluations)]
    held_out = tuple((float(taken.steps_done), taken.loss) for taken in evaluations)
    curves = [draw.Curve("held-out", "expected", held_out)] if held_out else []
    return [
        *plots,
        _over_steps(
            steps, warm, warm.step_s, "time per step",
            lambda value_s: fmt.seconds(value_s) if value_s else "0", levels, bands,
        ),
        _over_steps(steps, steps, steps.loss, "loss", "{:.2f}".format, curves, from_0=False),
        _over_steps(steps, steps, steps.learning_rate, "learning rate", "{:.3g}".format),
    ]  # fmt: skip


class _HeatStrip(NamedTuple):
    """Hosts over steps: a name, and pieces of one color each: first place, places, level, text."""

    places: int
    rows: list[tuple[str, list[tuple[int, int, int, str]]]]
    key: list[str]


def host_strip(heat: HostHeat) -> _HeatStrip:
    """Return a row for each host, in colors of how many times as long as the others it took."""
    rows = []
    for row in heat.rows:
        pieces = list[tuple[int, int, int, str]]()
        for place, times in enumerate(row.times):
            level = bisect_right(SLOW_TIMES, times)
            if pieces and pieces[-1][2] == level:
                first, places, _, text = pieces[-1]
                pieces[-1] = first, places + 1, level, text
            else:
                said = f"{row.name}, from step {heat.steps[place]:,.0f}: {times:.3g} x"
                pieces.append((place, 1, level, said))
        rows.append((row.name, pieces))
    key = ["like the others", *(f"from {times:g} x" for times in SLOW_TIMES)]
    return _HeatStrip(len(heat.steps), rows, key)


def _over_steps(
    steps: StepTable, shown: StepTable, values: Floats, name: str, show: Callable[[float], str],
    predicted: Sequence[draw.Curve] = (), expected: Sequence[draw.Band] = (), *,
    from_0: bool = True,
) -> draw.Plot:  # fmt: skip
    """Return a curve of medians in a band from least to most, with predictions and restarts."""
    places = thinned(shown.index.astype(float) + 1.0, values)
    ends = [y for _, low, _, high in places for y in (low, high)]
    ends += [y for curve in predicted for _, y in curve.points]
    ends += [high for band in expected for *_, high in band.points]
    y_axis = draw.from_zero(ends) if from_0 else draw.around(ends)
    points = tuple((x, y) for x, _, y, _ in places)
    measured = draw.Curve("measured", "measured", points, dots=len(points) == 1)
    spread = draw.Band("measured", tuple((x, low, high) for x, low, _, high in places))
    # A line where each attempt after the first begins; the key names one.
    lines = list[draw.Curve]()
    for x in map(float, steps.index[sorted(steps.startups)]):
        if x:
            height = ((x, y_axis.low), (x, y_axis.high))
            lines.append(draw.Curve("" if lines else "restart", "restart", height))
    lines += predicted
    x_axis = draw.Axis(0.0, max(float(steps.index[-1] + 1), 1.0), whole=True)
    curves, bands, keyed = [*lines, measured], [*expected, spread], bool(lines)
    return draw.Plot(x_axis, y_axis, "steps", name, fmt.count, show, curves, bands, keyed=keyed)


def thinned(
    x: Floats, y: Floats, most: int = _MOST_POINTS
) -> list[tuple[float, float, float, float]]:
    """Return few places, each with the least, the median and the most of the points there."""
    size = -(-len(x) // most) or 1
    places = []
    for at in range(0, len(x), size):
        group = y[at : at + size]
        place, median = float(np.median(x[at : at + size])), float(np.median(group))
        places.append((place, float(group.min()), median, float(group.max())))
    return places


def roofline(plan: Plan, measured_s: float | None) -> draw.Plot:
    """Return the roofs, and the step as forecast and, if it was measured on chips, as measured."""
    step_s = plan.forecast.step_s
    # FLOPs that a device executes in a step, recompute included, and its peak. The bubble has none.
    math = [line for line in plan.forecast.time if "flops" in line.inputs]
    flops, peak = sum(line.inputs["flops"] for line in math), math[0].inputs["rate"]
    times = (
        ("lower bound", "lower", step_s.lower),
        ("expected", "expected", step_s.expected),
        ("unoverlapped", "unoverlapped", step_s.unoverlapped),
        ("this run", "measured", measured_s),
    )
    levels = [(name, kind, flops / s) for name, kind, s in times if s]
    heights = [level for *_, level in levels]
    # Name, bytes per second and FLOPs per byte of the resources that matter, busiest first.
    moved: dict[str, tuple[float, float]] = {}
    for line in plan.forecast.time:
        if "bytes" in line.inputs and line.resource:
            size, s = moved.get(line.resource, (0.0, 0.0))
            moved[line.resource] = size + line.inputs["bytes"], s + line.value
    busiest = sorted(moved.items(), key=lambda pair: -pair[1][1])[:_MOST_ROOFS]
    roofs = [
        (resource_name(name), size / s, flops / size)
        for name, (size, s) in busiest
        if s >= _LEAST * step_s.lower and size
    ]
    meets = sorted(intensity for _, _, intensity in roofs) or [peak / max(heights)]
    x = draw.logarithmic([*meets, *(peak / rate for _, rate, _ in roofs)], 3)
    y = draw.Axis(min(heights) / 2.5, peak * 4, log=True)
    top = ((x.low, peak), (x.high, peak))
    curves = [draw.Curve(f"matmul {fmt.with_unit(peak, 'FLOP/s')}", "matmul", top)]
    # Slanted lines up to the peak, FLOP/s = rate x intensity, one for each link and rate.
    for name, rate in {f"{_color(n)} {fmt.with_unit(r, 'B/s')}": r for n, r, _ in roofs}.items():
        start = max(x.low, y.low / rate)
        end = max(start, min(x.high, peak / rate))
        slant = ((start, start * rate), (end, end * rate))
        curves.append(draw.Curve(name, _color(name), slant))
    # Dots at one height, where the step meets each roof.
    for name, kind, level in levels:
        dots = tuple((place, level) for place in meets)
        curves.append(draw.Curve(name, kind, dots, dots=True))
    return draw.Plot(
        x=x,
        y=y,
        x_name="FLOPs for each byte",
        y_name="executed FLOP/s of a device",
        show_x=lambda value: fmt.with_unit(value, "").strip() if value >= 1 else f"{value:g}",
        show_y=lambda value: fmt.with_unit(value, ""),
        curves=curves,
        flags=[draw.Flag(name, _color(name), rise, min(heights)) for name, _, rise in roofs],
    )
