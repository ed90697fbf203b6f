"""Show offers: the two to choose from, the frontier as a table, and why others are not there."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import floor

from orchestrator.formatting import count, counted, dollars, lasting, scaled, time_limit, to_digits
from orchestrator.planning.odds import Offer, OfferReasonCode, Offers
from orchestrator.planning.plan_warnings import extrapolation, warning_texts
from orchestrator.show.parts import (
    WIDTH,
    Detail,
    Part,
    Screen,
    Table,
    Text,
    heading,
    indent,
    next_step,
    paragraph,
    screen,
    warning,
)
from orchestrator.values.plan import Estimate, PlanWarning

INTERVAL = "80 %"
HEAD = ("chip", "topology", "pods", "chips", "days", INTERVAL, "dollars", INTERVAL, "odds", "")
COLUMNS = "<<>>>>>>><"
REASONS: dict[OfferReasonCode, str] = {
    "too_slow": "would take longer even at the peak of their chips",
    "memory": "cannot hold the model",
    "too_few_sequences": "more replicas than the batch has sequences",
    "batch_not_divisible": (
        "the batch does not divide evenly (experiment.batch.tolerance lets it move)"
    ),
    "no_mesh": "no mesh divides what its axes split",
    "no_price": "no known price",
    "no_rate": "no known rate in that compute type",
}
SIZES = "slices and pods in steps of 2^n and 3 x 2^n; sizes between them can be rented as well"
LEAST_DAYS = 0.01
UNLIKELY = "<1 %"
SPOT = "spot slices can be taken away at any time: days do not count what that costs"


def offers_screen(found: Offers, next_command: str | None, detail: Detail = "usual") -> Screen:
    """Return the offers on one screen; a brief one ends after those to choose from."""
    planned = [one for one in found.offers if one.days]
    top: list[list[Part]] = [
        [heading(offers_headline(found))],
        indent(choice(found)),
    ]
    if detail == "brief":
        return screen(*top, next_step(next_command))
    return screen(
        *top,
        indent(frontier(found, planned)),
        indent(left_out(found, planned)),
        [warning(text) for text in warning_texts([*found.warnings, *of_choice(found)])],
        [warning(SPOT)] if found.request.prices == "spot" else [],
        next_step(next_command),
    )


def offers_headline(found: Offers) -> str:
    """Return what was asked for."""
    request = found.request
    wishes = [f"{scaled(found.tokens)} tokens"]
    if request.by_days is not None:
        wishes.append(f"within {time_limit(request.by_days)}")
    if request.budget_dollars is not None:
        wishes.append(f"for {dollars(request.budget_dollars)} at most")
    return f"{found.name}: {' '.join(wishes)}, {request.prices} prices"


def choice(found: Offers) -> list[Part]:
    """Return the two offers to choose from, or how near one comes."""
    rows = ends_of(found) if is_hopeless(found) else sure_ones(found)
    parts: list[Part] = [Table(rows=rows, columns="<w", style="bold")] if rows else []
    return parts if found.cheapest else [paragraph(nothing_sure(found), "bold"), *parts]


def sure_ones(found: Offers) -> list[tuple[str, str]]:
    """Return the cheapest and the fastest of the sure ones."""
    request, rows = found.request, []
    is_limited = request.by_days is not None or request.budget_dollars is not None
    if found.cheapest:
        label = f"cheapest, {sure(found)}" if is_limited else "cheapest"
        rows.append((label, in_words(found.cheapest)))
    if found.fastest:
        in_budget = f", {sure(found)} of the budget" if request.budget_dollars is not None else ""
        rows.append((f"fastest{in_budget}", in_words(found.fastest)))
    return rows


def ends_of(found: Offers) -> list[tuple[str, str]]:
    """Return the two ends of the frontier: no offer costs or takes less."""
    ends = [one for one in found.offers if one.on_frontier]
    if not ends:
        return []
    return [("cheapest of all", in_words(ends[-1])), ("fastest of all", in_words(ends[0]))]


def is_hopeless(found: Offers) -> bool:
    return found.likeliest is not None and odds_text(found.likeliest) == UNLIKELY


def sure(found: Offers) -> str:
    return f"{found.request.sure * 100:.0f} % sure"


def nothing_sure(found: Offers) -> str:
    if found.likeliest is None:
        if any(one.days for one in found.offers):
            return "no odds: what runs on such chips reach, or their price, is unknown"
        return "no slices that can be rented have a plan for this"
    if is_hopeless(found):
        return "no offer comes near: each has odds below 1 %"
    nearest = in_words(found.likeliest)
    return f"no offer is {sure(found)}; the likeliest, at {odds_text(found.likeliest)}: {nearest}"


def in_words(one: Offer) -> str:
    """Return an offer as a sentence's part."""
    slices = f"{count(one.pods)} x {one.chip} {one.topology}"
    cost = f", {likely(one.dollars, dollars)}" if one.dollars else ""
    return f"{slices}, {counted(one.chips, 'chip')}: {likely(one.days, lasting)}{cost}"


def likely(estimate: Estimate | None, show: Callable[[float], str]) -> str:
    assert estimate
    if estimate.expected is None:
        return f"at least {show(estimate.lower)}"
    return show(estimate.expected)


def to_take(found: Offers) -> Offer | None:
    """Return the offer that is proposed."""
    return found.cheapest or found.likeliest or found.fastest


def of_choice(found: Offers) -> list[PlanWarning]:
    """Return where the proposed offer leaves the range of published runs."""
    chosen = to_take(found)
    return [
        extrapolation(axis=one.axis, value=one.value, low=one.low, high=one.high)
        for one in (chosen.extrapolations if chosen else ())
    ]


def frontier(found: Offers, planned: Sequence[Offer]) -> list[Part]:
    """Return a row for each offer that no other undercuts in days and dollars."""
    shown = [one for one in planned if one.on_frontier] or list(planned)
    if not shown:
        return []
    rows = [HEAD, *(offer_row(one, found) for one in shown)]
    named = " that no other undercuts" if any(one.on_frontier for one in shown) else ""
    title = f"{counted(len(shown), 'offer')}{named}:"
    styles = {row: "bold" for row, cells in enumerate(rows) if row and cells[-1]}
    table = Table(rows=rows, columns=COLUMNS, row_styles=styles)
    return [heading(title), table if is_narrow(table) else without_intervals(table)]


def is_narrow(table: Table) -> bool:
    """Return whether the table fits, indented, on a terminal of usual width."""
    return max(map(len, table.lines(WIDTH))) <= WIDTH - 2


def without_intervals(table: Table) -> Table:
    """Return the table with no column of intervals; JSON has them."""
    kept = [place for place, name in enumerate(HEAD) if name != INTERVAL]
    rows = [tuple(row[place] for place in kept) for row in table.rows]
    return replace(table, rows=rows, columns="".join(table.columns[place] for place in kept))


def choices(found: Offers) -> dict[str, Offer | None]:
    """Return the offers that stand out, by what they are."""
    first = ("cheapest", found.cheapest) if found.cheapest else ("likeliest", found.likeliest)
    return dict([first, ("fastest", found.fastest)])


def offer_row(one: Offer, found: Offers) -> tuple[str, ...]:
    marks = [name for name, best in choices(found).items() if best == one]
    return (
        one.chip, one.topology, count(one.pods), count(one.chips), *cells(one.days, in_days),
        *cells(one.dollars, dollars), odds_text(one), "best" if len(marks) > 1 else "".join(marks),
    )  # fmt: skip


def cells(estimate: Estimate | None, show: Callable[[float], str]) -> tuple[str, str]:
    """Return what is expected and its interval."""
    if estimate is None:
        return "-", ""
    if estimate.expected is None or estimate.low is None or estimate.high is None:
        return likely(estimate, show), ""
    return show(estimate.expected), f"{show(estimate.low)}-{show(estimate.high)}"


def in_days(days: float) -> str:
    """Return days as a number; a small part of one in its own unit."""
    return to_digits(days, 3) if days >= LEAST_DAYS else lasting(days)


def odds_text(one: Offer) -> str:
    """Return the odds in percent, rounded down: what is not sure enough does not look it."""
    if one.odds is None or one.odds.both is None:
        return "-"
    percent = one.odds.both * 100
    if percent < 1 or percent > 99:
        return UNLIKELY if percent < 1 else ">99 %"
    return f"{floor(percent)} %"


def left_out(found: Offers, planned: Sequence[Offer]) -> list[Part]:
    """Return how many offers there are, and why some have no plan."""
    chips = ", ".join(found.request.chips)
    total = f"{count(len(planned))} of {counted(len(found.offers), 'offer')} planned, of {chips}"
    rows = reasons(found)
    parts: list[Part] = [Text(text=f"{total}; {SIZES}", hang=2)]
    return [*parts, *indent([Table(rows=rows, columns=">w")])] if rows else parts


def reasons(found: Offers) -> list[tuple[str, str]]:
    """Return how many offers have no plan, for each reason."""
    why = Counter(one.reason.code for one in found.offers if one.reason)
    return [(count(number), REASONS[code]) for code, number in why.most_common()]
