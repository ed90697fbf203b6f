"""numbers with their units, aligned columns, and lines that fit a terminal."""

import re
from collections.abc import Iterable, Sequence
from textwrap import wrap

WIDTH = 80  # of a screen
# What the first words of a line stand behind: the cells before the last one, or a label.
LEAD = re.compile(r" *(?:\S.* {2,}(?=\S)|[A-Za-z ]{1,16}: )?")
# Where no line ends: a number stays with what it counts and what it is of.
BESIDE_A_NUMBER = re.compile(r"(?<=\d) (?=\S)|(?<=[^\s,;:]) (?=\d)")
KEPT = "\N{NO-BREAK SPACE}"


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
