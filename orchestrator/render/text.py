"""Render room: numbers with their units, and aligned columns."""

from collections.abc import Iterable, Sequence

GIB = 2**30
SHORT_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
SI_SCALES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
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


def gib(value_bytes: float) -> str:
    return f"{value_bytes / GIB:,.2f} GiB"


def seconds(value_s: float) -> str:
    """Seconds in the unit that puts digits before the point: 12.1 s, 419 ms, 3.86 ms."""
    scale, unit = next((pair for pair in TIME_SCALES if value_s >= pair[0]), TIME_SCALES[-1])
    return f"{to_digits(value_s / scale, 3)} {unit}"


def percent(fraction: float) -> str:
    return f"{fraction * 100:.1f} %"


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


def indent(lines: Iterable[str], by: str = "  ") -> list[str]:
    return [by + line if line else line for line in lines]


def title(left: str, right: str, width: int = 80) -> str:
    """Two ends of one line."""
    return f"{left}{right:>{max(width - len(left), len(right) + 2)}}"
