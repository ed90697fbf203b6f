"""Lay out text for terminals: titles, paragraphs and tables in blocks, within a width.

A screen is plain text in a pipe or a file; only a terminal gets styles. It does not use rich: its
import and tables would add 7 % to the time of `orch plan`, and its tables cut long paths.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import wrap
from typing import Literal

# Bars beside the lines of a table, made of block characters, or of ASCII where those lack.


BLOCKS = "▏▎▍▌▋▊▉█"  # one to eight eighths of a column
IN_ASCII = str.maketrans(dict.fromkeys("▏▎▍", "-") | dict.fromkeys("▌▋▊▉█", "#"))
BARS = re.compile(f"[{BLOCKS}]+")
LEAST_COLUMNS, MOST_COLUMNS = 4, 40  # a shorter bar shows nothing, a longer one no more
GAP = 2


def with_bars(lines: list[str], sizes: Sequence[float], width: int) -> list[str]:
    """Return the lines, each with a bar of its size behind the longest line.

    There are none without room, or where there is nothing to compare.
    """
    start = max(map(len, lines)) + GAP
    room, largest = min(width - start, MOST_COLUMNS), max(sizes)
    if room < LEAST_COLUMNS or sum(size > 0 for size in sizes) < 2:
        return lines
    return [
        f"{line:{start}}{bar(size / largest * room)}".rstrip()
        for line, size in zip(lines, sizes, strict=True)
    ]


def bar(columns: float) -> str:
    """Return a bar so many columns long, to an eighth; any length above 0 can be seen."""
    eighths = max(round(columns * 8), 1) if columns > 0 else 0
    return BLOCKS[-1] * (eighths // 8) + (BLOCKS[eighths % 8 - 1] if eighths % 8 else "")


def in_encoding(text: str, encoding: str) -> str:
    """Return text that an output of this encoding takes: bars in ASCII, a `?` for what it lacks."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(IN_ASCII).encode(encoding, "replace").decode(encoding)
    return text


Detail = Literal["brief", "usual", "full"]

WIDTH = 80
STYLES = {
    "bold": "\033[1m",
    "yellow": "\033[33m",
    "red": "\033[1;31m",
    "green": "\033[1;32m",
    "bar": "\033[36m",
}
RESET = "\033[0m"
# A line never ends between a number and its unit or its label, before a path, or inside an option.
UNBROKEN = re.compile(r"(?<=\d) (?=\S)|(?<=[^\s,;:]) (?=\d)|(?<=\S) (?=/\w)|(?<=--set) ")
# What commands a terminal, or turns the direction of its text around.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
NOT_ASCII_CONTROL = re.compile(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # JSON escapes the others
IN_LINES = re.compile(r"(?![\t\n])" + CONTROL.pattern)
NEXT = "Next: "  # how the last line begins
COMMANDS = (NEXT, "--set ")  # lines that stay whole, so that a person can copy them
NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, kw_only=True)
class Text:
    """A paragraph. Its first line starts with `start`; later lines are indented by `hang` columns,
    or below the first word.
    """

    text: str
    start: str = ""
    hang: int | None = None
    style: str = ""
    keep_numbers: bool = True

    def lines(self, width: int) -> list[str]:
        """Return the paragraph, wrapped between words; a word is never cut."""
        first, *others = self.text.split("\n")
        hang = len(self.start) if self.hang is None else self.hang
        lines = self._wrapped(first, width, hang)
        return [*lines, *(line for other in others for line in paragraph(other).lines(width))]

    def _wrapped(self, text: str, width: int, hang: int) -> list[str]:
        lines = wrap(
            UNBROKEN.sub(NO_BREAK, text) if self.keep_numbers else text,
            width,
            initial_indent=self.start,
            subsequent_indent=" " * hang,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [line.replace(NO_BREAK, " ") for line in lines] or [self.start.rstrip()]

    def indented(self, by: int) -> "Text":
        hang = None if self.hang is None else self.hang + by
        return replace(self, start=" " * by + self.start, hang=hang)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A line that stays whole, so that a person can copy it."""

    text: str
    style: str = ""

    def lines(self, _: int) -> list[str]:
        return [self.text]

    def indented(self, by: int) -> "Command":
        return replace(self, text=" " * by + self.text)


@dataclass(frozen=True, kw_only=True)
class Title:
    """Two ends of the first line of a screen."""

    left: str
    right: str
    style: str = "bold"

    def lines(self, width: int) -> list[str]:
        return [f"{self.left}{self.right:>{max(width - len(self.left), len(self.right) + 2)}}"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells. `columns` has a letter for each column: `<` left, `>` right, and `w` for a
    last column whose text wraps.

    `bars` has a size for each row: the row ends in a bar of that share of the largest, as wide as
    the room that is left; none where the size is 0. `row_styles` are by the number of a row.
    What is too wide goes on below. Where columns are `spare`, a row stays one line to search for:
    it does without them, the first of them first, until it fits.
    """

    rows: Sequence[Sequence[str]]
    columns: str
    gap: int = 2
    start: str = ""
    style: str = ""
    bars: Sequence[float] = ()
    row_styles: Mapping[int, str] = field(default_factory=dict)
    spare: Sequence[int] = ()

    def lines(self, width: int) -> list[str]:
        return [line for row in self.row_lines(width) for line in row]

    def row_lines(self, width: int) -> list[list[str]]:
        """Return the lines of each row. Columns move closer together where they would be too wide,
        or leave no room for bars.
        """
        if not self.rows:
            return []
        if self.columns.endswith("w"):
            return self._wrapped(width)
        needed = LEAST_COLUMNS + self.gap if self.bars else 0
        lines = self._aligned(self.gap)
        if max(map(len, lines)) + needed > width:
            lines = self._aligned(1)
        if self.bars:
            lines = with_bars(lines, self.bars, width)
        elif max(map(len, lines)) > width:
            lines = self._without_spare(width) if self.spare else self._folded(width)
        return [[line] for line in lines]

    def indented(self, by: int) -> "Table":
        return replace(self, start=" " * by + self.start)

    def _without_spare(self, width: int) -> list[str]:
        """Return rows without as many of the spare columns as it takes."""
        for some in range(1, len(self.spare) + 1):
            kept = [i for i in range(len(self.columns)) if i not in self.spare[:some]]
            lines = self._part(kept)
            if max(map(len, lines)) > width:
                lines = self._part(kept, gap=1)
            if max(map(len, lines)) <= width:
                break
        return lines

    def _folded(self, width: int) -> list[str]:
        """Return the columns that fit, then the others below, each part with the first column."""
        parts: list[list[str]] = []
        chosen: list[int] = []
        for column in range(1, len(self.columns)):
            wider = self._part([0, *chosen, column])
            if chosen and max(map(len, wider)) <= width:
                parts[-1], chosen = wider, [*chosen, column]
            else:
                chosen = [column]
                parts.append(self._part([0, column]))
        return [line for part in parts for line in part]

    def _part(self, chosen: Sequence[int], gap: int | None = None) -> list[str]:
        rows = [[row[i] for i in chosen] for row in self.rows]
        columns = "".join(self.columns[i] for i in chosen)
        return replace(self, rows=rows, columns=columns)._aligned(gap or self.gap)

    def _aligned(self, gap: int) -> list[str]:
        return [(self.start + (" " * gap).join(row)).rstrip() for row in self._padded(self.columns)]

    def _wrapped(self, width: int) -> list[list[str]]:
        gap = " " * self.gap
        rows = [
            ([*cells, ""], row[-1])
            for cells, row in zip(self._padded(self.columns[:-1]), self.rows, strict=True)
        ]
        return [
            [
                line.rstrip()
                for line in Text(text=text, start=self.start + gap.join(cells)).lines(width)
            ]
            for cells, text in rows
        ]

    def _padded(self, columns: str) -> list[list[str]]:
        widths = [max(len(row[i]) for row in self.rows) for i in range(len(columns))]
        return [
            [
                f"{cell:{side}{width}}"
                for cell, side, width in zip(row, columns, widths, strict=False)
            ]
            for row in self.rows
        ]


Part = str | Text | Command | Title | Table


class Screen(str):
    """Blocks of text with an empty line between them. As a string it is plain, 80 columns wide."""

    blocks: tuple[Sequence[Part], ...]

    def __new__(cls, *blocks: Sequence[Part]) -> "Screen":
        self = super().__new__(cls, drawn(blocks, WIDTH))
        self.blocks = blocks
        return self

    def with_written(self, file: Path) -> "Screen":
        """Return the screen with the name of a file that was written, above the next command."""
        *others, last = self.blocks
        end = len(last) - (isinstance(last[-1], Command) and last[-1].text.startswith(NEXT))
        return Screen(*others, [*last[:end], Command(text=f"wrote {file}"), *last[end:]])

    def on_terminal(self, width: int, *, styled: bool = True) -> str:
        """Return the text within a terminal's width, with escape codes for its styles."""
        return drawn(self.blocks, width, styled=styled)


def drawn(blocks: Iterable[Sequence[Part]], width: int, *, styled: bool = False) -> str:
    texts = (
        "\n".join(line for part in block for line in part_lines(part, width, styled=styled))
        for block in blocks
    )
    return "\n\n".join(texts) + "\n"


def part_lines(part: Part, width: int, *, styled: bool) -> list[str]:
    """Return the lines of a part. Text from elsewhere may hold control characters: none is left."""
    if isinstance(part, str):
        part = paragraph(part)
    if not isinstance(part, Table):
        lines = [CONTROL.sub("?", line) for line in part.lines(width)]
        return [with_style(line, part.style) for line in lines] if styled else lines
    rows = [[CONTROL.sub("?", line) for line in row] for row in part.row_lines(width)]
    if not styled:
        return [line for row in rows for line in row]
    styles = [
        part.row_styles.get(number % len(part.rows), part.style) for number in range(len(rows))
    ]
    return [
        with_style(BARS.sub(lambda bar: with_style(bar[0], "bar"), line), style)
        for row, style in zip(rows, styles, strict=True)
        for line in row
    ]


def with_style(text: str, style: str) -> str:
    return f"{STYLES[style]}{text}{RESET}" if style else text


def visible(text: str) -> str:
    """Return lines of text without what commands a terminal: it may quote anybody."""
    return IN_LINES.sub("?", text)


def visible_json(text: str | bytes) -> str:
    """Return JSON of the same value, in which what commands a terminal is escaped."""
    readable = text.decode() if isinstance(text, bytes) else text
    return NOT_ASCII_CONTROL.sub(lambda one: f"\\u{ord(one[0]):04x}", readable)


def screen(*blocks: Sequence[Part]) -> Screen:
    """Return a screen of those blocks that are not empty."""
    return Screen(*(block for block in blocks if block))


def paragraph(text: str, style: str = "") -> Text:
    """Return a paragraph that is indented as the text is."""
    inner = text.lstrip(" ")
    return Text(text=inner, start=" " * (len(text) - len(inner)), style=style)


def heading(text: str) -> Text:
    """Return the first words of a screen, or of a part of it."""
    return paragraph(text, "bold")


def labelled(label: str, text: str, style: str = "") -> Text:
    """Return a paragraph below its first word, which follows a label: `note: …`."""
    return Text(text=text, start=f"{label} ", style=style)


def warning(text: str) -> Text:
    return labelled("warning:", text, "yellow")


def next_step(command: str | None) -> list[Part]:
    """Return the command to type next, if there is one."""
    return [Command(text=f"{NEXT}{command}", style="bold")] if command else []


def closing(sentence: str, command: str | None = None) -> list[Part]:
    """Return the last lines of a screen: its verdict in a sentence, and what to type next."""
    return [paragraph(sentence, "bold"), *next_step(command)]


def indent(parts: Iterable[Part], by: int = 2) -> list[Part]:
    """Return parts of a block, moved to the right."""
    return [
        (paragraph(part) if isinstance(part, str) else part).indented(by)
        for part in parts
        if not isinstance(part, Title)
    ]


def section(name: str, parts: Sequence[Part], by: int = 2) -> list[Part]:
    """Return indented parts below their name; nothing where there are none."""
    return indent([heading(name), *indent(parts)], by) if parts else []


def fit(text: str, width: int = WIDTH, *, whole: tuple[str, ...] = ()) -> str:
    """Return a message with its long lines wrapped, but for commands and lines that begin so."""
    lines: list[str] = []
    for line in text.split("\n"):
        kept = line.startswith(whole) or line.lstrip().startswith(COMMANDS)
        long = len(line) > width and not kept
        lines += hanging(line).lines(width) if long else [line]
    return "\n".join(lines)


def hanging(line: str) -> Text:
    """Return a line of a message whose later lines are indented by two more columns."""
    part = paragraph(line)
    return replace(part, hang=len(part.start) + 2)
