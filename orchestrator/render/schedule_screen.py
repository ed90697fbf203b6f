"""Show a proof's schedule: where the compiled step loses time, by line, product and transfer."""

from collections import defaultdict

from orchestrator.formatting import count, percent, seconds
from orchestrator.render.screen_parts import Part, Table, indent, section
from orchestrator.types.plan import ATTENTION_LINES, Plan
from orchestrator.types.schedule import (
    Schedule,
    ScheduledCollective,
    ScheduledLine,
    ScheduledProduct,
)

MOST = 3  # rows of each table; --json has all
SMALL = 0.002  # of a step: what takes less is left to --json
LOW_SHARE = 0.75  # of the peak: products below it are shown
KINDS = (
    ("products", "products_s"),
    ("kernels", "kernels_s"),
    ("copies", "copies_s"),
    ("other", "other_s"),
    ("exposed", "exposed_s"),
)


def schedule_parts(plan: Plan, schedule: Schedule | None) -> list[Part]:
    """Return the schedule's total beside the ledger's, then where its seconds are."""
    if schedule is None:
        return ["no schedule: the catalog has no clock for this chip"]
    return [
        *section("seconds of a step, scheduled by the compiler", [totals(plan, schedule)]),
        *section("by line", [lines(schedule)]),
        *section(f"products below {percent(LOW_SHARE)} of the peak", products(schedule)),
        *section("copies and relayouts", copies(schedule)),
        *section("exposed transfers", transfers(schedule)),
        *indent(unpriced(schedule)),
    ]


def totals(plan: Plan, schedule: Schedule) -> Table:
    """Return seconds by kind. The ledger's are at peak rates, with nothing hidden."""
    ledger = ledger_s(plan) if plan.ledger_describes_trainer else {}
    rows = [
        (name, seconds(getattr(schedule, field)), known(ledger.get(name)), note(schedule, name))
        for name, field in KINDS
    ]
    whole = plan.forecast.step_s.unoverlapped if ledger else None
    rows.append(("scheduled", seconds(schedule.total_s), known(whole), "an estimate, no promise"))
    return Table(rows=[("", "compiled", "ledger", ""), *rows], columns="<>><")


def known(value: float | None) -> str:
    return "" if value is None else seconds(value)


def note(schedule: Schedule, name: str) -> str:
    if name != "products" or not schedule.products_s:
        return ""
    reached = schedule.flops / schedule.products_s / schedule.peak_flops_per_s
    return f"{percent(reached)} of the peak"


def ledger_s(plan: Plan) -> dict[str, float]:
    """Return the ledger's seconds by the schedule's kinds; links are all that is on the wire."""
    by_kind: dict[str, float] = defaultdict(float)
    for line in plan.forecast.time:
        name = {"mxu": "products", "hbm": "other"}.get(line.resource or "", "exposed")
        by_kind["kernels" if line.kind in ATTENTION_LINES else name] += line.value
    return dict(by_kind)


def by_line(schedule: Schedule) -> list[ScheduledLine]:
    """Return the lines, each once, whichever calls led to it; the longest first."""
    alike: dict[str, list[ScheduledLine]] = defaultdict(list)
    for one in schedule.lines:
        alike[one.line].append(one)
    joined = [
        ScheduledLine(
            line=line,
            stack=(line,),
            flops=sum(one.flops for one in ones),
            **{field: sum(getattr(one, field) for one in ones) for _, field in KINDS},
        )
        for line, ones in alike.items()
    ]
    return sorted(joined, key=lambda one: (-one.total_s, one.line))


def lines(schedule: Schedule) -> Table:
    head = ("", *(name for name, _ in KINDS), "")
    rows = [
        (
            seconds(one.total_s),
            *(part(getattr(one, field), schedule) for _, field in KINDS),
            short_line(one.line),
        )
        for one in by_line(schedule)[:MOST]
        if one.total_s >= SMALL * schedule.total_s
    ]
    return Table(rows=[head, *rows], columns=">>>>>><")


def part(value_s: float, schedule: Schedule) -> str:
    return seconds(value_s) if value_s >= SMALL / 10 * schedule.total_s else "-"


def short_line(line: str) -> str:
    """Return a line of source by its file and number: `model.py:120 (mlp_part)`. Of a function's
    qualified name the last word stays that names one: `<listcomp>` names none.
    """
    path, _, function = line.partition(" ")
    words = [one for one in function.strip("()").split(".") if one and not one.startswith("<")]
    return " ".join((path.rsplit("/", 1)[-1], *(f"({one})" for one in words[-1:])))


def products(schedule: Schedule) -> list[Part]:
    """Return the products that lose most against the peak."""
    slow = [
        one
        for one in schedule.products
        if one.peak_share < LOW_SHARE and one.seconds >= SMALL * schedule.total_s
    ]
    rows = [product_row(one) for one in slow[:MOST]]
    head = ("", "of peak", "result", "fused in", "")
    return [Table(rows=[head, *rows], columns=">><<<")] if rows else []


def product_row(one: ScheduledProduct) -> tuple[str, ...]:
    moved = ", ".join(one.fused) or "-"
    return seconds(one.seconds), percent(one.peak_share), one.shape, moved, short_line(one.line)


def copies(schedule: Schedule) -> list[Part]:
    longest = sorted(by_line(schedule), key=lambda one: -one.copies_s)[:MOST]
    rows = [
        (seconds(one.copies_s), one.line)
        for one in longest
        if one.copies_s >= SMALL * schedule.total_s
    ]
    return [Table(rows=rows, columns=">w")] if rows else []


def transfers(schedule: Schedule) -> list[Part]:
    """Return what the device waits for, and what it was to hide behind."""
    waited = [one for one in schedule.collectives if one.exposed_s >= SMALL * schedule.total_s]
    rows = [transfer_row(one) for one in waited[:MOST]]
    return [Table(rows=[("", "sent in", ""), *rows], columns="<<w")] if rows else []


def transfer_row(one: ScheduledCollective) -> tuple[str, ...]:
    what = " ".join(filter(None, (one.kind, "over", one.link, " x ".join(one.axes))))
    how = f"hides behind {short_line(one.behind)}" if one.behind else "hides behind nothing"
    parts = (
        f"{count(one.calls_per_step)} {what}",
        one.algorithm,
        how if one.asynchronous else "synchronous",
        short_line(one.line),
    )
    return seconds(one.exposed_s), seconds(one.wire_s), ", ".join(filter(None, parts))


def unpriced(schedule: Schedule) -> list[Part]:
    names = ", ".join(schedule.unpriced)
    return [f"not priced, and counted as nothing: {names}"] if names else []
