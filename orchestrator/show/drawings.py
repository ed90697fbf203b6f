"""Charts as values: bars and curves in shares of a drawing, unlike its text and strokes."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, floor, log10

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from orchestrator import formatting
from orchestrator.processes import resource
from orchestrator.values.codec import short

_ROUND_STEPS = (1, 2, 2.5, 5, 10)
_FEW_DECADES = 2  # an axis of this few decades has ticks at 2 and 5 too
_SHADES = 6
_FAR_BAND = 1.5  # of the largest bar or mark: a band that goes on beyond is cut there
_UNITS = 1000  # of the inner drawing of curves, in each direction
_FLAG_ROWS, _FLAG_TOP, _FLAG_STEP = 3, 10, 14  # heights of names above a plot, in pixels
_EDGE = 0.06  # of a plot's width: half of a flag's name, about

_Point = tuple[float, float]
_Show = Callable[[float], str]


def share(fraction: float) -> str:
    return f"{fraction * 100:.5g}%"


@dataclass(frozen=True)
class Axis:
    """A map from numbers to positions from 0 to 1, with cuts; a `whole` one has whole ticks."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            fraction = log10(max(value, self.low) / self.low) / log10(self.high / self.low)
        else:
            fraction = (value - self.low) / (self.high - self.low)
        return min(max(fraction, 0.0), 1.0)

    def ticks(self, most: int = 5) -> list[float]:
        """Return about this many round numbers along the axis."""
        if self.log:
            first, last = floor(log10(self.low)), ceil(log10(self.high))
            powers = range(first, last + 1, max(1, ceil((last - first) / most)))
            within = (1,) if log10(self.high / self.low) > _FEW_DECADES else (1, 2, 5)
            values = [number * 10.0**power for power in powers for number in within]
            return [value for value in values if self.low <= value <= self.high]
        # The smallest of 1, 2, 2.5 and 5 times a power of ten that gives no more ticks.
        least = (self.high - self.low) / most
        power = 10.0 ** floor(log10(least))
        step = next(power * n for n in _ROUND_STEPS if power * n >= least * (1 - 1e-9))
        if self.whole:
            step = float(ceil(step))
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def from_zero(values: Iterable[float], margin: float = 1.06) -> Axis:
    return Axis(0.0, (max(values, default=0.0) or 1.0) * margin)


def around(values: Sequence[float]) -> Axis:
    """Return a linear axis that holds the values and need not start at zero."""
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return Axis(low - margin, high + margin)


def logarithmic(values: Iterable[float], margin: float) -> Axis:
    positive = [value for value in values if value > 0] or [1.0]
    return Axis(min(positive) / margin, max(positive) * margin, log=True)


@dataclass(frozen=True)
class BarPart:
    """A part of a bar; `kind` is its color where that is not the bar's."""

    name: str
    value: float
    kind: str | None = None


@dataclass(frozen=True)
class Bar:
    """A bar of segments that begins at `start`; `kind` is its color."""

    name: str
    kind: str
    segments: tuple[BarPart, ...]
    start: float = 0.0

    @property
    def value(self) -> float:
        return sum(segment.value for segment in self.segments)


@dataclass(frozen=True)
class Mark:
    """A value across all bars; with `low` and `high`, a band around it."""

    name: str
    kind: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars on one scale, with marks; the largest `named` parts are named below a bar.

    `key` names the colors of parts.
    """

    bars: Sequence[Bar]
    show: _Show
    marks: Sequence[Mark] = ()
    named: int = 4
    key: Sequence[tuple[str, str]] = ()

    @property
    def axis(self) -> Axis:
        ends = [*(bar.start + bar.value for bar in self.bars), *(mark.value for mark in self.marks)]
        most = _FAR_BAND * max(ends, default=0.0)
        return from_zero([*ends, *(min(mark.high or 0.0, most) for mark in self.marks)])

    def at(self, value: float) -> str:
        return share(self.axis(value))

    def width(self, low: float, high: float) -> str:
        return share(max(self.axis(high) - self.axis(low), 0.0))

    def placed(self, bar: Bar) -> Iterator[tuple[str, str, str, str]]:
        """Yield label, left, width and classes of each segment; shades part those of one color."""
        start, used = bar.start, Counter[str]()
        for segment in bar.segments:
            kind, end = segment.kind or bar.kind, start + segment.value
            label = f"{segment.name}: {self.show(segment.value)}"
            # Parts of a named color keep it; others of one color differ in shade.
            shade = "" if self.key else f" shade-{used[kind] % _SHADES}"
            yield label, self.at(start), self.width(start, end), kind + shade
            used[kind] += 1
            start = end

    def names(self, bar: Bar) -> str:
        """Return the largest segments by name, and the sum of the others."""
        sums = dict[str, float]()
        for part in bar.segments:
            sums[part.name] = sums.get(part.name, 0.0) + part.value
        if len(sums) < 2:
            return ""
        ordered = sorted(sums.items(), key=lambda pair: -pair[1])
        texts = [f"{name} {self.show(value)}" for name, value in ordered[: self.named]]
        if others := ordered[self.named :]:
            texts.append(f"{len(others)} more {self.show(sum(value for _, value in others))}")
        return ", ".join(texts)


@dataclass(frozen=True)
class Curve:
    """Points, joined or not, with or without dots; `labels` replace the values that a dot shows."""

    name: str
    kind: str
    points: tuple[_Point, ...]
    dots: bool = False
    joined: bool = True
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Band:
    """The area between a lower and an upper line: x, low, high."""

    kind: str
    points: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Flag:
    """A name above a place of the x axis; neighbors take turns at three heights."""

    name: str
    kind: str
    x: float
    y: float


@dataclass(frozen=True)
class Plot:
    """Curves over two axes. `x_ticks` replace the round numbers of the x axis."""

    x: Axis
    y: Axis
    x_name: str
    y_name: str
    show_x: _Show
    show_y: _Show
    curves: Sequence[Curve]
    bands: Sequence[Band] = ()
    flags: Sequence[Flag] = ()
    x_ticks: Sequence[float] = ()
    keyed: bool = True

    def left(self, x: float) -> str:
        return share(self.x(x))

    def top(self, y: float) -> str:
        return share(1 - self.y(y))

    def line(self, points: Iterable[_Point]) -> str:
        """Return points in units of the inner drawing, which stretches to the outer one."""
        places = ((self.x(x), 1 - self.y(y)) for x, y in points)
        return " ".join(f"{x * _UNITS:.4g},{y * _UNITS:.4g}" for x, y in places)

    def area(self, band: Band) -> str:
        upper = [(x, high) for x, _, high in band.points]
        return self.line([*upper, *((x, low) for x, low, _ in reversed(band.points))])

    def dot_label(self, curve: Curve, number: int) -> str:
        if curve.labels:
            return curve.labels[number]
        point = curve.points[number]
        return f"{curve.name}: {self.show_x(point[0])}, {self.show_y(point[1])}"

    @property
    def spoken(self) -> str:
        """Return what the picture shows in a sentence: the ends of each curve that has points."""
        ends = [
            f"{curve.name} {self.show_y(curve.points[-1][1])}"
            for curve in self.curves
            if curve.name and curve.joined and curve.points
        ]
        return f"{self.y_name} over {self.x_name}; at the end: {', '.join(ends)}"

    def placed_flags(self) -> Iterator[tuple[Flag, int, str]]:
        """Yield each flag, its row in pixels, and the side of its name near an edge of the plot."""
        for number, flag in enumerate(sorted(self.flags, key=lambda flag: flag.x)):
            row = _FLAG_TOP + _FLAG_STEP * (number % _FLAG_ROWS)
            place = self.x(flag.x)
            yield flag, row, "right" if place < _EDGE else "left" if place > 1 - _EDGE else ""


# Fill the templates of dashboards/. Every value is escaped; only templates contain markup.

_FILTERS = ("count", "counted", "elapsed", "in_memory", "percent", "scaled", "seconds")


@cache
def _environment() -> Environment:
    """Return the templates, with the number formats of the screens as filters."""
    templates = Environment(
        loader=FileSystemLoader(resource("dashboards")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {name: getattr(formatting, name) for name in _FILTERS}
    templates.filters["short"] = short
    return templates


def filled(template: str, **values: object) -> str:
    return _environment().get_template(template).render(values)


def sentence(text: str) -> str:
    """Return a screen's note as the start of a sentence. Columns of pages have small letters."""
    first, space, rest = text.partition(" ")
    is_column = first.isupper() and len(first) > len("MFU")
    return f"{first[0].upper()}{first[1:].lower() if is_column else first[1:]}{space}{rest}"
