"""Render room: numbers with their units, aligned columns, and lines that fit a terminal."""

import re
from collections.abc import Iterable, Sequence
from textwrap import wrap

MIB, GIB = 2**20, 2**30
WIDTH = 80  # of a screen
# What the first words of a line stand behind: the cells before the last one, or a label.
LEAD = re.compile(r" *(?:\S.* {2,}(?=\S)|[A-Za-z ]{1,16}: )?")
# Where no line ends: a number stays with what it counts and what it is of.
BESIDE_A_NUMBER = re.compile(r"(?<=\d) (?=\S)|(?<=[^\s,;:]) (?=\d)")
KEPT = "\N{NO-BREAK SPACE}"
SHORT_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
SI_SCALES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60
LONG_SCALES = ((DAY_S, "days"), (HOUR_S, "hours"), (MINUTE_S, "minutes"))
TIME_SCALES = ((1, "s"), (1e-3, "ms"), (1e-6, "us"))


def count(value: float) -> str:
    """A whole number with thousands separated: 35,840."""
    return f"{value:,.0f}"


def scaled(value: float, digits: int = 3) -> str:
    """A large number as people say it, decimal: 4.59M, 15T."""
    scale, letter = next(((s, at) for s, at in SHORT_SCALES if value >= s), (1, ""))
    return f"{to_digits(value / scale, digits)}{letter}"


def with_unit(value: float, unit: str, digits: int = 3) -> str:
    """A quantity with its decimal prefix: 459 TFLOP/s, 13.1 GB."""
    scale, letter = next(((s, at) for s, at in SI_SCALES if value >= s), (1, ""))
    return f"{to_digits(value / scale, digits)} {letter}{unit}"


def to_digits(value: float, digits: int) -> str:
    """So many significant digits, without an exponent or trailing zeros: 0.0378, 1,234."""
    rounded = float(f"{value:.{digits - 1}e}")
    return f"{rounded:,.0f}" if rounded >= 10 ** (digits - 1) else f"{rounded:.{digits}g}"


def in_memory(value_bytes: float) -> str:
    """Bytes of a device, in GiB or, where that would show nothing, in MiB, as wide as that."""
    unit, name = (MIB, "MiB") if 0 < value_bytes < GIB / 100 else (GIB, "GiB")
    return f"{value_bytes / unit:,.2f} {name}"


def seconds(value_s: float) -> str:
    """Seconds in the unit that puts digits before the point: 12.1 s, 419 ms, 3.86 ms."""
    scale, unit = next((pair for pair in TIME_SCALES if value_s >= pair[0]), TIME_SCALES[-1])
    return f"{to_digits(value_s / scale, 3)} {unit}"


def lasting(days: float) -> str:
    """How long all tokens take, in a unit that shows digits: 13.8 days, 3.2 hours, 22.2 s."""
    left_s = days * DAY_S
    if left_s < MINUTE_S:
        return seconds(left_s)
    scale, unit = next(pair for pair in LONG_SCALES if left_s >= pair[0])
    return f"{left_s / scale:,.1f} {unit}"


def percent(fraction: float) -> str:
    return f"{fraction * 100:.1f} %"


def off(measured_s: float, expected_s: float, than: str) -> str:
    """How far measured is from expected: as a share, or how many times beyond a factor of two."""
    times = measured_s / expected_s
    if not 0.5 <= times <= 2:
        return f"{to_digits(times, 2)} times {than}"
    return f"{percent(abs(times - 1))} {'more' if times > 1 else 'less'} than {than}"


def dollars(value: float) -> str:
    """Money to three digits: $17.3M, $940."""
    return f"${scaled(value)}"


def span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def columns(rows: Iterable[Sequence[str]], alignment: str, gap: str = "  ") -> list[str]:
    """Rows of cells as lines; `alignment` has `<` or `>` for each column."""
    table = [list(row) for row in rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(alignment))] if table else []
    form = gap.join(f"{{:{side}{width}}}" for side, width in zip(alignment, widths, strict=True))
    return [form.format(*row).rstrip() for row in table]


def tabulated(rows: Sequence[Sequence[str]], alignment: str) -> list[str]:
    """Rows as indented lines of a screen, which move closer together where they have to."""
    lines = indent(columns(rows, alignment))
    too_wide = any(len(line) > WIDTH for line in lines)
    return indent(columns(rows, alignment, " ")) if too_wide else lines


def indent(lines: Iterable[str], by: str = "  ") -> list[str]:
    return [by + line if line else line for line in lines]


def following(next_command: str | None) -> list[str]:
    """What to type next, where there is a next."""
    return [f"Next: {next_command}"] if next_command else []


def smaller(number: int) -> str:
    """What the lines are called that are told together."""
    return f"{number} smaller line{'s' * (number != 1)}"


def title(left: str, right: str) -> str:
    """Two ends of one line."""
    return f"{left}{right:>{max(WIDTH - len(left), len(right) + 2)}}"


def page(blocks: Iterable[Sequence[str]]) -> str:
    """Blocks of lines with an empty line between them, within the width of a screen."""
    return fit("\n\n".join("\n".join(block) for block in blocks if block) + "\n")


def fit(text: str) -> str:
    """The text with wide lines wrapped between words; a command or a path keeps its line."""
    lines = [part for line in text.split("\n") for part in wrapped(line)]
    return "\n".join(lines)


def wrapped(line: str) -> list[str]:
    """One line as so many as it needs, the later ones under the first word of its last cell."""
    if len(line) <= WIDTH or line.startswith("Next: ") or " /" in line:
        return [line]
    lead = LEAD.match(line)
    assert lead
    start = lead[0] if lead[0].strip() else lead[0] + "  "
    return hanging(lead[0], line[lead.end() :], len(start))


def hanging(start: str, text: str, by: int | None = None) -> list[str]:
    """Wrapped, with later lines under the first word or moved in by so many columns."""
    return broken(start, BESIDE_A_NUMBER.sub(KEPT, text), by)


def broken(start: str, text: str, by: int | None = None) -> list[str]:
    """The same, at any space that is not kept."""
    lines = wrap(
        text,
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * (len(start) if by is None else by),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(KEPT, " ") for line in lines]
