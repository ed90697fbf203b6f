"""the roofline of a plan, with a run on it.

One roof for each thing that a step needs: FLOPs over the peak, and for each kind of bytes (HBM, the
links of a group, the data-center network) FLOPs per byte times its rate. The step meets each roof
at its own FLOPs per byte; how far below the lowest it stays is what overlap and rates cost.
"""

from dataclasses import dataclass

from orchestrator.render.formatting import resource, with_unit
from orchestrator.render.page.axes import Axis, logarithmic
from orchestrator.render.page.html import Html
from orchestrator.render.page.plots import Curve, Flag, Frame, plot
from orchestrator.types.plan import Plan

# A resource that a step keeps busy for less than this share of its bound is not drawn.
LEAST = 0.02
MOST_ROOFS = 5


@dataclass(frozen=True)
class Roof:
    """Bytes of one kind: their rate, and the step's FLOPs for each of them."""

    name: str
    bytes_per_s: float
    flops_per_byte: float


def flops_of(plan: Plan) -> tuple[float, float]:
    """FLOPs that a device executes in a step, what is done twice counted twice; and its peak."""
    math = [line for line in plan.forecast.time if line.resource == "mxu"]
    return sum(line.inputs["flops"] for line in math), math[0].inputs["rate"]


def roofs(plan: Plan) -> list[Roof]:
    """The kinds of bytes that matter, the busiest first."""
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
        Roof(resource(name), size / s, flops / size)
        for name, (size, s) in busiest[:MOST_ROOFS]
        if s >= least and size
    ]


def roofline(plan: Plan, measured_s: float | None) -> Html:
    """The drawing; without a measured step it shows the plan alone."""
    flops, peak = flops_of(plan)
    found = roofs(plan)
    known = steps(plan, measured_s)
    levels = [flops / s for _, _, s in known]
    meets = [one.flops_per_byte for one in found] or [peak / max(levels)]
    frame = Frame(
        x=logarithmic([*meets, *(peak / one.bytes_per_s for one in found)], 3),
        y=Axis(min(levels) / 2.5, peak * 4, log=True),
        x_name="FLOPs for each byte",
        y_name="FLOP/s of a device, executed",
        show_x=short,
        show_y=lambda value: with_unit(value, ""),
    )
    curves = [_peak(frame, peak), *_slants(frame, found, peak)]
    curves += [_level(name, kind, flops / s, meets) for name, kind, s in known]
    flags = [
        Flag(name=one.name, kind=kind_of(one.name), x=one.flops_per_byte, y=min(levels))
        for one in found
    ]
    return plot(frame, curves, flags=flags)


def steps(plan: Plan, measured_s: float | None) -> list[tuple[str, str, float]]:
    """The step as forecast and as measured: what it is called, its colour, its seconds."""
    found = plan.forecast.step_s
    known = [
        ("lower bound of the step", "lower", found.lower),
        ("expected", "expected", found.expected),
        ("nothing overlapped", "unoverlapped", found.unoverlapped),
        ("this run", "measured", measured_s),
    ]
    return [(name, kind, s) for name, kind, s in known if s]


def short(value: float) -> str:
    """A power of ten on an axis."""
    return with_unit(value, "").strip() if value >= 1 else f"{value:g}"


def _peak(frame: Frame, peak: float) -> Curve:
    said = f"matmul {with_unit(peak, 'FLOP/s')}"
    return Curve(name=said, kind="matmul", points=((frame.x.low, peak), (frame.x.high, peak)))


def _slants(frame: Frame, found: list[Roof], peak: float) -> list[Curve]:
    """The slanted lines, from the edge of the drawing to the peak; one for each link and rate."""
    rates = {f"{kind_of(one.name)} {with_unit(one.bytes_per_s, 'B/s')}": one for one in found}
    curves = []
    for name, one in rates.items():
        rate = one.bytes_per_s
        start = max(frame.x.low, frame.y.low / rate)
        end = max(start, min(frame.x.high, peak / rate))
        points = ((start, start * rate), (end, end * rate))
        curves.append(Curve(name=name, kind=kind_of(one.name), points=points))
    return curves


def _level(name: str, kind: str, level: float, meets: list[float]) -> Curve:
    """Dots where the step meets each roof, at one height."""
    points = tuple((x, level) for x in sorted(meets))
    return Curve(name=name, kind=kind, points=points, dots=True)


def kind_of(name: str) -> str:
    """The colour of a resource by its name."""
    return name.partition(" ")[0]
