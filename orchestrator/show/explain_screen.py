"""Show an explanation: formulas with their numbers, published figures, the plan's differences."""

import re
from decimal import Decimal
from math import exp
from typing import Any

from orchestrator.evidence.explain.differences import difference_texts
from orchestrator.evidence.explain.formula import (
    Citation,
    ComputedValue,
    Derivation,
    DerivationSection,
    ExpectedPart,
    ExpectedStep,
    Explanation,
    ExplanationSummary,
    Input,
    QuestionCode,
    QuotedFigure,
    QuotedFigures,
    Verdict,
    assumed,
    bound_by,
)
from orchestrator.formatting import (
    counted,
    four_digits,
    lasting,
    percent,
    seconds,
    span,
    with_unit,
)
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

# The sentences of an explanation: its answers, the differences of the plan, its summary.


NO_PLAN = "no realizable plan"
QUESTIONS: dict[QuestionCode, str] = {
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
    """Return the whole explanation in one line."""
    forecast = summary.forecast
    planned = f"planned {likely(forecast.days, lasting)}" if forecast else NO_PLAN
    return f"Answer: {by_hand(summary)}, {planned}."


def by_hand(summary: ExplanationSummary) -> str:
    """Return what the derivation says without a plan."""
    days = f"{lasting(summary.days)} at {assumed(summary.mfu)}"
    if summary.mixed_times is None:
        return days
    return f"{days}, FSDP + tensor {bound_by(summary.mixed_times)}"


# --- answers


def answer_text(verdict: Verdict) -> str:
    """Return the answer to a section's question."""
    figures: dict[str, Any] = verdict.figures
    match verdict.question:
        case "pod_holds_it":
            return pod_holds_it(holds=verdict.holds, **figures)
        case "sequence_for_every_chip":
            return sequence_for_every_chip(**figures)
        case "tensor_reach":
            return tensor_reach(**figures)
        case "mlp_bound":
            return bound_by(figures["times"])
        case "dcn_bound":
            return tokens_bound("pod", **figures)
        case _:
            return mixed_bound(**figures)


def pod_holds_it(by_d: float, by_6f: float, chips: float, *, holds: bool) -> str:
    return (
        f"{'yes' if holds else 'no'}: it takes {by_d:,.0f} chips by [B, D] and {by_6f:,.0f} by 6F,"
        f" of {chips:,.0f}; the outputs of two of the three big matmuls are [B, F], so counting"
        " [B, D] alone is too little"
    )


def sequence_for_every_chip(sequences: float, chips: float, idle: float) -> str:
    if not idle:
        return f"yes, {four_digits(sequences / chips)} a chip"
    return f"no: {sequences:,.0f} sequences leave {idle:,.0f} of {chips:,.0f} chips idle"


def tensor_reach(below: float, power_of_two: int) -> str:
    if power_of_two < 2:
        return f"not at all: it takes fewer than {four_digits(below)} ways"
    ways = f"below {four_digits(below)} ways, whatever the batch"
    return f"{ways}: {power_of_two} as a power of two"


def mixed_bound(*, tensor_pays: bool = True, flips: bool = False, **figures: float) -> str:
    """Return the bound of FSDP, alone or with tensor."""
    answer = tokens_bound("chip", **figures)
    if not tensor_pays:
        answer = f"tensor does not pay, as X_opt exceeds the chips; pure FSDP is {answer}"
    return f"{answer}: the answer flips" if flips else answer


def tokens_bound(of: str, times: float, tokens: float, least: float) -> str:
    return f"{bound_by(times)}: {four_digits(tokens)} tokens a {of}, it takes {four_digits(least)}"


# A name, but neither a function nor the exponent of a number.
SYMBOL = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w(])")
PREFIXES = {9: "G", 12: "T"}
SHORT = {3: "K", 6: "M"}
NAMES = 32  # columns for the name of a line
LABELS = 10
MOST_RUNS = 10  # that are listed by name; more are counted


def explain_screen(sheet: Explanation, next_command: str) -> Screen:
    """Return inputs, derivations, published figures, the plan's differences, and sources."""
    return screen(
        [text("", headline(sheet), style="bold")],
        indent(verdict_lines(sheet.summary)),
        [*inputs(sheet.inputs), text("  MFU counts ", sheet.mfu_definition)],
        *(section(entry) for entry in sheet.sections),
        *(quotes(entry) for entry in sheet.quotes),
        realized(sheet),
        expected(sheet.expectation) if sheet.expectation else [],
        section(sheet.goodput) if sheet.goodput else [],
        sources(sheet.sources),
        [text("", summary_text(sheet.summary), style="bold"), *next_step(next_command)],
    )


def verdict_lines(summary: ExplanationSummary) -> list[Part]:
    """Return the plan's five lines, and what the derivation says; it alone without a plan."""
    derived = [("by hand", by_hand(summary))]
    if summary.forecast is None:
        return [Table(rows=[("plan", NO_PLAN), *derived], columns="<w", row_styles={0: "red"})]
    return [verdict_table(summary.forecast, summary.tokens, derived)]


def text(start: str, words: str, hang: int | None = None, style: str = "") -> Text:
    """Return a paragraph that may break at any space, as formulas have a number in every word."""
    return Text(text=words, start=start, hang=hang, style=style, keep_numbers=False)


def labelled(label: str, words: str) -> Text:
    return text(f"    {label:{LABELS}}", words)


def headline(sheet: Explanation) -> str:
    slices = f"{counted(sheet.pods, 'pod')} of {sheet.topology}"
    changed = f", with {' '.join(sheet.overrides)}" if sheet.overrides else ""
    chips = counted(sheet.chips, f"{sheet.chip} chip")
    return f"{sheet.name}: {sheet.model} on {chips}, {slices}, worked out by hand{changed}"


def inputs(entries: tuple[Input, ...]) -> list[Part]:
    rows = [(e.symbol, number(e.value), e.meaning, cite(e.source or "spec")) for e in entries]
    return ["Inputs", *indent([Table(rows=rows, columns="<><<")])]


def cite(source: str) -> str:
    return f"[{source}]"


def section(entry: DerivationSection) -> list[Part]:
    parts: list[Part] = [text("", entry.title, style="bold")]
    for line in entry.lines:
        parts += derivation(line)
    for verdict in entry.verdicts:
        answer = answer_text(verdict)
        question = QUESTIONS[verdict.question]
        parts.append(text("  -> ", f"{question} {answer[0].upper()}{answer[1:]}."))
    return parts


def derivation(line: Derivation) -> list[Part]:
    """Return the formula; below it the same with numbers, the value, and the sources."""
    formula = f"{line.symbol} = {written(line.computed.formula)}"
    value = f"{put_in(line.computed)} {result(with_its_unit(line.computed.value, line.unit))}"
    cited = "".join(f" {cite(source)}" for source in line.sources)
    return [text(f"  {line.name:{NAMES - 2}}", formula), text(" " * NAMES + "= ", value + cited)]


def result(value: str) -> str:
    """Return the value of a formula in one piece."""
    return f"= {value}".replace(" ", NO_BREAK)


def quotes(entry: QuotedFigures) -> list[Part]:
    parts: list[Part] = [text("Published: ", entry.title, style="bold")]
    for figure in entry.figures:
        parts += quote(figure)
    return parts


def quote(figure: QuotedFigure) -> list[Part]:
    """Return a published figure, what reproduces it, the exact value, and why they differ."""
    printed = f"{figure.about}: {as_printed(figure.printed, figure.unit)}"
    agreement = "" if figure.agreement == "rounded" else f", {figure.agreement}"
    exact = "the same"
    if figure.exact != figure.reproduced:
        exact = equation(figure.exact, figure.unit)
    parts: list[Part] = [
        text("  ", f"{printed}  {cite(figure.source)}", 4),
        labelled("from", f"{equation(figure.reproduced, figure.unit)}{agreement}"),
        labelled("exact", exact),
    ]
    parts += [
        labelled("also", f"{remark.says}: {equation(remark.computed, remark.unit)}")
        for remark in figure.asides
    ]
    return [*parts, *([labelled("why", figure.why)] if figure.why else [])]


def equation(computed: ComputedValue, unit: str) -> str:
    """Return symbols, numbers and value; a lone symbol or a plain number needs no middle step."""
    value = with_its_unit(computed.value, unit)
    if computed.formula.isidentifier() or not computed.inputs:
        return f"{written(computed.formula)} {result(value)}"
    return f"{written(computed.formula)} = {put_in(computed)} {result(value)}"


def realized(sheet: Explanation) -> list[Part]:
    """Return the differences between the derivation and the plan, or why there is no plan."""
    if sheet.no_plan is not None:
        return [*sheet.no_plan.splitlines()]
    parts: list[Part] = [text("", "Where the realizable plan differs", style="bold")]
    for words in difference_texts(sheet.differences) if sheet.differences else ():
        parts += [
            Command(text=f"  {words.about}"),
            labelled("by hand", words.derived),
            labelled("plan", words.planned),
            labelled("why", words.why),
        ]
    return parts


def expected(step: ExpectedStep) -> list[Part]:
    """Return each part of the expected step, and its interval."""
    parts: list[Part] = [text("", "The expected step, from published runs", style="bold")]
    for entry in step.parts:
        parts += expected_part(entry, step.source)
    total = " + ".join(seconds(entry.computed.value) for entry in step.parts)
    ends = span(seconds(step.low_s), seconds(step.high_s))
    interval = (
        f"80 % prediction interval {ends}: runs outside the fit differ by a factor of"
        f" {exp(step.spread):.3f}; the rest is the uncertainty of the constants"
    )
    return [
        *parts,
        labelled("step", f"{total} = {seconds(step.expected_s)}"),
        labelled("interval", f"{interval} {cite(step.source)}"),
    ]


def expected_part(entry: ExpectedPart, source: str) -> list[Part]:
    """Return the formula, the same with numbers, and the runs behind its constants."""
    value = f"{put_in(entry.computed)} {result(seconds(entry.computed.value))}"
    parts: list[Part] = [
        text(f"  {entry.name:{NAMES - 2}}= ", written(entry.computed.formula)),
        text(" " * NAMES + "= ", value),
    ]
    for one in entry.constants:
        error = f", standard error {percent(one.unsure)}" if one.unsure else ""
        learned = f"{one.symbol} fitted to {runs(one.rows)}{error} {cite(source)}"
        parts.append(text(" " * NAMES + "  ", learned))
    return parts


def runs(rows: tuple[str, ...]) -> str:
    """Return a few runs by name, and the number of many; JSON has all names."""
    names = f": {', '.join(rows)}" if len(rows) <= MOST_RUNS else ""
    return counted(len(rows), "run") + names


def sources(cited: tuple[Citation, ...]) -> list[Part]:
    return [
        text("", "Sources", style="bold"),
        *(text(f"  {cite(one.key)} ", f"{one.title}; {one.where}; {one.date}", 6) for one in cited),
    ]


def written(formula: str) -> str:
    """Return `2 * alpha**2` as 2 x alpha^2."""
    return formula.replace("**", "^").replace(" * ", " x ")


def put_in(computed: ComputedValue) -> str:
    """Return the formula with a number for each symbol."""
    values = computed.inputs
    return written(SYMBOL.sub(lambda symbol: number(values[symbol[0]]), computed.formula))


def number(value: float) -> str:
    """Return all digits of a count, and four of a measured or computed value: 8,192, 4.59e14."""
    rounded = float(f"{value:.3e}")
    if value == int(value) and (abs(value) < 1e7 or (rounded != value and abs(value) < 1e13)):
        return f"{int(value):,}"
    if abs(value) >= 1e7:
        mantissa, exponent = f"{rounded:.3e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return four_digits(value)


def with_its_unit(value: float, unit: str) -> str:
    """Return a computed value with its unit."""
    if unit in ("bytes", "B/s"):
        return with_unit(value, unit.replace("bytes", "B"), 4)
    if unit == "s":
        return seconds(value)
    if unit == "MFU":
        return f"{percent(value)} MFU"
    return f"{number(value)} {unit}".rstrip()


def as_printed(digits: str, unit: str) -> str:
    """Return a published figure with its published digits: 20.9 TB, 435 years, 43 %."""
    mantissa, _, power = digits.partition("e")
    exponent = int(power or 0)
    if unit == "bytes":
        return f"{mantissa} {PREFIXES[exponent]}B"
    if unit == "MFU":
        return f"{Decimal(digits).scaleb(2):f} % MFU"
    if exponent in SHORT:
        return f"{mantissa}{SHORT[exponent]} {unit}"
    return f"{digits if power else f'{Decimal(digits):,}'} {unit}"
