"""Lay out text for terminals: titles, paragraphs and tables in blocks, within a width. Only a
terminal gets styles. rich is not used: its tables cut wide columns and words, and have neither
columns that go on below nor bars in the room that is left.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import wrap
from typing import Literal, Self

Detail = Literal["brief", "usual", "full"]
Row = tuple[str, ...]
Show = Callable[[float], str]  # a number as text

WIDTH = 80
_STYLES = {
    "bold": "\033[1m",
    "yellow": "\033[33m",
    "red": "\033[1;31m",
    "green": "\033[1;32m",
    "bar": "\033[36m",
}
_RESET = "\033[0m"
# A line never ends between a number and its unit or its label, before a path, or inside an option.
_UNBROKEN = re.compile(r"(?<!\S)[^\s=]*\d (?=\S)|(?<=[^\s,;:]) (?=\d)|(?<=\S) (?=/\w)|(?<=--set) ")
# What commands a terminal, or turns the direction of its text around.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_IN_LINES = re.compile(r"(?![\t\n])" + _CONTROL.pattern)
NEXT = "Next: "  # how the last line begins
_COMMANDS = (NEXT, "--set ")  # lines that stay whole, so that a person can copy them
NO_BREAK = "\N{NO-BREAK SPACE}"

_BLOCKS = "▏▎▍▌▋▊▉█"  # one to eight eighths of a column
_HEIGHTS = "▁▂▃▄▅▆▇█"  # one to eight eighths of a line
_IN_ASCII = str.maketrans(
    dict.fromkeys("▏▎▍", "-")
    | dict.fromkeys("▌▋▊▉█", "#")
    | dict(zip("▁▂▃▄▅▆▇", "_.-=+*%", strict=True))
)
_BARS = re.compile(f"[{_BLOCKS}{_HEIGHTS}]+")
_LEAST_COLUMNS, _MOST_COLUMNS = 4, 40  # a shorter bar shows nothing, a longer one no more
_GAP = 2


@dataclass(frozen=True)
class Text:
    """A paragraph that begins with `start`; later lines hang below its first word, or at `hang`."""

    text: str
    start: str = ""
    hang: int | None = None
    style: str = ""
    keep_numbers: bool = True

    def lines(self, width: int) -> list[str]:
        """Return the paragraph, wrapped between words; a word is never cut."""
        first, *others = self.text.split("\n")
        lines = wrap(
            _UNBROKEN.sub(lambda m: m[0][:-1] + NO_BREAK, first) if self.keep_numbers else first,
            width,
            initial_indent=self.start,
            subsequent_indent=" " * (len(self.start) if self.hang is None else self.hang),
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines = [line.replace(NO_BREAK, " ") for line in lines] or [self.start.rstrip()]
        return [*lines, *(line for other in others for line in paragraph(other).lines(width))]

    def indented(self, by: int) -> Self:
        hang = None if self.hang is None else self.hang + by
        return replace(self, start=" " * by + self.start, hang=hang)


@dataclass(frozen=True)
class Command(Text):
    """A line that stays whole, so that a person can copy it."""

    def lines(self, _: int) -> list[str]:
        return [self.start + self.text]


@dataclass(frozen=True)
class Title:
    """Two ends of the first line of a screen."""

    left: str
    right: str
    style: str = "bold"

    def lines(self, width: int) -> list[str]:
        return [f"{self.left}{self.right:>{max(width - len(self.left), len(self.right) + 2)}}"]


@dataclass(frozen=True)
class Table:
    """Rows of cells. `columns` has a letter each: `<` left, `>` right, and `w` for a last column
    whose text wraps. By default all columns but the first are numbers, to the right. `bars` has a
    size per row, drawn as a share of the largest in the room that is left. `row_styles` are by row
    number. Where columns are `spare`, a row that is too wide loses them, the first first, to stay
    one line to search for; otherwise it goes on below.
    """

    rows: Sequence[Sequence[str]]
    columns: str = ""
    gap: int = _GAP
    start: str = ""
    style: str = ""
    bars: Sequence[float] = ()
    row_styles: Mapping[int, str] = field(default_factory=dict)
    spare: Sequence[int] = ()

    def lines(self, width: int) -> list[str]:
        return [line for row in self.row_lines(width) for line in row]

    def indented(self, by: int) -> Self:
        return replace(self, start=" " * by + self.start)

    def row_lines(self, width: int) -> list[list[str]]:
        """Return the lines of each row; columns move closer where they or bars lack room."""
        if not self.rows:
            return []
        every = range(len(self.rows[0]))
        if self.columns.endswith("w"):
            starts = self._aligned(every[:-1], self.gap)
            gap = " " * self.gap
            return [
                [line.rstrip() for line in Text(row[-1], start + gap).lines(width)]
                for start, row in zip(starts, self.rows, strict=True)
            ]
        lines = self._fitting(every, width - (_LEAST_COLUMNS + self.gap if self.bars else 0))
        if self.bars:
            lines = self._with_bars(lines, width)
        elif max(map(len, lines)) > width and not self.spare:
            # The columns that fit, then the others below, each part with the first column.
            parts, chosen = list[list[str]](), list[int]()
            for column in every[1:]:
                wider = [line.rstrip() for line in self._aligned([0, *chosen, column], self.gap)]
                if chosen and max(map(len, wider)) <= width:
                    parts[-1], chosen = wider, [*chosen, column]
                else:
                    parts.append([line.rstrip() for line in self._aligned([0, column], self.gap)])
                    chosen = [column]
            lines = [line for part in parts for line in part]
        for number in range(1, len(self.spare) + 1):
            if max(map(len, lines)) > width:
                lines = self._fitting([i for i in every if i not in self.spare[:number]], width)
        return [[line] for line in lines]

    def _aligned(self, chosen: Sequence[int], gap: int) -> list[str]:
        sides = self.columns or "<" + ">" * (len(self.rows[0]) - 1)
        widths = {column: max(len(row[column]) for row in self.rows) for column in chosen}
        return [
            self.start + (" " * gap).join(f"{row[i]:{sides[i]}{widths[i]}}" for i in chosen)
            for row in self.rows
        ]

    def _fitting(self, chosen: Sequence[int], width: int) -> list[str]:
        lines = [line.rstrip() for line in self._aligned(chosen, self.gap)]
        if max(map(len, lines)) > width:
            lines = [line.rstrip() for line in self._aligned(chosen, 1)]
        return lines

    def _with_bars(self, lines: list[str], width: int) -> list[str]:
        """Return the lines, each with a bar of its size if there is room and a second size."""
        start = max(map(len, lines)) + _GAP
        room, largest = min(width - start, _MOST_COLUMNS), max(self.bars)
        if room < _LEAST_COLUMNS or sum(size > 0 for size in self.bars) < 2:
            return lines
        return [
            f"{line:{start}}{_bar(size / largest * room)}".rstrip()
            for line, size in zip(lines, self.bars, strict=True)
        ]


Part = str | Text | Title | Table


def _bar(columns: float) -> str:
    """Return a bar of this many columns, to an eighth; any length above 0 can be seen."""
    eighths = max(round(columns * 8), 1) if columns > 0 else 0
    return _BLOCKS[-1] * (eighths // 8) + (_BLOCKS[eighths % 8 - 1] if eighths % 8 else "")


def curve(values: Sequence[float], low: float | None = None, high: float | None = None) -> str:
    """Return a line with a character for each value, between the ends or, without, the extremes."""
    least = min(values, default=0.0) if low is None else low
    most = max(values, default=0.0) if high is None else high
    shares = [(min(value, most) - least) / ((most - least) or 1.0) for value in values]
    return "".join(_HEIGHTS[round(max(share, 0.0) * 7)] for share in shares)


class Screen(str):
    """Blocks of text with an empty line between them. As a string it is plain, 80 columns wide."""

    blocks: tuple[Sequence[Part], ...]

    def __new__(cls, *blocks: Sequence[Part]) -> "Screen":
        self = super().__new__(cls, _drawn(blocks, WIDTH))
        self.blocks = blocks
        return self

    def with_written(self, file: Path) -> "Screen":
        """Return the screen with the name of a file that was written, above the next command."""
        *others, last = self.blocks
        end = len(last) - (isinstance(last[-1], Command) and last[-1].text.startswith(NEXT))
        return Screen(*others, [*last[:end], Command(f"wrote {file}"), *last[end:]])

    def on_terminal(self, width: int, *, styled: bool = True) -> str:
        """Return the text within a terminal's width, with escape codes for its styles."""
        return _drawn(self.blocks, width, styled=styled)


def _drawn(blocks: Iterable[Sequence[Part]], width: int, *, styled: bool = False) -> str:
    texts = []
    for block in blocks:
        lines: list[str] = []
        for part in block:
            shown = paragraph(part) if isinstance(part, str) else part
            # Text from elsewhere may hold control characters: they go.
            plain = [_CONTROL.sub("?", line) for line in shown.lines(width)]
            lines += _with_styles(shown, plain, width) if styled else plain
        texts.append("\n".join(lines))
    return "\n\n".join(texts) + "\n"


def _with_styles(part: Text | Title | Table, lines: list[str], width: int) -> list[str]:
    if not isinstance(part, Table):
        return [with_style(line, part.style) for line in lines]
    # A folded table repeats its rows: each repeat has the style of its row.
    styles = [
        part.row_styles.get(number % len(part.rows), part.style)
        for number, row in enumerate(part.row_lines(width))
        for _ in row
    ]
    return [
        with_style(_BARS.sub(lambda found: with_style(found[0], "bar"), line), style)
        for line, style in zip(lines, styles, strict=True)
    ]


def with_style(text: str, style: str) -> str:
    return f"{_STYLES[style]}{text}{_RESET}" if style else text


def in_encoding(text: str, encoding: str) -> str:
    """Return text that an output of this encoding takes: bars in ASCII, a `?` for what it lacks."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_IN_ASCII).encode(encoding, "replace").decode(encoding)
    return text


def visible(text: str) -> str:
    """Return lines of text without what commands a terminal: it may quote anybody."""
    return _IN_LINES.sub("?", text)


def screen(*blocks: Iterable[Part]) -> Screen:
    return Screen(*(block for block in map(list, blocks) if block))


def paragraph(text: str, style: str = "") -> Text:
    inner = text.lstrip(" ")
    return Text(inner, " " * (len(text) - len(inner)), style=style)


def heading(text: str) -> Text:
    return paragraph(text, "bold")


def labelled(label: str, text: str, style: str = "") -> Text:
    return Text(text, f"{label} ", style=style)


def notes(texts: Iterable[str]) -> list[Part]:
    return [labelled("note:", text) for text in texts]


def warning(text: str) -> Text:
    return labelled("warning:", text, "yellow")


def next_step(command: str | None) -> list[Part]:
    return [Command(f"{NEXT}{command}", style="bold")] if command else []


def closing(sentence: str, command: str | None = None) -> list[Part]:
    return [heading(sentence), *next_step(command)]


def table(head: Row, rows: Iterable[Row], columns: str = "") -> list[Part]:
    listed = list(rows)
    return [Table([head, *listed], columns)] if listed else []


def indent(parts: Iterable[Part], by: int = 2) -> list[Part]:
    return [
        (paragraph(part) if isinstance(part, str) else part).indented(by)
        for part in parts
        if not isinstance(part, Title)
    ]


def section(name: str, parts: Sequence[Part], by: int = 2) -> list[Part]:
    return indent([heading(name), *indent(parts)], by) if parts else []


def fit(text: str, width: int = WIDTH, *, whole: tuple[str, ...] = ()) -> str:
    """Return a message with its long lines wrapped, but for commands and lines that begin so."""
    lines: list[str] = []
    for line in text.split("\n"):
        is_whole = line.startswith(whole) or line.lstrip().startswith(_COMMANDS)
        part = paragraph(line)
        # Later lines are indented by two more columns.
        hanging = replace(part, hang=len(part.start) + 2)
        lines += [line] if is_whole or len(line) <= width else hanging.lines(width)
    return "\n".join(lines)
