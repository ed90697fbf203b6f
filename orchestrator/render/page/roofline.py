"""The roofline of a plan, with a run on it.

One roof for each thing that a step needs: FLOPs over the peak, and for each kind of bytes (HBM, the
links of a group, the data-center network) FLOPs per byte times its rate. The step meets each roof
at its own FLOPs per byte. Its distance to the lowest roof is the cost of overlap and rates.
"""

from dataclasses import dataclass

from orchestrator.formatting import with_unit
from orchestrator.render.page.drawings import Axis, Curve, Flag, Plot, logarithmic
from orchestrator.render.page.run_charts import color
from orchestrator.render.resource_names import resource_name
from orchestrator.types.plan import Plan

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
