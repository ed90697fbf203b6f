"""Show offers on a page: days against dollars as one picture, and the table of the frontier."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, floor, log10

from orchestrator.formatting import dollars, percent, seconds, time_limit
from orchestrator.planning.odds import Offer, Offers
from orchestrator.show.offers_screen import (
    HEAD,
    choices,
    in_words,
    nothing_sure,
    odds_text,
    offer_row,
    offers_headline,
    reasons,
    to_take,
)
from orchestrator.show.page.drawings import Curve, Flag, Plot, filled, logarithmic, share
from orchestrator.show.plan_text import headline
from orchestrator.show.proof_screen import KINDS, by_line, short_line
from orchestrator.values.plan import Estimate, Plan
from orchestrator.values.proof import Proof, Schedule, ScheduledEvent, ScheduledLine, ScheduledLoop

COLORS = 6  # of chips, in the style sheet


def offers_page(found: Offers) -> str:
    """Return the page as HTML."""
    planned = [one for one in found.offers if one.days]
    shown = [one for one in planned if one.on_frontier] or planned
    chosen = to_take(found)
    return filled(
        "offers.html",
        title=found.name,
        verdict=verdict(found),
        headline=offers_headline(found),
        picture=picture(found, planned) if any(one.dollars for one in planned) else None,
        head=HEAD,
        rows=[offer_row(one, found) for one in shown],
        overrides=chosen.overrides if chosen else (),
        planned=len(planned),
        offers=len(found.offers),
        reasons=reasons(found),
    )


def verdict(found: Offers) -> str:
    if found.cheapest:
        return in_words(found.cheapest)
    text = nothing_sure(found)
    return f"{text[0].upper()}{text[1:]}"


def picture(found: Offers, planned: list[Offer]) -> Plot:
    """Return every offer as a dot: days across, dollars up, the frontier as a line."""
    priced = [one for one in planned if one.dollars]
    best = tuple(place(one) for one in priced if one.on_frontier)
    line = Curve(name="no other is faster and cheaper", kind="measured", points=best)
    limits = limit_lines(found, priced)
    points = [place(one) for one in priced] + [point for one in limits for point in one.points]
    days, cost = [x for x, _ in points], [y for _, y in points]
    return Plot(
        x=logarithmic(days, 1.1),
        y=logarithmic(cost, 1.2),
        x_name="days, expected",
        y_name="dollars, expected",
        show_x=lambda value: f"{value:g}",
        show_y=dollars,
        curves=[line, *limits, *dots(priced)],
        flags=[
            Flag(name=name, kind="measured", x=place(one)[0], y=place(one)[1])
            for name, one in choices(found).items()
            if one is not None and one.dollars
        ],
        x_ticks=round_days(days),
    )


def dots(priced: list[Offer]) -> list[Curve]:
    """Return the offers of each chip as dots of one color."""
    return [
        Curve(name=chip, kind=f"chip-{i % COLORS + 1}", dots=True, joined=False,
              points=tuple(place(one) for one in priced if one.chip == chip),
              labels=tuple(label(one) for one in priced if one.chip == chip))
        for i, chip in enumerate(dict.fromkeys(one.chip for one in priced))
    ]  # fmt: skip


def round_days(days: list[float]) -> tuple[float, ...]:
    """Return 1, 2 and 5 times the powers of ten between the least and the most."""
    powers = range(floor(log10(min(days))), ceil(log10(max(days))) + 1)
    rounded = (step * 10.0**power for power in powers for step in (1, 2, 5))
    return tuple(one for one in rounded if min(days) <= one <= max(days))


def limit_lines(found: Offers, priced: list[Offer]) -> list[Curve]:
    """Return the date and the budget as lines."""
    places = [place(one) for one in priced]
    days, cost = [x for x, _ in places], [y for _, y in places]
    by, budget = found.request.by_days, found.request.budget_dollars
    lines = []
    if by is not None:
        points = ((by, min(cost)), (by, max(cost)))
        lines.append(Curve(name=f"within {time_limit(by)}", kind="ideal", points=points))
    if budget is not None:
        points = ((min(days), budget), (max(days), budget))
        lines.append(Curve(name=f"budget {dollars(budget)}", kind="expected", points=points))
    return lines


def place(one: Offer) -> tuple[float, float]:
    assert one.days
    assert one.dollars
    return expected(one.days), expected(one.dollars)


def expected(estimate: Estimate) -> float:
    return estimate.lower if estimate.expected is None else estimate.expected


def label(one: Offer) -> str:
    return f"{in_words(one)}; odds {odds_text(one)}"


# Show a proof's schedule on a page: a round of the layer loops in time, and a flame graph by
# line.


TRACKS = ("compute", "ici", "dcn", "host", "hbm")
# The page's colors of each kind of time, and of what is on its way over each link.
SCHEDULE_COLORS = {
    "product": "matmul",
    "kernel": "goodput",
    "copy": "expected",
    "other": "lost",
    "loop": "lost",
    "exposed": "measured",
}
ALL = 0.98  # of a line's seconds: they belong to the line that it leads to
WIDE = 0.03  # of the width: frames from there on have their name in them
NARROW = 0.001  # of the width: frames below it are not drawn
MOST_LINES = 30


@dataclass(frozen=True, kw_only=True)
class Box:
    """A colored box with its name, `left` and `width` as shares, in a row."""

    left: str
    width: str
    row: int
    color: str
    name: str
    title: str
    is_wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One round of a loop: a row for each track that it uses."""

    name: str
    tracks: tuple[str, ...]
    boxes: tuple[Box, ...]


@dataclass
class Frame:
    """A node of the flame graph: a line, its seconds, and the lines that it leads to."""

    line: str
    seconds: float = 0.0
    color: str = "lost"
    inner: dict[str, "Frame"] = field(default_factory=dict)


def schedule_page(plan: Plan, proof: Proof) -> str:
    """Return the page as HTML."""
    schedule = proof.schedule
    assert schedule is not None
    boxes = flame(schedule)
    return filled(
        "schedule.html",
        title=plan.name,
        verdict=f"{seconds(schedule.total_s)} a step, as the compiler schedules it",
        headline=headline(plan),
        totals=[(name, seconds(value), percent(value / schedule.total_s))
                for name, value in totals(schedule)],
        timelines=[timeline(loop) for loop in schedule.loops],
        flame=boxes,
        flame_rows=max((box.row for box in boxes), default=0) + 1,
        line_head=("line", "seconds", *(name for name, _ in KINDS)),
        line_rows=[line_row(one) for one in by_line(schedule)[:MOST_LINES]],
        colors=[(name, color) for name, color in SCHEDULE_COLORS.items() if name != "loop"],
    )  # fmt: skip


def totals(schedule: Schedule) -> list[tuple[str, float]]:
    return [(name, getattr(schedule, kind)) for name, kind in KINDS]


def line_row(one: ScheduledLine) -> tuple[str, ...]:
    return one.line, seconds(one.total_s), *(seconds(getattr(one, kind)) for _, kind in KINDS)


# --- the timeline


def timeline(loop: ScheduledLoop) -> Timeline:
    used = {event.track for event in loop.events}
    tracks = tuple(track for track in TRACKS if track in used)
    end_s = max([loop.round_s, *(event.start_s + event.seconds for event in loop.events)])
    return Timeline(
        name=f"{loop.name}: {seconds(loop.round_s)} a round, {loop.trips} rounds",
        tracks=tracks,
        boxes=tuple(event_box(event, tracks.index(event.track), end_s) for event in loop.events),
    )


def event_box(event: ScheduledEvent, row: int, end_s: float) -> Box:
    return Box(
        left=share(event.start_s / end_s),
        width=share(event.seconds / end_s),
        row=row,
        color=SCHEDULE_COLORS.get(event.kind, event.track),
        name=event.name,
        title=f"{event.kind} {event.name}, {seconds(event.seconds)}, {short_line(event.line)}",
    )


# --- the flame graph


def flame(schedule: Schedule) -> list[Box]:
    """Return a box for each line that leads to another, over those that it leads to."""
    root = Frame("step")
    for line in schedule.lines:
        add(root, line)
    return list(placed(shortened(root), 0.0, 0, schedule.total_s))


def shortened(frame: Frame) -> Frame:
    """Return the frame without lines that only lead to one other."""
    while len(frame.inner) == 1:
        (only,) = frame.inner.values()
        if only.seconds < ALL * frame.seconds:
            break
        frame = only
    inner = {name: shortened(one) for name, one in frame.inner.items()}
    return Frame(frame.line, frame.seconds, frame.color, inner)


def add(root: Frame, line: ScheduledLine) -> None:
    """Add a line's seconds to every line that leads to it."""
    frame = root
    frame.seconds += line.total_s
    for place in line.stack or (line.line,):
        frame = frame.inner.setdefault(place, Frame(place))
        frame.seconds += line.total_s
    frame.color = SCHEDULE_COLORS[most(line)]


def most(line: ScheduledLine) -> str:
    """Return what the line does for most of its time."""
    kinds = zip(("product", "kernel", "copy", "other", "exposed"), KINDS, strict=True)
    return max((getattr(line, kind), name) for name, (_, kind) in kinds)[1]


def placed(frame: Frame, left_s: float, row: int, total_s: float) -> Iterator[Box]:
    """Yield the frame's box and those below it, the longest first."""
    if frame.seconds < NARROW * total_s:
        return
    yield Box(
        left=share(left_s / total_s),
        width=share(frame.seconds / total_s),
        row=row,
        color=frame.color,
        name=short_line(frame.line),
        title=f"{frame.line}: {seconds(frame.seconds)}, {percent(frame.seconds / total_s)}",
        is_wide=frame.seconds >= WIDE * total_s,
    )
    for inner in sorted(frame.inner.values(), key=lambda one: (-one.seconds, one.line)):
        yield from placed(inner, left_s, row + 1, total_s)
        left_s += inner.seconds
