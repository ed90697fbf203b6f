"""Bars beside the lines of a table, made of block characters, or of ASCII where those lack."""

import re
from collections.abc import Sequence

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
