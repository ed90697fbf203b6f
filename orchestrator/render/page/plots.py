"""curves over two axes. Shapes stretch with the page; text and strokes do not.

Places are shares of the drawing. A curve lies in an inner drawing of a thousand units each way
that is stretched to the outer one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.render.page.axes import Axis
from orchestrator.render.page.bars import swatch
from orchestrator.render.page.html import Html, join, percent_of, tag

UNITS = 1000
FLAG_ROWS, FLAG_TOP, FLAG_STEP = 3, 10, 14  # heights of names, in pixels from the top
Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points joined by a line, or shown each by itself; `name` stands in the key."""

    name: str
    kind: str
    points: tuple[Point, ...]
    dots: bool = False
    line: bool = True


@dataclass(frozen=True, kw_only=True)
class Band:
    """What lies between a lower and an upper line."""

    kind: str
    points: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A name above a place of the first axis; neighbours take turns at three heights."""

    name: str
    kind: str
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Two axes, what they are called, and how their numbers are shown; `x_ticks` are those to show
    where round ones will not do.
    """

    x: Axis
    y: Axis
    x_name: str
    y_name: str
    show_x: Callable[[float], str]
    show_y: Callable[[float], str]
    x_ticks: tuple[float, ...] = ()

    def at(self, point: Point) -> tuple[float, float]:
        """A point as shares of the drawing, from its upper left corner."""
        return self.x(point[0]), 1 - self.y(point[1])


def plot(
    frame: Frame,
    curves: Sequence[Curve],
    bands: Sequence[Band] = (),
    flags: Sequence[Flag] = (),
    *,
    keyed: bool = True,
) -> Html:
    """The drawing, with the name of its upright axis above it and the key below."""
    stretched = tag(
        "svg",
        *(_area(frame, band) for band in bands),
        *(_path(frame, curve) for curve in curves if curve.line),
        viewBox=f"0 0 {UNITS} {UNITS}",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
    )
    dots = [_dot(frame, curve, point) for curve in curves if curve.dots for point in curve.points]
    label = f"{frame.y_name} over {frame.x_name}"
    inside = (_grid(frame), _flags(frame, flags), stretched, *dots)
    drawing = tag("svg", *inside, class_="plot", role="img", aria_label=label)
    names = [tag("li", swatch(curve.kind), curve.name) for curve in curves if curve.name]
    key = tag("ul", *names, class_="key") if keyed and names else Html("")
    above = tag("div", frame.y_name, class_="axis-name")
    below = tag("div", frame.x_name, class_="axis-name below")
    return tag("div", above, drawing, below, key, class_="drawn")


def _grid(frame: Frame) -> Html:
    lines = []
    for value in frame.y.ticks():
        y = percent_of(1 - frame.y(value))
        lines.append(tag("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        lines.append(tag("text", frame.show_y(value), x="0", y=y, dx="-6", dy="4", class_="tick y"))
    for value in frame.x_ticks or frame.x.ticks(7):
        x = percent_of(frame.x(value))
        lines.append(tag("line", x1=x, x2=x, y1="0", y2="100%", class_="grid"))
        lines.append(tag("text", frame.show_x(value), x=x, y="100%", dy="16", class_="tick x"))
    return join(*lines)


def _flags(frame: Frame, flags: Sequence[Flag]) -> Html:
    """Each name with a thin line down to its place."""
    drawn = []
    for i, flag in enumerate(sorted(flags, key=lambda flag: flag.x)):
        x, y = frame.at((flag.x, flag.y))
        row = FLAG_TOP + FLAG_STEP * (i % FLAG_ROWS)
        at = percent_of(x)
        drawn.append(tag("line", x1=at, x2=at, y1=f"{row + 3}", y2=percent_of(y), class_="pole"))
        drawn.append(tag("text", flag.name, x=at, y=f"{row}", class_=f"flag {flag.kind}"))
    return join(*drawn)


def _path(frame: Frame, curve: Curve) -> Html:
    return tag("polyline", points=_units(frame, curve.points), class_=f"curve {curve.kind}")


def _area(frame: Frame, band: Band) -> Html:
    upper = [(x, high) for x, _, high in band.points]
    lower = [(x, low) for x, low, _ in reversed(band.points)]
    return tag("polygon", points=_units(frame, (*upper, *lower)), class_=f"band {band.kind}")


def _units(frame: Frame, points: Sequence[Point]) -> str:
    places = map(frame.at, points)
    return " ".join(f"{x * UNITS:.4g},{y * UNITS:.4g}" for x, y in places)


def _dot(frame: Frame, curve: Curve, point: Point) -> Html:
    x, y = frame.at(point)
    said = f"{curve.name}: {frame.show_x(point[0])}, {frame.show_y(point[1])}"
    return tag("circle", tag("title", said), cx=percent_of(x), cy=percent_of(y), r="4.5",
               class_=f"dot {curve.kind}")  # fmt: skip
