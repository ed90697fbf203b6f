"""horizontal bars in segments, on one scale, with marks across them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.render.page.axes import Axis, from_zero
from orchestrator.render.page.html import Html, join, percent_of, tag

SHADES = 6


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a bar; `kind` where its colour is not the bar's."""

    name: str
    value: float
    kind: str | None = None


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar and its name; `kind` is the colour, by what it is about."""

    name: str
    kind: str
    segments: tuple[Segment, ...]

    @property
    def value(self) -> float:
        return sum(segment.value for segment in self.segments)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A value across all bars; with `low` and `high`, a band about it."""

    name: str
    kind: str
    value: float
    low: float | None = None
    high: float | None = None


def bars(
    rows: Sequence[Bar],
    show: Callable[[float], str],
    marks: Sequence[Mark] = (),
    *,
    told: int = 4,
) -> Html:
    """The bars, each with its name, its sum, and its largest segments in words below it."""
    ends = [row.value for row in rows] + [mark.high or mark.value for mark in marks]
    axis = from_zero(ends)
    drawn = join(*(_row(row, axis, show, marks, told) for row in rows))
    return tag("div", drawn, _key(marks, show), class_="bars")


def _row(
    row: Bar, axis: Axis, show: Callable[[float], str], marks: Sequence[Mark], told: int
) -> Html:
    title = tag("div", tag("b", row.name), tag("span", show(row.value)), class_="bar-title")
    start, rects = 0.0, []
    used: Counter[str] = Counter()
    for segment in row.segments:
        kind, end = segment.kind or row.kind, start + segment.value
        shade = used[kind] % SHADES
        used[kind] += 1
        rects.append(
            tag(
                "rect",
                tag("title", f"{segment.name}: {show(segment.value)}"),
                x=percent_of(axis(start)),
                y="20%",
                width=percent_of(max(axis(end) - axis(start), 0.0)),
                height="60%",
                class_=f"{kind} shade-{shade}",
            )
        )
        start = end
    drawing = tag("svg", *(_band(mark, axis) for mark in marks), *rects,
                  *(_line(mark, axis) for mark in marks), class_="bar", role="img",
                  aria_label=f"{row.name}: {show(row.value)}")  # fmt: skip
    return tag("div", title, drawing, _words(row, show, told), class_="bar-row")


def _band(mark: Mark, axis: Axis) -> Html:
    if mark.low is None or mark.high is None:
        return Html("")
    left, right = axis(mark.low), axis(mark.high)
    return tag("rect", x=percent_of(left), y="0", width=percent_of(right - left), height="100%",
               class_=f"band {mark.kind}")  # fmt: skip


def _line(mark: Mark, axis: Axis) -> Html:
    at = percent_of(axis(mark.value))
    return tag("line", x1=at, x2=at, y1="0", y2="100%", class_=f"mark {mark.kind}")


def _words(row: Bar, show: Callable[[float], str], told: int) -> Html:
    """The largest segments by name: what a colour alone cannot say."""
    if len(row.segments) < 2:
        return Html("")
    ordered = sorted(row.segments, key=lambda segment: -segment.value)
    words = [f"{segment.name} {show(segment.value)}" for segment in ordered[:told]]
    if len(ordered) > told:
        rest = sum(segment.value for segment in ordered[told:])
        words.append(f"{len(ordered) - told} more {show(rest)}")
    return tag("div", ", ".join(words), class_="bar-words")


def _key(marks: Sequence[Mark], show: Callable[[float], str]) -> Html:
    """What each mark is."""
    if not marks:
        return Html("")
    return tag("ul", *(_entry(mark, show) for mark in marks), class_="key")


def _entry(mark: Mark, show: Callable[[float], str]) -> Html:
    text = f"{mark.name} {show(mark.value)}"
    if mark.low is not None and mark.high is not None:
        text += f" ({show(mark.low)} to {show(mark.high)})"
    return tag("li", swatch(mark.kind), text)


def swatch(kind: str) -> Html:
    """A piece of a line as it is drawn, for a key."""
    line = tag("line", x1="0", x2="100%", y1="50%", y2="50%", class_=f"mark {kind}")
    return tag("svg", line, class_="swatch", aria_hidden="true")
