"""Render room: formulas as people write them, and with their numbers put in."""

import re
from decimal import Decimal

from orchestrator.render.text import percent, seconds, with_unit
from orchestrator.types.explanation import ComputedValue

# A name, but neither a function nor the exponent of a number.
SYMBOL = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w(])")
PREFIXES = {9: "G", 12: "T"}
SHORT = {3: "K", 6: "M"}


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
