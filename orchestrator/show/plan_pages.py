"""Show on a page: offers, as days against dollars, and a proof's schedule by time and by line."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, floor, log10
from typing import NamedTuple

from orchestrator import formatting as fmt
from orchestrator.planning.offers import Offer, Offers
from orchestrator.show import drawings as draw
from orchestrator.show import offers_screen as screens
from orchestrator.show.plan_text import headline
from orchestrator.show.proof_screen import by_line, short_line
from orchestrator.values.plan import Plan
from orchestrator.values.proof import KINDS, Schedule

_COLORS = 6  # of chips, in the style sheet


def offers_page(found: Offers) -> str:
    planned = [offer for offer in found.offers if offer.days]
    chosen, why = screens.to_take(found), screens.nothing_sure(found)
    why = f"{why[0].upper()}{why[1:]}"
    sides, without = screens.side_by_side(found)
    picture = None
    if priced := [offer for offer in planned if offer.dollars]:
        # Every offer as a dot: days across, dollars up, the frontier as a line.
        best = tuple(_place(offer) for offer in priced if offer.on_frontier)
        curves = [draw.Curve("no other is faster and cheaper", "measured", best)]
        # The date and the budget as lines.
        days, cost = zip(*map(_place, priced), strict=True)
        by, budget = found.request.by_days, found.request.budget_dollars
        if by is not None:
            points = ((by, min(cost)), (by, max(cost)))
            curves.append(draw.Curve(f"within {fmt.time_limit(by)}", "ideal", points))
        if budget is not None:
            points = ((min(days), budget), (max(days), budget))
            curves.append(draw.Curve(f"budget {fmt.dollars(budget)}", "expected", points))
        # The offers of each chip as dots of one color.
        for number, chip in enumerate(dict.fromkeys(offer.chip for offer in priced)):
            offers = [offer for offer in priced if offer.chip == chip]
            words = ((screens.in_words(offer), screens.odds_text(offer)) for offer in offers)
            labels = tuple(f"{text}; odds {odds}" for text, odds in words)
            color, dots = f"chip-{number % _COLORS + 1}", tuple(map(_place, offers))
            curves.append(draw.Curve(chip, color, dots, dots=True, joined=False, labels=labels))
        days, cost = zip(*(point for curve in curves for point in curve.points), strict=True)
        # 1, 2 and 5 times the powers of ten between the least and the most.
        powers = range(floor(log10(min(days))), ceil(log10(max(days))) + 1)
        rounded = (step * 10.0**power for power in powers for step in (1, 2, 5))
        flags = [
            draw.Flag(name, "measured", *_place(offer))
            for name, offer in screens.choices(found).items()
            if offer is not None and offer.dollars
        ]
        picture = draw.Plot(
            draw.logarithmic(days, 1.1), draw.logarithmic(cost, 1.2), "days, expected",
            "dollars, expected", lambda value: f"{value:g}", fmt.dollars, curves, flags=flags,
            x_ticks=tuple(number for number in rounded if min(days) <= number <= max(days)),
        )  # fmt: skip
    return draw.filled(
        "offers.html",
        title=found.name,
        verdict=screens.in_words(found.cheapest) if found.cheapest else why,
        headline=screens.offers_headline(found),
        picture=picture,
        head=screens.HEAD,
        side_head=screens.SIDE_HEAD,
        side=[*sides, *((chip, "no plan", *[""] * 10, why) for chip, why in without)],
        rows=[screens.offer_row(offer, found) for offer in screens.frontier_of(planned)],
        overrides=chosen.overrides if chosen else (),
        planned=len(planned),
        offers=len(found.offers),
        reasons=screens.reasons(found.offers),
    )


def _place(offer: Offer) -> tuple[float, float]:
    assert offer.days
    assert offer.dollars
    return offer.days.likeliest, offer.dollars.likeliest


# A proof's schedule: a round of the layer loops in time, and a flame graph by line.

_TRACKS = ("compute", "ici", "dcn", "host", "hbm")
# The page's colors of each kind of time, and of what is on its way over each link.
_SCHEDULE_COLORS = {
    "product": "matmul",
    "kernel": "goodput",
    "copy": "expected",
    "other": "lost",
    "loop": "lost",
    "exposed": "measured",
}
_ALL = 0.98  # of a line's seconds: they belong to the line that it leads to
_WIDE = 0.03  # of the width: frames from there on have their name in them
_NARROW = 0.001  # of the width: frames below it are not drawn
_MOST_LINES = 30


class _Box(NamedTuple):
    """A colored box with its name, `left` and `width` as shares, in a row."""

    left: str
    width: str
    row: int
    color: str
    name: str
    title: str
    is_wide: bool = False


@dataclass
class _Frame:
    """A node of the flame graph: a line, its seconds, and the lines that it leads to."""

    line: str
    seconds: float = 0.0
    color: str = "lost"
    inner: dict[str, "_Frame"] = field(default_factory=dict)


def schedule_page(plan: Plan, schedule: Schedule) -> str:
    # For each loop, the tracks that a round of it uses, and its events as boxes on them.
    timelines = []
    for loop in schedule.loops:
        used = {event.track for event in loop.events}
        tracks = tuple(track for track in _TRACKS if track in used)
        end_s = max([loop.round_s, *(event.start_s + event.seconds for event in loop.events)])
        events = []
        for event in loop.events:
            took = f"{event.kind} {event.name}, {fmt.seconds(event.seconds)}"
            box = _Box(
                left=draw.share(event.start_s / end_s),
                width=draw.share(event.seconds / end_s),
                row=tracks.index(event.track),
                color=_SCHEDULE_COLORS.get(event.kind, event.track),
                name=event.name,
                title=f"{took}, {short_line(event.line)}",
            )
            events.append(box)
        timelines.append((loop, tracks, events))
    # A box for each line that leads to another, over those that it leads to.
    root = _Frame("step")
    for line in schedule.lines:  # its seconds belong to every line that leads to it
        frame = root
        frame.seconds += line.total_s
        for place in line.stack or (line.line,):
            frame = frame.inner.setdefault(place, _Frame(place))
            frame.seconds += line.total_s
        # The color of what the line does for most of its time.
        kinds = zip(("product", "kernel", "copy", "other", "exposed"), KINDS, strict=True)
        longest = max((getattr(line, field), kind) for kind, (_, field) in kinds)[1]
        frame.color = _SCHEDULE_COLORS[longest]
    boxes = list(_boxes(_shortened(root), 0.0, 0, schedule.total_s))
    return draw.filled(
        "schedule.html",
        title=plan.name,
        verdict=f"{fmt.seconds(schedule.total_s)} a step, as the compiler schedules it",
        headline=headline(plan),
        schedule=schedule,
        kinds=KINDS,
        timelines=timelines,
        flame=boxes,
        flame_rows=max((box.row for box in boxes), default=0) + 1,
        lines=by_line(schedule.lines)[:_MOST_LINES],
        colors=[(name, color) for name, color in _SCHEDULE_COLORS.items() if name != "loop"],
    )


def _shortened(frame: _Frame) -> _Frame:
    """Return the frame without lines that only lead to one other."""
    while len(frame.inner) == 1:
        (only,) = frame.inner.values()
        if only.seconds < _ALL * frame.seconds:
            break
        frame = only
    inner = {name: _shortened(below) for name, below in frame.inner.items()}
    return _Frame(frame.line, frame.seconds, frame.color, inner)


def _boxes(frame: _Frame, left_s: float, row: int, total_s: float) -> Iterator[_Box]:
    """Yield the frame's box and those below it, the longest first."""
    if frame.seconds < _NARROW * total_s:
        return
    yield _Box(
        left=draw.share(left_s / total_s),
        width=draw.share(frame.seconds / total_s),
        row=row,
        color=frame.color,
        name=short_line(frame.line),
        title=f"{frame.line}: {fmt.seconds(frame.seconds)}, {fmt.percent(frame.seconds / total_s)}",
        is_wide=frame.seconds >= _WIDE * total_s,
    )
    for inner in sorted(frame.inner.values(), key=lambda below: (-below.seconds, below.line)):
        yield from _boxes(inner, left_s, row + 1, total_s)
        left_s += inner.seconds
