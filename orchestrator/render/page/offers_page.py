"""Show offers on a page: days against dollars as one picture, and the table of the frontier."""

from math import ceil, floor, log10

from orchestrator.formatting import dollars, time_limit
from orchestrator.render.offers_screen import (
    HEAD,
    choices,
    headline,
    in_words,
    nothing_sure,
    odds_text,
    offer_row,
    reasons,
    to_take,
)
from orchestrator.render.page.drawings import Curve, Flag, Plot, logarithmic
from orchestrator.render.page.templates import filled
from orchestrator.types.offers import Offer, Offers
from orchestrator.types.plan import Estimate

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
        headline=headline(found),
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
