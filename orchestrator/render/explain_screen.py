"""An explanation as a text that reads from question to answer."""

import re
from decimal import Decimal
from math import exp

from orchestrator.render.formatting import count, percent, seconds, span, with_unit
from orchestrator.render.layout import KEPT, broken, columns, indent, wrapped
from orchestrator.types.explanation import (
    Citation,
    ComputedValue,
    Derivation,
    DerivationSection,
    Difference,
    ExpectedPart,
    ExpectedStep,
    Explanation,
    Input,
    QuotedFigure,
    QuotedFigures,
)

# A name, but neither a function nor the exponent of a number.
SYMBOL = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w(])")
PREFIXES = {9: "G", 12: "T"}
SHORT = {3: "K", 6: "M"}
NAMES = 32  # columns for what a line is about
LABELS = 10
NAMED = 10  # runs that are named on the screen; more are counted


def explain_screen(sheet: Explanation, next_command: str) -> str:
    """What is given, what follows, what was published, what the plan does, and where it is from."""
    blocks = [
        broken("", headline(sheet)),
        [*inputs(sheet.inputs), *broken("  MFU counts ", sheet.mfu_definition)],
        *(section(entry) for entry in sheet.sections),
        *(quotes(entry) for entry in sheet.quotes),
        realized(sheet),
        *([expected(sheet.expectation)] if sheet.expectation else []),
        sources(sheet.sources),
        [*wrapped(sheet.summary), f"Next: {next_command}"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def headline(sheet: Explanation) -> str:
    slices = f"{sheet.pods} {'pod' if sheet.pods == 1 else 'pods'} of {sheet.topology}"
    changed = f", with {' '.join(sheet.overrides)}" if sheet.overrides else ""
    return (
        f"{sheet.name}: {sheet.model} on {count(sheet.chips)} {sheet.chip} chips, {slices},"
        f" worked by hand{changed}"
    )


def inputs(entries: tuple[Input, ...]) -> list[str]:
    rows = [(e.symbol, number(e.value), e.meaning, cite(e.source or "asked")) for e in entries]
    return ["Inputs", *indent(columns(rows, "<><<"))]


def cite(source: str) -> str:
    return f"[{source}]"


def section(entry: DerivationSection) -> list[str]:
    lines = [entry.title]
    for line in entry.lines:
        lines += derivation(line)
    for verdict in entry.verdicts:
        lines += broken("  -> ", f"{verdict.question} {sentence(verdict.answer)}")
    return lines


def derivation(line: Derivation) -> list[str]:
    """The formula; below it the same with numbers, the value, and where numbers are from."""
    formula = f"{line.symbol} = {written(line.computed.formula)}"
    value = f"{put_in(line.computed)} {result(with_its_unit(line.computed.value, line.unit))}"
    cited = "".join(f" {cite(source)}" for source in line.sources)
    return [
        *broken(f"  {line.name:{NAMES - 2}}", formula),
        *broken(" " * NAMES + "= ", value + cited),
    ]


def result(value: str) -> str:
    """What a formula comes to, which no end of a line parts."""
    return f"= {value}".replace(" ", KEPT)


def sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def quotes(entry: QuotedFigures) -> list[str]:
    lines = broken("Published: ", entry.title)
    for figure in entry.figures:
        lines += quote(figure)
    return lines


def quote(figure: QuotedFigure) -> list[str]:
    """The figure, what gives it, what is exact, and what makes the difference."""
    printed = f"{figure.about}: {as_printed(figure.printed, figure.unit)}"
    agrees = "" if figure.agreement == "rounded" else f", {figure.agreement}"
    lines = broken("  ", f"{printed}  {cite(figure.source)}", 4)
    lines += labelled("from", f"{equation(figure.reproduced, figure.unit)}{agrees}")
    if figure.exact == figure.reproduced:
        lines += labelled("exact", "the same")
    else:
        lines += labelled("exact", equation(figure.exact, figure.unit))
    for aside in figure.asides:
        lines += labelled("beside", f"{aside.says}: {equation(aside.computed, aside.unit)}")
    return lines + (labelled("why", figure.why) if figure.why else [])


def equation(computed: ComputedValue, unit: str) -> str:
    """Symbols, numbers, value; a lone symbol and a formula without any need no second step."""
    value = with_its_unit(computed.value, unit)
    if computed.formula.isidentifier() or not computed.inputs:
        return f"{written(computed.formula)} {result(value)}"
    return f"{written(computed.formula)} = {put_in(computed)} {result(value)}"


def labelled(label: str, text: str) -> list[str]:
    return broken(f"    {label:{LABELS}}", text)


def realized(sheet: Explanation) -> list[str]:
    if sheet.no_plan is not None:
        return [text for line in sheet.no_plan.splitlines() for text in kept_indent(line)]
    lines = ["Where the realizable plan differs"]
    for difference in sheet.differences:
        lines += compared(difference)
    return lines


def kept_indent(line: str) -> list[str]:
    """A line of a message, wrapped under itself."""
    return broken(" " * (len(line) - len(line.lstrip())), line.strip()) if line else [""]


def compared(difference: Difference) -> list[str]:
    return [
        f"  {difference.about}",
        *labelled("by hand", difference.derived),
        *labelled("plan", difference.planned),
        *labelled("why", difference.why),
    ]


def expected(found: ExpectedStep) -> list[str]:
    """Each part of the expected step, and the interval about it."""
    lines = ["What published runs lead to expect of a step"]
    for entry in found.parts:
        lines += expected_part(entry, found.source)
    total = " + ".join(seconds(entry.computed.value) for entry in found.parts)
    lines += labelled("step", f"{total} = {seconds(found.expected_s)}")
    ends = span(seconds(found.low_s), seconds(found.high_s))
    strays = f"runs that nothing was learned from stray by a factor of {exp(found.spread):.3f}"
    why = f"80 % of runs should take {ends}: {strays}; the rest is how unsure the constants are"
    return lines + labelled("interval", f"{why} {cite(found.source)}")


def expected_part(entry: ExpectedPart, source: str) -> list[str]:
    """The formula, the same with numbers, and the runs behind its constants."""
    value = f"{put_in(entry.computed)} {result(seconds(entry.computed.value))}"
    lines = broken(f"  {entry.name:{NAMES - 2}}= ", written(entry.computed.formula))
    lines += broken(" " * NAMES + "= ", value)
    for one in entry.constants:
        sure = f", unsure by {percent(one.unsure)}" if one.unsure else ""
        learned = f"{one.symbol} learned from {runs(one.rows)}{sure} {cite(source)}"
        lines += broken(" " * NAMES + "  ", learned)
    return lines


def runs(rows: tuple[str, ...]) -> str:
    """By name while that is a line or two; JSON has all of them."""
    if len(rows) > NAMED:
        return f"{len(rows)} runs"
    return f"{len(rows)} {'run' if len(rows) == 1 else 'runs'}: {', '.join(rows)}"


def sources(cited: tuple[Citation, ...]) -> list[str]:
    lines = ["Sources"]
    for source in cited:
        said = f"{source.title}; {source.where}; {source.date}"
        lines += broken(f"  {cite(source.key)} ", said, 6)
    return lines


def written(formula: str) -> str:
    """`2 * alpha**2` is written 2 x alpha^2."""
    return formula.replace("**", "^").replace(" * ", " x ")


def put_in(computed: ComputedValue) -> str:
    """The formula with a number in the place of each symbol."""
    inputs = computed.inputs
    return written(SYMBOL.sub(lambda symbol: number(inputs[symbol[0]]), computed.formula))


def number(value: float) -> str:
    """All digits of what was counted; four of what was measured or computed: 8,192, 4.59e14."""
    rounded = float(f"{value:.3e}")
    if value == int(value) and (abs(value) < 1e7 or (rounded != value and abs(value) < 1e13)):
        return f"{int(value):,}"
    if abs(value) >= 1e7:
        mantissa, exponent = f"{rounded:.3e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def with_its_unit(value: float, unit: str) -> str:
    """A computed value as it is shown."""
    if unit in ("bytes", "B/s"):
        return with_unit(value, unit.replace("bytes", "B"), 4)
    if unit == "s":
        return seconds(value)
    if unit == "MFU":
        return f"{percent(value)} MFU"
    return f"{number(value)} {unit}".rstrip()


def as_printed(digits: str, unit: str) -> str:
    """A published figure with the digits it was published with: 20.9 TB, 435 years, 43 %."""
    mantissa, _, power = digits.partition("e")
    exponent = int(power or 0)
    if unit == "bytes":
        return f"{mantissa} {PREFIXES[exponent]}B"
    if unit == "MFU":
        return f"{Decimal(digits).scaleb(2):f} % MFU"
    if exponent in SHORT:
        return f"{mantissa}{SHORT[exponent]} {unit}"
    return f"{digits if power else f'{Decimal(digits):,}'} {unit}"
