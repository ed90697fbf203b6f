"""Show an explanation: formulas with their numbers, published figures, the plan's differences."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import exp
from typing import Any

from orchestrator.evidence.explain.formula import (
    BatchDifference,
    BoundDifference,
    ComputedValue,
    DaysDifference,
    DerivationSection,
    ExpectedStep,
    Explanation,
    ExplanationSummary,
    LinkDifference,
    MemoryDifference,
    MeshDifference,
    PlanDifferences,
    QuestionCode,
    QuotedFigure,
    RecomputeDifference,
    RentingDifference,
    TensorDifference,
    Verdict,
)
from orchestrator.formatting import (
    GIB,
    counted,
    four_digits,
    in_memory,
    lasting,
    percent,
    seconds,
    signed_percent,
    span,
    with_unit,
)
from orchestrator.network.rematerialization import text_of
from orchestrator.planning.infeasible import factored
from orchestrator.show.parts import (
    NO_BREAK,
    Command,
    Part,
    Screen,
    Table,
    Text,
    indent,
    next_step,
    screen,
)
from orchestrator.show.plan_text import likely, verdict_table
from orchestrator.values.plan import DeviceGroup, TorusSpan, WarningCode

# The sentences of an explanation: its answers, the differences of the plan, its summary.

_NO_PLAN = "no realizable plan"
_QUESTIONS: dict[QuestionCode, str] = {
    "pod_holds_it": "Does a pod hold it?",
    "sequence_for_every_chip": "Is there a sequence for every chip?",
    "fsdp_bound": "Is pure FSDP compute-bound?",
    "tensor_reach": "How far does tensor go?",
    "mixed_bound": "Is FSDP + tensor compute-bound, simplified as in the book?",
    "mixed_bound_by_all_matmuls": "And with every matmul of a layer?",
    "mlp_bound": "And at these powers of two?",
    "dcn_bound": "Is data parallelism over DCN compute-bound?",
}


def summary_text(summary: ExplanationSummary) -> str:
    forecast = summary.forecast
    planned = f"planned {likely(forecast.days, lasting)}" if forecast else _NO_PLAN
    return f"Answer: {_by_hand(summary)}, {planned}."


def _by_hand(summary: ExplanationSummary) -> str:
    """Return what the derivation says without a plan."""
    days = f"{lasting(summary.days)} at {assumed(summary.mfu)}"
    if summary.mixed_times is None:
        return days
    return f"{days}, FSDP + tensor {bound_by(summary.mixed_times)}"


def assumed(mfu: float) -> str:
    """Return an MFU with the digits that were stated."""
    return f"{mfu * 100:g} % MFU"


def bound_by(times: float) -> str:
    """Return what binds: `times` is what there is over what computing takes."""
    return f"compute-bound by {times:.3g} x" if times > 1 else f"comms-bound by {1 / times:.3g} x"


def answer_text(verdict: Verdict) -> str:
    """Return the answer to a section's question."""
    figures: dict[str, Any] = verdict.figures
    match verdict.question:
        case "pod_holds_it":
            by_d, by_6f, chips = figures["by_d"], figures["by_6f"], figures["chips"]
            return (
                f"{'yes' if verdict.holds else 'no'}: it takes {by_d:,.0f} chips by [B, D] and"
                f" {by_6f:,.0f} by 6F, of {chips:,.0f}; the outputs of two of the three big matmuls"
                " are [B, F], so counting [B, D] alone is too little"
            )
        case "sequence_for_every_chip":
            sequences, chips, idle = figures["sequences"], figures["chips"], figures["idle"]
            if not idle:
                return f"yes, {four_digits(sequences / chips)} a chip"
            return f"no: {sequences:,.0f} sequences leave {idle:,.0f} of {chips:,.0f} chips idle"
        case "tensor_reach":
            ways, power_of_two = four_digits(figures["below"]), figures["power_of_two"]
            if power_of_two < 2:
                return f"not at all: it takes fewer than {ways} ways"
            return f"below {ways} ways, whatever the batch: {power_of_two} as a power of two"
        case "mlp_bound":
            return bound_by(figures["times"])
        case _:  # FSDP, alone or with tensor, or data parallelism over DCN
            of = "pod" if verdict.question == "dcn_bound" else "chip"
            tokens, least = four_digits(figures["tokens"]), four_digits(figures["least"])
            answer = f"{bound_by(figures['times'])}: {tokens} tokens a {of}, it takes {least}"
            if not figures.get("tensor_pays", True):
                answer = f"tensor does not pay, as X_opt exceeds the chips; pure FSDP is {answer}"
            return f"{answer}: the answer flips" if figures.get("flips") else answer


# The words of an explanation about its plan: what was derived, what is planned, and why.

GB = 1e9
RENTED: dict[WarningCode, str] = {
    "slice_not_rented": "at most {most_chips:,} {chip} chips as one slice ({largest_slice})",
    "slices_not_joined": "at most {most_chips:,.0f} {chip} chips by Multislice",
}


@dataclass(frozen=True)
class DifferenceText:
    """What the derivation has, what the plan has, and why they differ."""

    about: str
    derived: str
    planned: str
    why: str


def difference_texts(differences: PlanDifferences) -> Iterator[DifferenceText]:
    """Return the words of each difference, in the order of the derivation."""
    yield mesh(differences.mesh)
    if differences.batch:
        yield batch(differences.batch)
    if differences.tensor:
        yield tensor(differences.tensor)
    if differences.links:
        yield links(differences.links)
    yield bound(differences.bound)
    yield memory(differences.memory)
    yield recompute(differences.recompute)
    yield days(differences.days)
    if differences.renting:
        yield renting(differences.renting)


def mesh(it: MeshDifference) -> DifferenceText:
    sizes = " x ".join(f"{name} {size}" for name, size in it.axes.items())
    planned = f"{sizes} = {it.devices:,} devices"
    split, about = it.split, "mesh of a pod"
    if split is None:
        why = "a pod of one chip has nothing to split"
        return DifferenceText(about, "one chip, no axes", planned, why)
    idle = it.chips - split.used
    return DifferenceText(
        about,
        f"X {split.fsdp:,} x Y {split.tensor:,} = {split.used:,} of {it.chips:,} chips",
        planned,
        f"{it.chips:,} = {factored(it.chips)}: powers of two leave {idle:,} chips idle"
        if idle
        else "the plan weighs all collectives of a step, not one MLP's",
    )


def batch(it: BatchDifference) -> DifferenceText:
    change = signed_percent(it.sequences / it.requested - 1)
    planned = f"{it.sequences:,} sequences ({change})"
    return DifferenceText("batch", f"{it.requested:,} sequences", planned, why_changed(it))


def why_changed(it: BatchDifference) -> str:
    """Return what the requested batch would lead to."""
    if it.reason is None:
        longer = percent(it.longer or 0.0)
        return f"with the requested batch, a token takes {longer} longer with nothing hidden"
    nearest = "; ".join(
        f"{' '.join(one.overrides)} (MFU {percent(one.mfu.likeliest)})" for one in it.nearest
    )
    within = f"of those within {percent(it.tolerance)} the plan takes the fastest"
    return f"{it.reason.text}; nearest: {nearest}; {within}"


def tensor(it: TensorDifference) -> DifferenceText:
    takes = it.least / it.share
    verdict = "above" if it.tokens > takes else "below"
    return DifferenceText(
        f"tensor {it.ways} on an axis of {it.length}",
        f"a ring of its own, it takes {four_digits(it.least)} tokens a chip",
        f"no ring, {it.share:.2g} of the bandwidth: it takes {four_digits(takes)} tokens a chip",
        f"this batch has {four_digits(it.tokens)}, {verdict} that; the plan prices each group by"
        " the line or ring that it has",
    )


def links(it: LinkDifference) -> DifferenceText:
    return DifferenceText(
        "links",
        "every axis a whole ring, all of it for one group",
        "; ".join(map(group_text, it.groups)),
        "a switch gives every group all links of its chips"
        if it.switched
        else "an inner part of a torus axis is an open line and has half of it; an outer part"
        " closes, but shares each link with the groups between",
    )


def group_text(group: DeviceGroup) -> str:
    where = " + ".join(map(span_text, group.spans))
    return f"{' x '.join(group.axes)} {group.size}: {where}, {group.bytes_per_s / GB:.4g} GB/s"


def span_text(part: TorusSpan) -> str:
    """Return `ring of 16 on x`, `line of 2 on y`, `ring of 10 on y by 2`."""
    stride = f" by {part.stride}" if part.stride > 1 else ""
    return f"{'ring' if part.ring else 'line'} of {part.size} on {part.torus}{stride}"


def bound(it: BoundDifference) -> DifferenceText:
    derived, why = "matmuls: one chip exchanges nothing", ""
    if it.mixed:
        by_f, by_all = it.mixed.by_f, it.mixed.by_all_matmuls
        derived = f"{bound_by(by_f)} counting F, {bound_by(by_all)} counting F_eff"
        turns = ", and that turns the answer" if (by_f > 1) != (by_all > 1) else ""
        why = f"F_eff has attention's matmuls in it{turns}; "
    return DifferenceText(
        "what binds",
        derived,
        f"{it.bound}: {percent(it.bound_by)} longer than the next; MFU {percent(it.mfu.lower)} at"
        f" the bound, {percent(it.mfu.unoverlapped)} with nothing hidden",
        f"{why}the plan adds attention, the unembedding, recompute, HBM and every collective",
    )


def memory(it: MemoryDifference) -> DifferenceText:
    lines = ", ".join(f"{line.name} {line.value / GIB:.2f}" for line in it.phase.lines)
    peak = f"{in_memory(it.phase.bytes)} a device at its peak"
    return DifferenceText(
        "memory",
        f"{it.by_d_bytes / GB:.3g} GB a chip by [B, D], {it.by_6f_bytes / GB:.3g} GB by 6F",
        f"{peak}, in the phase {it.phase.name}: {lines}",
        f"{it.parameters} parameters, {it.moments} moments, fp32 gradients; state split"
        f" {it.ways:,} ways on the {it.devices:,} devices of a pod; activations as remat"
        f" `{text_of(it.remat)}` keeps them",
    )


def recompute(it: RecomputeDifference) -> DifferenceText:
    return DifferenceText(
        "recompute",
        "4 checkpoints a layer; what is computed again is not counted",
        f"remat `{text_of(it.remat)}`: {percent(it.share)} of the step, with nothing hidden",
        "what is computed again is no model FLOP: where matmuls bind, it lowers MFU",
    )


def days(it: DaysDifference) -> DifferenceText:
    low, high, middle = it.planned.lower, it.planned.unoverlapped, it.planned.expected
    expected = f"{lasting(middle)} expected, " if middle is not None else ""
    return DifferenceText(
        "days",
        f"{lasting(it.by_6p)} at {assumed(it.mfu)} by 6 P, {lasting(it.by_mfu)} as MFU counts",
        f"{lasting(low)} at the bound, {expected}{lasting(high)} with nothing hidden",
        place_of(it.by_mfu, low, high),
    )


def place_of(at_mfu: float, low: float, high: float) -> str:
    """Return where the days at the assumed MFU lie among the plan's."""
    if at_mfu < low:
        return "no run of this plan reaches the assumed MFU: the bound is slower"
    if at_mfu <= high:
        return "the assumed MFU is reached if enough of the communication is hidden"
    return "the assumed MFU is below the plan's, even with nothing hidden: the plan has peak rates"


def renting(it: RentingDifference) -> DifferenceText:
    return DifferenceText(
        "renting",
        f"{it.pods} x {it.topology}",
        "the compiler takes it, Google Cloud does not rent it",
        "; ".join(RENTED[one.code].format(**one.figures) for one in it.obstacles),
    )


# The screen: formulas with their numbers.


# A name, but neither a function nor the exponent of a number.
_SYMBOL = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w(])")
_PREFIXES = {9: "G", 12: "T"}
_SHORT = {3: "K", 6: "M"}
_NAMES = 32  # columns for the name of a line
_LABELS = 10
_MOST_RUNS = 10  # that are listed by name; more are counted


def explain_screen(sheet: Explanation, next_command: str) -> Screen:
    """Return inputs, derivations, published figures, the plan's differences, and sources."""
    slices = f"{counted(sheet.pods, 'pod')} of {sheet.topology}"
    changed = f", with {' '.join(sheet.overrides)}" if sheet.overrides else ""
    chips = counted(sheet.chips, f"{sheet.chip} chip")
    headline = f"{sheet.name}: {sheet.model} on {chips}, {slices}, worked out by hand{changed}"

    by_hand = [("by hand", _by_hand(sheet.summary))]
    verdict = Table([("plan", _NO_PLAN), *by_hand], "<w", row_styles={0: "red"})
    if sheet.summary.forecast is not None:
        verdict = verdict_table(sheet.summary.forecast, sheet.summary.tokens, by_hand)

    inputs = [
        (given.symbol, number(given.value), given.meaning, _cite(given.source or "spec"))
        for given in sheet.inputs
    ]
    # The differences between the derivation and the plan, or why nothing is planned.
    realized: list[Part] = [_title("Where the realizable plan differs")]
    for words in difference_texts(sheet.differences) if sheet.differences else ():
        realized.append(Command(f"  {words.about}"))
        realized += [_labelled("by hand", words.derived), _labelled("plan", words.planned)]
        realized.append(_labelled("why", words.why))
    if sheet.no_plan is not None:
        realized = [*sheet.no_plan.splitlines()]
    sources = (
        _text(f"  {_cite(source.key)} ", f"{source.title}; {source.where}; {source.date}", 6)
        for source in sheet.sources
    )
    return screen(
        [_title(headline)],
        indent([verdict]),
        [
            "Inputs",
            *indent([Table(inputs, "<><<")]),
            _text("  MFU counts ", sheet.mfu_definition),
        ],
        *map(_section, sheet.sections),
        *(
            [
                _text("Published: ", quotes.title, style="bold"),
                *(part for figure in quotes.figures for part in _quote(figure)),
            ]
            for quotes in sheet.quotes
        ),
        realized,
        _expected(sheet.expectation) if sheet.expectation else [],
        _section(sheet.goodput) if sheet.goodput else [],
        [_title("Sources"), *sources],
        [_title(summary_text(sheet.summary)), *next_step(next_command)],
    )


def _text(start: str, words: str, hang: int | None = None, style: str = "") -> Text:
    """Return a paragraph that may break at any space, as formulas have a number in every word."""
    return Text(words, start=start, hang=hang, style=style, keep_numbers=False)


def _title(words: str) -> Text:
    return _text("", words, style="bold")


def _labelled(label: str, words: str) -> Text:
    return _text(f"    {label:{_LABELS}}", words)


def _cite(source: str) -> str:
    return f"[{source}]"


def _section(entry: DerivationSection) -> list[Part]:
    """Return formulas, each with its numbers, value and sources, then answers to questions."""
    parts: list[Part] = [_title(entry.title)]
    for line in entry.lines:
        value = _result(line.computed, line.unit)
        cited = "".join(f" {_cite(source)}" for source in line.sources)
        formula = f"{line.symbol} = {_written(line.computed.formula)}"
        parts.append(_text(f"  {line.name:{_NAMES - 2}}", formula))
        parts.append(_text(" " * _NAMES + "= ", f"{put_in(line.computed)} {value}{cited}"))
    for verdict in entry.verdicts:
        answer = answer_text(verdict)
        question = _QUESTIONS[verdict.question]
        parts.append(_text("  -> ", f"{question} {answer[0].upper()}{answer[1:]}."))
    return parts


def _result(computed: ComputedValue, unit: str) -> str:
    """Return the value of a formula with its unit, in one piece."""
    value = computed.value
    text = f"{number(value)} {unit}".rstrip()
    if unit in ("bytes", "B/s"):
        text = with_unit(value, unit.replace("bytes", "B"), 4)
    elif unit == "s":
        text = seconds(value)
    elif unit == "MFU":
        text = f"{percent(value)} MFU"
    return f"= {text}".replace(" ", NO_BREAK)


def _quote(figure: QuotedFigure) -> list[Part]:
    """Return a published figure, what reproduces it, the exact value, and why they differ."""

    def equation(computed: ComputedValue, unit: str) -> str:
        """Return symbols, numbers and value; a lone symbol or a number needs no middle step."""
        formula = _written(computed.formula)
        if not computed.formula.isidentifier() and computed.inputs:
            formula += f" = {put_in(computed)}"
        return f"{formula} {_result(computed, unit)}"

    printed = f"{figure.about}: {as_printed(figure.printed, figure.unit)}"
    agreement = "" if figure.agreement == "rounded" else f", {figure.agreement}"
    is_same = figure.exact == figure.reproduced
    exact = "the same" if is_same else equation(figure.exact, figure.unit)
    return [
        _text("  ", f"{printed}  {_cite(figure.source)}", 4),
        _labelled("from", f"{equation(figure.reproduced, figure.unit)}{agreement}"),
        _labelled("exact", exact),
        *(
            _labelled("also", f"{remark.says}: {equation(remark.computed, remark.unit)}")
            for remark in figure.asides
        ),
        *([_labelled("why", figure.why)] if figure.why else []),
    ]


def _expected(step: ExpectedStep) -> list[Part]:
    """Return the parts of the expected step, the runs behind their constants, and the interval."""
    parts: list[Part] = [_title("The expected step, from published runs")]
    for entry in step.parts:
        value = f"{put_in(entry.computed)} {_result(entry.computed, 's')}"
        parts.append(_text(f"  {entry.name:{_NAMES - 2}}= ", _written(entry.computed.formula)))
        parts.append(_text(" " * _NAMES + "= ", value))
        for constant in entry.constants:
            # A few runs by name, and the number of many; JSON has all names.
            are_few = len(constant.rows) <= _MOST_RUNS
            names = f": {', '.join(constant.rows)}" if are_few else ""
            runs = counted(len(constant.rows), "run") + names
            error = f", standard error {percent(constant.unsure)}" if constant.unsure else ""
            learned = f"{constant.symbol} fitted to {runs}{error} {_cite(step.source)}"
            parts.append(_text(" " * _NAMES + "  ", learned))
    total = " + ".join(seconds(entry.computed.value) for entry in step.parts)
    ends = span(seconds(step.low_s), seconds(step.high_s))
    interval = (
        f"80 % prediction interval {ends}: runs outside the fit differ by a factor of"
        f" {exp(step.spread):.3f}; the rest is the uncertainty of the constants"
    )
    return [
        *parts,
        _labelled("step", f"{total} = {seconds(step.expected_s)}"),
        _labelled("interval", f"{interval} {_cite(step.source)}"),
    ]


def _written(formula: str) -> str:
    return formula.replace("**", "^").replace(" * ", " x ")


def put_in(computed: ComputedValue) -> str:
    """Return the formula with a number for each symbol."""
    values = computed.inputs
    return _written(_SYMBOL.sub(lambda symbol: number(values[symbol[0]]), computed.formula))


def number(value: float) -> str:
    """Return all digits of a count, and four of a measured or computed value: 8,192, 4.59e14."""
    rounded = float(f"{value:.3e}")
    if value == int(value) and (abs(value) < 1e7 or (rounded != value and abs(value) < 1e13)):
        return f"{int(value):,}"
    if abs(value) >= 1e7:
        mantissa, exponent = f"{rounded:.3e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return four_digits(value)


def as_printed(digits: str, unit: str) -> str:
    """Return a published figure with its published digits: 20.9 TB, 435 years, 43 %."""
    mantissa, _, power = digits.partition("e")
    exponent = int(power or 0)
    if unit == "bytes":
        return f"{mantissa} {_PREFIXES[exponent]}B"
    if unit == "MFU":
        return f"{Decimal(digits).scaleb(2):f} % MFU"
    if exponent in _SHORT:
        return f"{mantissa}{_SHORT[exponent]} {unit}"
    return f"{digits if power else f'{Decimal(digits):,}'} {unit}"
