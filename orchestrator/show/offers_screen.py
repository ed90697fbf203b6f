"""Show offers: the two to choose from, the frontier as a table, and why others are not there."""

from collections import Counter
from collections.abc import Sequence
from math import floor

from orchestrator import formatting as fmt
from orchestrator.planning.offers import Offer, OfferReasonCode, Offers
from orchestrator.planning.plan_warnings import extrapolation, warning_texts
from orchestrator.show import parts as ui
from orchestrator.values.plan import Estimate

_INTERVAL = "80 %"
HEAD = ("chip", "topology", "pods", "chips", "days", _INTERVAL, "dollars", _INTERVAL, "odds", "")
_COLUMNS = "<<>>>>>>><"
# Chips side by side: what they cost; on a narrow terminal, how they run goes on below.
SIDE_HEAD = (
    "chip", "chips", "MFU %", _INTERVAL, "days", _INTERVAL, "dollars", _INTERVAL, "odds", "",
    "slices", "HBM", "mesh",
)  # fmt: skip
_REASONS: dict[OfferReasonCode, str] = {
    "too_slow": "would take longer even at the peak of their chips",
    "memory": "cannot hold the model",
    "too_few_sequences": "more replicas than the batch has sequences",
    "batch_not_divisible": (
        "the batch does not divide evenly (experiment.batch.tolerance lets it move)"
    ),
    "no_mesh": "no mesh divides what its axes split",
    "no_price": "no known price",
    "more_than_needed": "more GPUs than the date needs: fewer hold it and cost less",
    "no_rate": "no rate in that compute type, or for fp8 none above that of bf16",
}
_SIZES = "slices and pods in steps of 2^n and 3 x 2^n; sizes between them can be rented as well"
_LEAST_DAYS = 0.01
_UNLIKELY = "<1 %"
_SPOT = "spot slices can be taken away at any time: days do not count what that costs"


def offers_screen(
    found: Offers, next_command: str | None, detail: ui.Detail = "usual"
) -> ui.Screen:
    """Return the offers on one screen; a brief one ends after those to choose from."""
    planned = [offer for offer in found.offers if offer.days]
    request, rows = found.request, []
    if _is_hopeless(found):
        # The two ends of the frontier: no offer costs or takes less.
        if ends := [offer for offer in found.offers if offer.on_frontier]:
            rows = [("cheapest of all", in_words(ends[-1])), ("fastest of all", in_words(ends[0]))]
    else:
        has_budget = request.budget_dollars is not None
        sure = f", {_sure(found)}" if request.by_days is not None or has_budget else ""
        in_budget = f", {_sure(found)} of the budget" if has_budget else ""
        if found.cheapest:
            rows.append((f"cheapest{sure}", in_words(found.cheapest)))
        if found.fastest:
            rows.append((f"fastest{in_budget}", in_words(found.fastest)))
    parts: list[ui.Part] = [ui.Table(rows, "<w", style="bold")] if rows else []
    top: list[list[ui.Part]] = [
        [ui.heading(offers_headline(found))],
        ui.indent(parts if found.cheapest else [ui.heading(nothing_sure(found)), *parts]),
    ]
    if detail == "brief":
        return ui.screen(*top, ui.next_step(next_command))
    # The best offer of each chip, or why it has no plan.
    best: list[ui.Part] = []
    if len(found.request.chips) > 1 and planned:
        of_chips, without = side_by_side(found)
        marked = {1: "bold"} if found.cheapest else {}
        table = ui.Table([SIDE_HEAD, *of_chips], "<>>>>>>>><<><", gap=1, row_styles=marked)
        best = [
            ui.heading("side by side, the cheapest first, those that are not sure below:"),
            table,
        ]
        best += [ui.Text(f"{chip}: no plan: {why}", hang=2) for chip, why in without]
        if unpriced := [o.chip for o in found.best_of_chips if o.days and not o.dollars]:
            words = f"{', '.join(unpriced)}: no price is known; --prices takes a file of yours"
            best.append(ui.Text(words, hang=2))
    shown = planned if detail == "full" else frontier_of(planned)
    named = " that no other undercuts" if any(offer.on_frontier for offer in shown) else ""
    named = "" if detail == "full" else named
    title = ui.heading(f"{fmt.counted(len(shown), 'offer')}{named}:")
    # The number of planned offers, and why the others are left out.
    chips, offers = ", ".join(found.request.chips), fmt.counted(len(found.offers), "offer")
    total = f"{fmt.count(len(planned))} of {offers} planned, of {chips}"
    left_out: list[ui.Part] = [ui.Text(f"{total}; {_SIZES}", hang=2)]
    if why := reasons(found.offers):
        left_out += ui.indent([ui.Table(why, ">w")])
    chosen = to_take(found)
    beyond = [
        extrapolation(axis=way.axis, value=way.value, low=way.low, high=way.high)
        for way in (chosen.extrapolations if chosen else ())
    ]
    return ui.screen(
        *top,
        ui.indent(best),
        ui.indent([title, _offers_table(shown, found)] if shown else []),
        ui.indent(left_out),
        map(ui.warning, warning_texts([*found.warnings, *beyond])),
        [ui.warning(_SPOT)] if found.request.prices == "spot" else [],
        ui.next_step(next_command),
    )


def _offers_table(offers: Sequence[Offer], found: Offers) -> ui.Table:
    """Return a table of offers, with intervals if they fit a terminal of usual width; JSON has."""
    rows: list[ui.Row] = [HEAD, *(offer_row(offer, found) for offer in offers)]
    styles = {number: "bold" for number, cells in enumerate(rows) if number and cells[-1]}
    table = ui.Table(rows, _COLUMNS, row_styles=styles)
    if max(map(len, table.lines(ui.WIDTH))) <= ui.WIDTH - 2:
        return table
    places = [place for place, name in enumerate(HEAD) if name != _INTERVAL]
    narrow = [tuple(row[place] for place in places) for row in rows]
    return ui.Table(narrow, "".join(_COLUMNS[place] for place in places), row_styles=styles)


def offers_headline(found: Offers) -> str:
    by, budget = found.request.by_days, found.request.budget_dollars
    within = "" if by is None else f" within {fmt.time_limit(by)}"
    at_most = "" if budget is None else f" for {fmt.dollars(budget)} at most"
    tokens = fmt.scaled(found.tokens)
    return f"{found.name}: {tokens} tokens{within}{at_most}, {found.request.prices} prices"


def _is_hopeless(found: Offers) -> bool:
    return found.likeliest is not None and odds_text(found.likeliest) == _UNLIKELY


def _sure(found: Offers) -> str:
    return f"{found.request.sure * 100:.0f} % sure"


def nothing_sure(found: Offers) -> str:
    if found.likeliest is None:
        if any(offer.days for offer in found.offers):
            return "no odds: what runs on such chips reach, or their price, is unknown"
        return "no slices that can be rented have a plan for this"
    if _is_hopeless(found):
        return "no offer comes near: each has odds below 1 %"
    nearest, odds = in_words(found.likeliest), odds_text(found.likeliest)
    return f"no offer is {_sure(found)}; the likeliest, at {odds}: {nearest}"


def in_words(offer: Offer) -> str:
    slices = f"{fmt.count(offer.pods)} x {offer.chip} {offer.topology}"
    cost = f", {_likely(offer.dollars, fmt.dollars)}" if offer.dollars else ""
    return f"{slices}, {fmt.counted(offer.chips, 'chip')}: {_likely(offer.days, fmt.lasting)}{cost}"


def _likely(estimate: Estimate | None, show: ui.Show) -> str:
    assert estimate
    is_known = estimate.expected is not None
    return show(estimate.likeliest) if is_known else f"at least {show(estimate.lower)}"


def to_take(found: Offers) -> Offer | None:
    return found.cheapest or found.likeliest or found.fastest


def frontier_of(planned: Sequence[Offer]) -> list[Offer]:
    """Return the offers that no other undercuts in days and dollars; without prices, all."""
    return [offer for offer in planned if offer.on_frontier] or list(planned)


def choices(found: Offers) -> dict[str, Offer | None]:
    first = "cheapest" if found.cheapest else "likeliest"
    return {first: found.cheapest or found.likeliest, "fastest": found.fastest}


def offer_row(offer: Offer, found: Offers) -> ui.Row:
    return (
        offer.chip, offer.topology, fmt.count(offer.pods), fmt.count(offer.chips),
        *_cells(offer.days, _in_days), *_cells(offer.dollars, fmt.dollars), odds_text(offer),
        _mark(offer, found),
    )  # fmt: skip


def _mark(offer: Offer, found: Offers) -> str:
    marks = [name for name, best in choices(found).items() if best == offer]
    return "best" if len(marks) > 1 else "".join(marks)


def _in_days(days: float) -> str:
    return fmt.to_digits(days, 3) if days >= _LEAST_DAYS else fmt.lasting(days)


def _cells(estimate: Estimate | None, show: ui.Show, unknown: str = "-") -> ui.Row:
    """Return an estimate and its interval."""
    if estimate is None:
        return unknown, ""
    if estimate.expected is None or estimate.low is None or estimate.high is None:
        return _likely(estimate, show), ""
    return show(estimate.expected), f"{show(estimate.low)}-{show(estimate.high)}"


def side_by_side(found: Offers) -> tuple[list[ui.Row], list[tuple[str, str]]]:
    """Return a row for each chip with a plan, and the reasons of the others."""
    rows, without = list[ui.Row](), []
    for offer in found.best_of_chips:
        if offer.days is None:
            own = [each for each in found.offers if each.chip == offer.chip]
            without.append((offer.chip, "; ".join(map(" ".join, reasons(own)))))
            continue
        # The wishes that it is not sure to hold.
        odds, sure = offer.odds, found.request.sure
        asked = (("late", odds.by_date), ("dear", odds.in_budget)) if odds else ()
        missed = [name for name, each in asked if each is not None and each < sure]
        known = offer.mfu and offer.mfu.expected is not None
        axes = ", ".join(f"{axis} {n}" for axis, n in (offer.mesh or {}).items() if n > 1)
        rows.append((
            offer.chip, fmt.count(offer.chips),
            *_cells(offer.mfu if known else None, lambda share: f"{share * 100:.0f}"),
            *_cells(offer.days, _in_days), *_cells(offer.dollars, fmt.dollars, "no price"),
            odds_text(offer), _mark(offer, found) or ", ".join(missed),
            f"{offer.pods:,} x {offer.topology}", fmt.whole_percent(offer.memory_share or 0.0),
            axes or "one device",
        ))  # fmt: skip
    return rows, without


def odds_text(offer: Offer) -> str:
    """Return the odds in percent, rounded down: what is not sure enough does not look it."""
    if offer.odds is None or offer.odds.both is None:
        return "-"
    percent = offer.odds.both * 100
    if percent < 1 or percent > 99:
        return _UNLIKELY if percent < 1 else ">99 %"
    return f"{floor(percent)} %"


def reasons(offers: Sequence[Offer]) -> list[tuple[str, str]]:
    why = Counter(offer.reason.code for offer in offers if offer.reason)
    return [(fmt.count(number), _REASONS[code]) for code, number in why.most_common()]
