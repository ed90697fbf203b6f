"""The charts of a run's page. Each function is a chart; run.html places it with one line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.evidence.report import device_times
from orchestrator.formatting import count, elapsed_or_ms, in_memory, percent, seconds, with_unit
from orchestrator.journal.steps import Floats, StepTable
from orchestrator.show.page.drawings import (
    Axis,
    Band,
    Bar,
    BarChart,
    BarPart,
    Curve,
    Flag,
    Mark,
    Plot,
    around,
    from_zero,
    logarithmic,
)
from orchestrator.show.plan_text import resource_name
from orchestrator.show.report_screen import CAUSES
from orchestrator.values.plan import LedgerLine, Plan
from orchestrator.values.proof import Proof
from orchestrator.values.report import Goodput, Measurement, Report

SMALL = 0.012  # of the step: smaller resources share a bar
MOST_POINTS = 240
FAR = 2.0  # a roofline so many times above all else is left out of the plot of MFU


def color(resource_name: str) -> str:
    """Return the color of a resource: that of its first word, as `ici` of `ici tensor`."""
    return resource_name.partition(" ")[0]


# --- time per step


def step_time(plan: Plan, report: Report | None = None) -> BarChart:
    """Return the forecast by resource, and the measured step where it can be compared."""
    forecast = [*resource_bars(plan), *expected_bars(plan)]
    measured = report.measured if report else None
    if report is None or measured is None:
        return BarChart(bars=forecast, show=seconds, marks=forecast_marks(plan))
    if report.gap is None:
        return BarChart(bars=[measured_bar(measured)], show=seconds)
    step_s = measured.step_s
    mark = Mark(
        name="measured", kind="measured", value=step_s.median, low=step_s.low, high=step_s.high
    )
    return BarChart(
        bars=[*forecast, measured_bar(measured)], show=seconds, marks=[*forecast_marks(plan), mark]
    )


def forecast_marks(plan: Plan) -> list[Mark]:
    step_s = plan.forecast.step_s
    marks = [Mark(name="lower bound", kind="lower", value=step_s.lower)]
    if step_s.expected is not None:
        low, high = step_s.low, step_s.high
        expected = step_s.expected
        marks.append(Mark(name="expected", kind="expected", value=expected, low=low, high=high))
    if step_s.unoverlapped != step_s.expected:
        marks.append(Mark(name="unoverlapped", kind="unoverlapped", value=step_s.unoverlapped))
    return marks


def resource_bars(plan: Plan) -> list[Bar]:
    """Return a bar for each resource, the busiest first, and one for all small ones."""
    lines: dict[str, list[LedgerLine]] = {}
    for line in plan.forecast.time:
        name = "ici latency" if line.resource == "latency" else resource_name(line.resource or "")
        lines.setdefault(name, []).append(line)
    bars = [Bar(name=name, kind=color(name), segments=segments(of)) for name, of in lines.items()]
    ordered = sorted(bars, key=lambda bar: -bar.value)
    least = SMALL * plan.forecast.step_s.unoverlapped
    small = [bar for bar in ordered if bar.value < least]
    if not small:
        return ordered
    rest = tuple(BarPart(name=bar.name, value=bar.value) for bar in small)
    large = [bar for bar in ordered if bar.value >= least]
    return [*large, Bar(name="the rest", kind="latency", segments=rest)]


def expected_bars(plan: Plan) -> list[Bar]:
    """Return the parts of the expected step as one bar, if there is one."""
    parts = segments(plan.forecast.expected_time)
    return [Bar(name="expected", kind="expected", segments=parts)] if parts else []


def segments(lines: Sequence[LedgerLine]) -> tuple[BarPart, ...]:
    """Return ledger lines as segments, the largest first."""
    ordered = sorted(lines, key=lambda line: -line.value)
    return tuple(BarPart(name=line.name, value=line.value) for line in ordered)


def measured_bar(measured: Measurement) -> Bar:
    """Return the mean step, by what it waited for."""
    usual_s, slow_s = device_times(measured)
    parts = {
        "devices": usual_s,
        "slow steps": slow_s,
        "waiting for data": measured.mean_data_s,
        "saving": measured.mean_checkpoint_s,
    }
    shown = tuple(BarPart(name=name, value=part_s) for name, part_s in parts.items() if part_s > 0)
    return Bar(name="measured, mean", kind="measured", segments=shown)


# --- memory and goodput


def forecast_memory(plan: Plan) -> Bar:
    """Return the largest phase of a step."""
    largest = max(plan.forecast.memory, key=lambda phase: phase.bytes)
    return Bar(name=f"forecast: {largest.name}", kind="hbm", segments=segments(largest.lines))


def rehearsal_memory(plan: Plan) -> BarChart:
    return BarChart(bars=[forecast_memory(plan)], show=in_memory)


def memory(plan: Plan, proof: Proof | None, measured_bytes: float | None) -> BarChart:
    """Return memory as forecast, compiled and measured, against the compiler limit."""
    bars = [forecast_memory(plan)]
    if proof:
        bars.append(compiled_memory(proof))
    if measured_bytes is not None:
        peak = BarPart(name="peak", value=measured_bytes)
        bars.append(Bar(name="measured", kind="measured", segments=(peak,)))
    limit = Mark(name="compiler limit", kind="limit", value=plan.forecast.hbm_bytes_per_device)
    return BarChart(bars=bars, show=in_memory, marks=[limit])


def compiled_memory(proof: Proof) -> Bar:
    ledger = sorted(proof.ledger, key=lambda line: -line.compiled)
    parts = [BarPart(name=line.name, value=line.compiled) for line in ledger]
    rest = proof.peak_hbm_bytes_per_device - sum(part.value for part in parts)
    if rest > 0:
        parts.append(BarPart(name="the rest", value=rest))
    return Bar(name="compiled", kind="dcn", segments=tuple(parts))


def goodput(spent: Goodput) -> BarChart:
    """Return all seconds of the run by where they went."""
    lost = sorted(spent.badput_s.items(), key=lambda pair: -pair[1])
    parts = (
        BarPart(name="steps that count", value=spent.goodput_s),
        *(BarPart(name=CAUSES[name], value=s, kind="lost") for name, s in lost if s > 0),
    )
    bar = Bar(name="from the first attempt to the end", kind="goodput", segments=parts)
    return BarChart(bars=[bar], show=elapsed_or_ms, named=3)


# --- over steps


def speed_over_steps(plan: Plan, report: Report, steps: StepTable) -> Plot:
    """Return MFU with its prediction, or seconds where MFU is not known."""
    warm = steps.rows(steps.warm)
    if report.measured and report.measured.mfu and report.ratios:
        known = warm.rows(~np.isnan(warm.mfu))
        predicted = predicted_mfu(plan, steps, float(known.mfu.max()))
        return over_steps(
            steps, known, known.mfu, "MFU", percent, predicted, expected_mfu(plan, steps)
        )
    return over_steps(steps, warm, warm.step_s, "seconds a step", seconds)


def loss_over_steps(steps: StepTable) -> Plot:
    held_out = tuple(
        (float(one.steps_done), one.loss) for _, one in sorted(steps.evaluations.items())
    )
    curves = [Curve(name="held-out", kind="expected", points=held_out)] if held_out else []
    return over_steps(steps, steps, steps.loss, "loss", "{:.2f}".format, curves, from_0=False)


def predicted_mfu(plan: Plan, steps: StepTable, measured: float) -> list[Curve]:
    """Return lines of the expected MFU and of the roofline, which is left out where it lies so far
    above that the others would be flat.
    """
    mfu, last = plan.forecast.mfu, last_step(steps)
    lines = []
    if mfu.expected is None or mfu.lower <= FAR * max(measured, mfu.high or mfu.expected):
        lines.append(("roofline", mfu.lower, "lower"))
    if mfu.expected is not None:
        lines.append(("expected", mfu.expected, "expected"))
    return [
        Curve(name=f"{name} {percent(value)}", kind=kind, points=((0, value), (last, value)))
        for name, value, kind in lines
    ]


def expected_mfu(plan: Plan, steps: StepTable) -> list[Band]:
    """Return the band in which MFU is expected."""
    mfu, last = plan.forecast.mfu, last_step(steps)
    if mfu.low is None or mfu.high is None:
        return []
    return [Band(kind="expected", points=((0.0, mfu.low, mfu.high), (last, mfu.low, mfu.high)))]


def last_step(steps: StepTable) -> float:
    return float(steps.index[-1] + 1)


def over_steps(
    steps: StepTable,
    shown: StepTable,
    values: Floats,
    name: str,
    show: Callable[[float], str],
    predicted: Sequence[Curve] = (),
    expected: Sequence[Band] = (),
    *,
    from_0: bool = True,
) -> Plot:
    """Return a curve of medians in a band from least to most, with predictions and restarts."""
    kept = thinned(shown.index.astype(float) + 1.0, values)
    ends = [y for _, low, _, high in kept for y in (low, high)]
    ends += [y for curve in predicted for _, y in curve.points]
    ends += [high for band in expected for *_, high in band.points]
    y_axis = from_zero(ends) if from_0 else around(ends)
    points = tuple((x, y) for x, _, y, _ in kept)
    measured = Curve(name="measured", kind="measured", points=points, dots=len(points) == 1)
    spread = tuple((x, low, high) for x, low, _, high in kept)
    lines = [*restarts(steps, y_axis), *predicted]
    return Plot(
        x=Axis(0.0, max(last_step(steps), 1.0), whole=True),
        y=y_axis,
        x_name="steps",
        y_name=name,
        show_x=count,
        show_y=show,
        curves=[*lines, measured],
        bands=[*expected, Band(kind="measured", points=spread)],
        keyed=bool(lines),
    )


def restarts(steps: StepTable, y_axis: Axis) -> list[Curve]:
    """Return a line where each attempt after the first begins; the key names one."""
    rows = steps.index[sorted(steps.startups)]
    begins = [float(index) for index in rows if index]
    return [
        Curve(
            name="" if number else "restart",
            kind="restart",
            points=((x, y_axis.low), (x, y_axis.high)),
        )
        for number, x in enumerate(begins)
    ]


def thinned(x: Floats, y: Floats) -> list[tuple[float, float, float, float]]:
    """Return few places, each with the least, the median and the most of the points there."""
    size = -(-len(x) // MOST_POINTS)
    return [
        (
            float(np.median(x[at : at + size])),
            float(y[at : at + size].min()),
            float(np.median(y[at : at + size])),
            float(y[at : at + size].max()),
        )
        for at in range(0, len(x), size or 1)
    ]


# The roofline of a plan, with a run on it.


LEAST = 0.02  # of the lower bound: resources that are busy for less are not drawn
MOST_ROOFS = 5


@dataclass(frozen=True)
class Roof:
    """Bytes of one kind: their rate, and the step's FLOPs for each of them."""

    name: str
    bytes_per_s: float
    flops_per_byte: float


def flops_of(plan: Plan) -> tuple[float, float]:
    """Return the FLOPs that a device executes in a step, recompute included, and its peak."""
    math = [line for line in plan.forecast.time if line.resource == "mxu"]
    return sum(line.inputs["flops"] for line in math), math[0].inputs["rate"]


def roofs(plan: Plan) -> list[Roof]:
    """Return the kinds of bytes that matter, the busiest first."""
    flops, _ = flops_of(plan)
    moved: dict[str, list[float]] = {}
    for line in plan.forecast.time:
        if "bytes" in line.inputs and line.resource:
            entry = moved.setdefault(line.resource, [0.0, 0.0])
            entry[0] += line.inputs["bytes"]
            entry[1] += line.value
    least = LEAST * plan.forecast.step_s.lower
    busiest = sorted(moved.items(), key=lambda pair: -pair[1][1])
    return [
        Roof(resource_name(name), size / s, flops / size)
        for name, (size, s) in busiest[:MOST_ROOFS]
        if s >= least and size
    ]


def roofline(plan: Plan, measured_s: float | None) -> Plot:
    """Return the roofs, and the step as forecast and, if it was measured on chips, as measured."""
    flops, peak = flops_of(plan)
    bytes_roofs = roofs(plan)
    levels = [(name, kind, flops / s) for name, kind, s in step_times(plan, measured_s)]
    lowest = min(level for *_, level in levels)
    highest = max(level for *_, level in levels)
    meets = [one.flops_per_byte for one in bytes_roofs] or [peak / highest]
    x = logarithmic([*meets, *(peak / one.bytes_per_s for one in bytes_roofs)], 3)
    y = Axis(lowest / 2.5, peak * 4, log=True)
    return Plot(
        x=x,
        y=y,
        x_name="FLOPs for each byte",
        y_name="executed FLOP/s of a device",
        show_x=power_text,
        show_y=lambda value: with_unit(value, ""),
        curves=[
            _peak(x, peak),
            *_slants(x, y, bytes_roofs, peak),
            *(_level(name, kind, level, meets) for name, kind, level in levels),
        ],
        flags=[
            Flag(name=one.name, kind=color(one.name), x=one.flops_per_byte, y=lowest)
            for one in bytes_roofs
        ],
    )


def step_times(plan: Plan, measured_s: float | None) -> list[tuple[str, str, float]]:
    """Return the known times of the step: name, color, seconds."""
    step_s = plan.forecast.step_s
    times = [
        ("lower bound", "lower", step_s.lower),
        ("expected", "expected", step_s.expected),
        ("unoverlapped", "unoverlapped", step_s.unoverlapped),
        ("this run", "measured", measured_s),
    ]
    return [(name, kind, s) for name, kind, s in times if s]


def power_text(value: float) -> str:
    """Return a power of ten for an axis."""
    return with_unit(value, "").strip() if value >= 1 else f"{value:g}"


def _peak(x: Axis, peak: float) -> Curve:
    name = f"matmul {with_unit(peak, 'FLOP/s')}"
    return Curve(name=name, kind="matmul", points=((x.low, peak), (x.high, peak)))


def _slants(x: Axis, y: Axis, bytes_roofs: list[Roof], peak: float) -> list[Curve]:
    """Return slanted lines up to the peak, one for each link and rate."""
    rates = {f"{color(one.name)} {with_unit(one.bytes_per_s, 'B/s')}": one for one in bytes_roofs}
    curves = []
    for name, one in rates.items():
        rate = one.bytes_per_s
        start = max(x.low, y.low / rate)
        end = max(start, min(x.high, peak / rate))
        points = ((start, start * rate), (end, end * rate))
        curves.append(Curve(name=name, kind=color(one.name), points=points))
    return curves


def _level(name: str, kind: str, level: float, meets: list[float]) -> Curve:
    """Return dots at one height, where the step meets each roof."""
    points = tuple((x, level) for x in sorted(meets))
    return Curve(name=name, kind=kind, points=points, dots=True)
