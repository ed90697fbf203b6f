"""Reads one cell of a published run's row: numbers, types, and what only the notes state."""

import re

from orchestrator.errors import SpecError
from orchestrator.types.spec_fields import DType

Row = dict[str, str]
MOST = 10**15  # of anything counted; beyond it sums are no longer exact
TYPES: dict[str, DType] = {"bfloat16": "bf16", "bf16": "bf16", "float32": "fp32", "fp32": "fp32"}


class Unscorable(SpecError):
    """A row cannot be scored: its run cannot be planned, or its figure not converted.

    What is wrong with a whole file has the file, and the line and the column of a cell.
    """

    def __init__(
        self, why: str, *, file: str | None = None, line: int | None = None,
        column: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(why)
        self.file, self.line, self.column = file, line, column


def number(row: dict[str, str], column: str) -> float:
    try:
        return float(row[column])
    except ValueError:
        content = f"says {row[column]!r}" if row[column] else "is empty"
        raise Unscorable(f"{column} {content}: a number is needed") from None


def positive(row: dict[str, str], column: str, scale: float = 1.0) -> float | None:
    """A figure in base units; None where the row states none."""
    if not row[column]:
        return None
    value = number(row, column)
    if not 0 < value < float("inf"):
        raise Unscorable(f"{column} says {row[column]}: it must be positive")
    return value * scale


def whole(row: dict[str, str], column: str, default: int | None = None) -> int:
    """A positive count; an empty cell is the default, where there is one."""
    if not row[column] and default is not None:
        return default
    value = number(row, column)
    if not (1 <= value <= MOST and value.is_integer()):
        raise Unscorable(f"{column} says {row[column]}: a positive whole number is needed")
    return int(value)


def dtype(text: str) -> DType:
    if text.lower() not in TYPES:
        raise Unscorable(f"the type {text!r} is none of {', '.join(TYPES)}")
    return TYPES[text.lower()]


def note(row: dict[str, str], pattern: str) -> re.Match[str] | None:
    return re.search(pattern, row["notes"])


def noted_count(row: dict[str, str], pattern: str, default: int) -> int:
    """A count that only the notes state."""
    match = note(row, pattern)
    return int(match[1]) if match else default
