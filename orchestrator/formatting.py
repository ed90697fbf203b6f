"""Format numbers for people: counts, bytes, seconds, money, shares and intervals."""

from collections.abc import Callable
from string import Formatter
from typing import Any

_MIB, GIB = 2**20, 2**30
DAY_S, HOUR_S, _MINUTE_S = 86_400, 3_600, 60
_SHORT_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_SI_SCALES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_LONG_SCALES = ((DAY_S, "days"), (HOUR_S, "hours"), (_MINUTE_S, "minutes"))
_CENT = 0.01
_TIME_SCALES = ((1, "s"), (1e-3, "ms"), (1e-6, "us"))
_AGES = (
    (2 * DAY_S, DAY_S, "days"),
    (HOUR_S, HOUR_S, "h"),
    (_MINUTE_S, _MINUTE_S, "min"),
    (0, 1, "s"),
)
_ELAPSED_SCALES = ((DAY_S, "d"), (HOUR_S, "h"), (_MINUTE_S, "min"), (1, "s"))


def count(value: float) -> str:
    """Return a whole number with separated thousands: 35,840."""
    return f"{value:,.0f}"


def counted(number: int, noun: str, plural: str = "s") -> str:
    """Return a number with its noun, in the plural unless there is one: 1 run, 4 runs."""
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def scaled(value: float, digits: int = 3) -> str:
    """Return a large number with a decimal suffix: 4.59M, 15T."""
    rounded = _to_significant(value, digits)
    scale, letter = next(((s, suffix) for s, suffix in _SHORT_SCALES if rounded >= s), (1, ""))
    return f"{to_digits(value / scale, digits)}{letter}"


def with_unit(value: float, unit: str, digits: int = 3) -> str:
    """Return a quantity with its SI prefix: 459 TFLOP/s, 13.1 GB."""
    rounded = _to_significant(value, digits)
    scale, letter = next(((s, prefix) for s, prefix in _SI_SCALES if rounded >= s), (1, ""))
    return f"{to_digits(value / scale, digits)} {letter}{unit}"


def _to_significant(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def to_digits(value: float, digits: int) -> str:
    """Return significant digits without an exponent or trailing zeros: 0.0378, 1,234."""
    rounded = _to_significant(value, digits)
    return f"{rounded:,.0f}" if rounded >= 10 ** (digits - 1) else f"{rounded:.{digits}g}"


def four_digits(value: float) -> str:
    """Return four digits, or all of a larger whole number: 113.4, 73,438."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def in_memory(value_bytes: float) -> str:
    """Return bytes of device memory in GiB, or in MiB where GiB would show no digit."""
    if 0 <= value_bytes < _MIB / 200:
        return "0" if value_bytes == 0 else "< 0.01 MiB"
    unit, name = (_MIB, "MiB") if 0 < value_bytes < GIB / 100 else (GIB, "GiB")
    return f"{value_bytes / unit:,.2f} {name}"


def seconds(value_s: float) -> str:
    """Return seconds in the unit with digits before the point: 12.1 s, 419 ms, 3.86 ms."""
    rounded = _to_significant(value_s, 3)
    scale, unit = next((pair for pair in _TIME_SCALES if rounded >= pair[0]), _TIME_SCALES[-1])
    return f"{to_digits(value_s / scale, 3)} {unit}"


def lasting(days: float) -> str:
    """Return the length of a training: 1,752 days, 13.8 days, 3.2 hours, 22.2 s."""
    value_s = days * DAY_S
    if value_s < _MINUTE_S:
        return seconds(value_s)
    scale, unit = next(pair for pair in _LONG_SCALES if value_s >= pair[0])
    number = value_s / scale
    return f"{number:,.{0 if number >= 100 else 1}f} {unit}"


def time_limit(days: float) -> str:
    """Return a limit that somebody chose: 30 days, 1 day, 12 hours."""
    value_s = days * DAY_S
    scale, unit = next((pair for pair in _LONG_SCALES if value_s >= pair[0]), _LONG_SCALES[-1])
    number = to_digits(value_s / scale, 3)
    return f"{number} {unit.removesuffix('s') if number == '1' else unit}"


def elapsed(value_s: float) -> str:
    """Return elapsed time in its two largest units: 45 s, 3 min 5 s, 2 d 4 h."""
    left = round(value_s)
    amounts = []
    for size, unit in _ELAPSED_SCALES:
        amount, left = divmod(left, size)
        amounts.append((amount, unit))
    first = next((i for i, (amount, _) in enumerate(amounts) if amount), len(amounts) - 1)
    shown = [pair for pair in amounts[first : first + 2] if pair[0]] or amounts[-1:]
    return " ".join(f"{amount} {unit}" for amount, unit in shown)


def elapsed_or_ms(value_s: float) -> str:
    return elapsed(value_s) if value_s >= 10 else seconds(value_s)


def age(age_s: float) -> str:
    """Return an age in its largest unit: 2 h, 30 h, 3 days. The future is now."""
    age_s = max(age_s, 0.0)  # another machine's clock may be ahead
    _, size, unit = next(row for row in _AGES if age_s >= row[0])
    return f"{age_s // size:.0f} {unit}"


def ago(age_s: float) -> str:
    return f"{age(age_s)} ago"


def percent(fraction: float) -> str:
    """Return a fraction as a percentage: 33.2 %."""
    return f"{fraction * 100:.1f} %"


def whole_percent(fraction: float) -> str:
    """Return a fraction as a percentage without decimals: 33 %."""
    return f"{fraction * 100:.0f} %"


def signed_percent(fraction: float) -> str:
    """Return a difference as a percentage with its sign; zero without one: +9.4 %, 0.0 %."""
    shown = f"{fraction * 100:+.1f}"
    return f"{shown if float(shown) else '0.0'} %"


def change_by(ratio: float) -> str:
    """Return a change in percent, or as a multiple where it is large."""
    return signed_percent(ratio - 1) if 0.5 <= ratio <= 2 else f"x {to_digits(ratio, 3)}"


def signed_points(fraction: float) -> str:
    return signed_percent(fraction).replace("%", "points")


def dollars(value: float) -> str:
    """Return money to three digits, and to the cent below $100: $17.3M, $940, $1.60, <$0.01."""
    if 0 < value < _CENT:
        return "<$0.01"
    whole = value >= 99.995 or value == round(value)
    return f"${scaled(value)}" if whole else f"${value:.2f}"


def span(low: str, high: str) -> str:
    """Return an interval of two formatted quantities, with a shared unit once: 127 to 422 ms."""
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    shared = bool(unit) and " " not in unit and high.endswith(f" {unit}")
    return f"{number if shared else low} to {high}"


def at_least(low: str) -> str:
    return f"at least {low}"


def batch(sequences: int, length: int, requested: int) -> str:
    """Return the size of a batch, and how far it is from the sequences that were requested."""
    text = f"{count(sequences)} sequences x {count(length)} = {scaled(sequences * length)} tokens"
    if sequences != requested:
        change = sequences / requested - 1
        verb = "raised" if change > 0 else "lowered"
        text += f" ({verb} {percent(abs(change))} from {count(requested)} to divide evenly)"
    return text


def off(measured_s: float, expected_s: float, than: str) -> str:
    """Return how far a measured time is from an expected one: `9.4 % more than expected`."""
    times = measured_s / expected_s
    if not 0.5 <= times <= 2:
        return f"{to_digits(times, 2)} times {than}"
    return f"{percent(abs(times - 1))} {'more' if times > 1 else 'less'} than {than}"


class _Filler(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        show = _SHOWN_BY.get(format_spec)
        return show(value) if show else str(super().format_field(value, format_spec))


# Names that a field may have as its format: `{step_s:seconds}`.
_SHOWN_BY: dict[str, Callable[[Any], str]] = {
    "chunks": lambda value: counted(value, "chunk"),
    "GiB": lambda value: f"{value / GIB:,.2f} GiB",
    "whole GiB": lambda value: f"{value / GIB:,.0f} GiB",
    "memory": in_memory,
    "percent": percent,
    "rate": lambda value: with_unit(value, "B/s"),
    "seconds": seconds,
    "size": lambda value: with_unit(value, "B"),
    "steps": lambda value: counted(value, "step"),
    "whole percent": whole_percent,
}


def fill(text: str, /, **figures: Any) -> str:
    """Return the text with its fields filled in; a field may name one of the ways to show it."""
    return _Filler().vformat(text, (), figures)
