"""Show an explanation: formulas with their numbers, published figures, the plan's differences."""

import re
from collections.abc import Sequence
from decimal import Decimal
from itertools import starmap
from math import exp
from typing import Any

from orchestrator import formatting as fmt
from orchestrator.evidence.explain import formula as explained
from orchestrator.evidence.explain.differences import difference_texts
from orchestrator.show import parts as ui
from orchestrator.show.plan_text import likely, verdict_table

_QUESTIONS: dict[explained.QuestionCode, str] = {
    "pod_holds_it": "Does a pod hold it?",
    "sequence_for_every_chip": "Is there a sequence for every chip?",
    "fsdp_bound": "Is pure FSDP compute-bound?",
    "tensor_reach": "How far does tensor go?",
    "mixed_bound": "Is FSDP + tensor compute-bound, simplified as in the book?",
    "mixed_bound_by_all_matmuls": "And with every matmul of a layer?",
    "mlp_bound": "And at these powers of two?",
    "dcn_bound": "Is data parallelism over DCN compute-bound?",
}


def _answer_text(verdict: explained.Verdict) -> str:
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
                return f"yes, {fmt.four_digits(sequences / chips)} a chip"
            return f"no: {sequences:,.0f} sequences leave {idle:,.0f} of {chips:,.0f} chips idle"
        case "tensor_reach":
            ways, power_of_two = fmt.four_digits(figures["below"]), figures["power_of_two"]
            if power_of_two < 2:
                return f"not at all: it takes fewer than {ways} ways"
            return f"below {ways} ways, whatever the batch: {power_of_two} as a power of two"
        case "mlp_bound":
            return explained.bound_by(figures["times"])
        case _:  # FSDP, alone or with tensor, or data parallelism over DCN
            of = "pod" if verdict.question == "dcn_bound" else "chip"
            tokens, least = fmt.four_digits(figures["tokens"]), fmt.four_digits(figures["least"])
            answer = (
                f"{explained.bound_by(figures['times'])}: {tokens} tokens a {of}, it takes {least}"
            )
            if not figures.get("tensor_pays", True):
                answer = f"tensor does not pay, as X_opt exceeds the chips; pure FSDP is {answer}"
            return f"{answer}: the answer flips" if figures.get("flips") else answer


# A name, but neither a function nor the exponent of a number.
_SYMBOL = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w(])")
_PREFIXES, _SHORT = {"3": "k", "6": "M", "9": "G", "12": "T"}, {"3": "K", "6": "M"}
_NAMES = 32  # columns for the name of a line
_MOST_RUNS = 10  # that are listed by name; more are counted


def explain_screen(sheet: explained.Explanation, next_command: str) -> ui.Screen:
    """Return inputs, derivations, published figures, the plan's differences, and sources."""
    slices = f"{fmt.counted(sheet.pods, 'pod')} of {sheet.topology}"
    changed = f", with {' '.join(sheet.overrides)}" if sheet.overrides else ""
    chips = fmt.counted(sheet.chips, f"{sheet.chip} chip")
    headline = f"{sheet.name}: {sheet.model} on {chips}, {slices}, worked out by hand{changed}"
    # The derivation without a plan, and what is planned.
    summary, planned = sheet.summary, "no realizable plan"
    by_hand = f"{fmt.lasting(summary.days)} at {explained.assumed(summary.mfu)}"
    if summary.mixed_times is not None:
        sharding = "FSDP + tensor" if summary.tensor_pays else "pure FSDP"
        by_hand += f", {sharding} {explained.bound_by(summary.mixed_times)}"
    rows = [("plan", planned), ("by hand", by_hand)]
    verdict = ui.Table(rows, "<w", row_styles={0: "red"})
    if summary.forecast is not None:
        verdict = verdict_table(summary.forecast, summary.tokens, rows[1:])
        planned = f"planned {likely(summary.forecast.days, fmt.lasting)}"
    # The differences between the derivation and the plan, or why nothing is planned.
    realized: list[ui.Part] = [_title("Where the realizable plan differs")]
    for about, *texts in difference_texts(sheet.differences) if sheet.differences else ():
        realized.append(ui.Command(f"  {about}"))
        realized += map(_labelled, ("by hand", "plan", "why"), texts)
    if sheet.no_plan is not None:
        realized = [*sheet.no_plan.splitlines()]
    mfu = _text("  MFU counts ", sheet.mfu_definition)
    return ui.screen(
        [_title(headline)],
        ui.indent([verdict]),
        [*inputs_table(sheet.inputs), mfu],
        *map(section_parts, sheet.sections),
        *published_parts(sheet.quotes),
        realized,
        _expected(sheet.expectation) if sheet.expectation else [],
        section_parts(sheet.goodput) if sheet.goodput else [],
        sources_parts(sheet.sources),
        [_title(f"Answer: {by_hand}, {planned}."), *ui.next_step(next_command)],
    )


def inputs_table(inputs: Sequence[explained.Input], *, wraps: bool = False) -> list[ui.Part]:
    """Return symbols, values, meanings and sources; long meanings may wrap with their source."""
    rows = []
    for given in inputs:
        about = given.meaning, f"[{given.source or 'spec'}]"
        rows.append((given.symbol, _number(given.value), *([" ".join(about)] if wraps else about)))
    return ["Inputs", *ui.indent([ui.Table(rows, "<>w" if wraps else "<><<")])]


def published_parts(quotes: Sequence[explained.QuotedFigures]) -> list[list[ui.Part]]:
    """Return the published figures of each question, what gives each, and why they differ."""

    def equation(computed: explained.ComputedValue, unit: str) -> str:
        """Return symbols, numbers and value; a lone symbol or a number needs no middle step."""
        formula = _written(computed.formula)
        if not computed.formula.isidentifier() and computed.inputs:
            formula += f" = {_put_in(computed)}"
        return f"{formula} {_result(computed, unit)}"

    blocks = []
    for entry in quotes:
        parts: list[ui.Part] = [_text("Published: ", entry.title, style="bold")]
        for figure in entry.figures:
            unit = figure.unit
            printed = f"{figure.about}: {_as_printed(figure.printed, unit)}"
            agreement = "" if figure.agreement == "rounded" else f", {figure.agreement}"
            exact = (
                equation(figure.exact, unit) if figure.exact != figure.reproduced else "the same"
            )
            rows = [("from", f"{equation(figure.reproduced, unit)}{agreement}"), ("exact", exact)]
            for remark in figure.asides:
                rows += [("also", f"{remark.says}: {equation(remark.computed, remark.unit)}")]
            rows += [("why", figure.why)] if figure.why else []
            parts.append(_text("  ", f"{printed}  [{figure.source}]", 4))
            parts += starmap(_labelled, rows)
        blocks.append(parts)
    return blocks


def sources_parts(sources: Sequence[explained.Citation]) -> list[ui.Part]:
    texts = (
        _text(f"  [{source.key}] ", f"{source.title}; {source.where}; {source.date}", 6)
        for source in sources
    )
    return [_title("Sources"), *texts]


def _text(start: str, words: str, hang: int | None = None, style: str = "") -> ui.Text:
    """Return a paragraph that may break at any space, as formulas have a number in every word."""
    return ui.Text(words, start=start, hang=hang, style=style, keep_numbers=False)


def _title(words: str) -> ui.Text:
    return _text("", words, style="bold")


def _labelled(label: str, words: str) -> ui.Text:
    return _text(f"    {label:10}", words)


def section_parts(entry: explained.DerivationSection) -> list[ui.Part]:
    """Return formulas, each with its numbers, value and sources, then answers to questions."""
    parts: list[ui.Part] = [_title(entry.title)]
    for line in entry.lines:
        value = _result(line.computed, line.unit)
        cited = "".join(f" [{source}]" for source in line.sources)
        formula = f"{line.symbol} = {_written(line.computed.formula)}"
        parts.append(_text(f"  {line.name:{_NAMES - 2}}", formula))
        parts.append(_text(" " * _NAMES + "= ", f"{_put_in(line.computed)} {value}{cited}"))
    for verdict in entry.verdicts:
        answer = _answer_text(verdict)
        question = _QUESTIONS[verdict.question]
        parts.append(_text("  -> ", f"{question} {answer[0].upper()}{answer[1:]}."))
    return parts


def _result(computed: explained.ComputedValue, unit: str) -> str:
    """Return the value of a formula with its unit, in one piece."""
    value = computed.value
    text = f"{_number(value)} {unit}".rstrip()
    if unit in ("bytes", "B/s"):
        text = fmt.with_unit(value, unit.replace("bytes", "B"), 4)
    elif unit == "s" and value < 1000:  # of more, as many digits as where it is put in
        text = fmt.seconds(value)
    elif unit == "MFU":
        text = f"{fmt.percent(value)} MFU"
    return f"= {text}".replace(" ", ui.NO_BREAK)


def _expected(step: explained.ExpectedStep) -> list[ui.Part]:
    """Return the parts of the expected step, the runs behind their constants, and the interval."""
    parts: list[ui.Part] = [_title("The expected step, from published runs")]
    for entry in step.parts:
        value = f"{_put_in(entry.computed)} {_result(entry.computed, 's')}"
        parts.append(_text(f"  {entry.name:{_NAMES - 2}}= ", _written(entry.computed.formula)))
        parts.append(_text(" " * _NAMES + "= ", value))
        for constant in entry.constants:
            # A few runs by name, and the number of many; JSON has all names.
            are_few = len(constant.rows) <= _MOST_RUNS
            names = f": {', '.join(constant.rows)}" if are_few else ""
            runs = fmt.counted(len(constant.rows), "run") + names
            error = f", standard error {fmt.percent(constant.unsure)}" if constant.unsure else ""
            learned = f"{constant.symbol} fitted to {runs}{error} [{step.source}]"
            parts.append(_text(" " * _NAMES + "  ", learned))
    total = " + ".join(fmt.seconds(entry.computed.value) for entry in step.parts)
    ends = fmt.span(fmt.seconds(step.low_s), fmt.seconds(step.high_s))
    interval = (
        f"80 % prediction interval {ends}: runs outside the fit differ by a factor of"
        f" {exp(step.spread):.3f}; the rest is the uncertainty of the constants [{step.source}]"
    )
    parts.append(_labelled("step", f"{total} = {fmt.seconds(step.expected_s)}"))
    return [*parts, _labelled("interval", interval)]


def _written(formula: str) -> str:
    return formula.replace("**", "^").replace(" * ", " x ")


def _put_in(computed: explained.ComputedValue) -> str:
    values = computed.inputs
    return _written(_SYMBOL.sub(lambda symbol: _number(values[symbol[0]]), computed.formula))


def _number(value: float) -> str:
    """Return all digits of a count, and four of a measured or computed value: 8,192, 4.59e14."""
    mantissa, exponent = f"{value:.3e}".split("e")
    is_rounded = float(f"{value:.3e}") != value
    if value == int(value) and (abs(value) < 1e7 or (is_rounded and abs(value) < 1e13)):
        return f"{int(value):,}"
    if abs(value) < 1e7:
        return fmt.four_digits(value)
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _as_printed(digits: str, unit: str) -> str:
    """Return a published figure with its published digits: 20.9 TB, 435 years, 43 %."""
    mantissa, _, power = digits.partition("e")
    if unit == "bytes":
        return f"{mantissa} {_PREFIXES[power]}B"
    if unit == "MFU":
        return f"{Decimal(digits).scaleb(2):f} % MFU"
    if power in _SHORT:
        return f"{mantissa}{_SHORT[power]} {unit}"
    return f"{digits if power else f'{Decimal(digits):,}'} {unit}"
