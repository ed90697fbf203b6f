"""what was measured over steps, with what was predicted as lines."""

from collections.abc import Callable
from statistics import median

from orchestrator.render.formatting import count, percent, seconds
from orchestrator.render.page.axes import Axis, from_zero
from orchestrator.render.page.html import Html, join, tag
from orchestrator.render.page.plots import Band, Curve, Frame, plot
from orchestrator.render.page.shown import RunPage
from orchestrator.types.plan import Plan

MOST_POINTS = 240


def steps(shown: RunPage) -> Html:
    """MFU over steps with the predicted line, or seconds where it is not known; and the loss."""
    taken = [timed.step for timed in shown.steps]
    warm = [step for step in taken if step.startup is None]
    if not warm:
        return tag("p", "No step was measured after warm-up.")
    last = float(max(step.index for step in taken) + 1)
    restarts = [float(step.index) for step in taken if step.startup and step.index]
    if shown.report.measured and shown.report.measured.mfu and shown.report.ratios:
        points = [(step.index + 1.0, step.mfu) for step in warm if step.mfu is not None]
        first = over_steps(points, last, restarts, "MFU", percent, mfu_lines(shown.plan, last))
    else:
        points = [(step.index + 1.0, step.step_s) for step in warm]
        first = over_steps(points, last, restarts, "seconds a step", seconds, [])
    losses = [(step.index + 1.0, step.loss) for step in taken]
    second = over_steps(losses, last, restarts, "loss", "{:.2f}".format, [], zero=False)
    return join(tag("div", first), tag("div", second))


def mfu_lines(plan: Plan, last: float) -> list[Curve]:
    """What the forecast says of MFU: what is expected, or else the roofline."""
    mfu = plan.forecast.mfu
    lines = [("roofline", mfu.lower, "lower")]
    if mfu.expected is not None:
        lines.append(("expected", mfu.expected, "expected"))
    return [
        Curve(name=f"{name} {percent(value)}", kind=kind, points=((0, value), (last, value)))
        for name, value, kind in lines
    ]


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
