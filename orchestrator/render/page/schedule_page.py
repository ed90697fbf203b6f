"""Show a proof's schedule on a page: a round of the layer loops in time, and a flame graph by line.

Positions are shares of the drawing's width, and rows of its height.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.formatting import percent, seconds
from orchestrator.render.page.drawings import share
from orchestrator.render.page.templates import filled
from orchestrator.render.plan_text import headline
from orchestrator.render.schedule_screen import KINDS, by_line, short_line
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.schedule import Schedule, ScheduledEvent, ScheduledLine, ScheduledLoop

TRACKS = ("compute", "ici", "dcn", "host", "hbm")
# The page's colors of each kind of time, and of what is on its way over each link.
COLORS = {
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
        colors=[(name, color) for name, color in COLORS.items() if name != "loop"],
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
        color=COLORS.get(event.kind, event.track),
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
    frame.color = COLORS[most(line)]


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
