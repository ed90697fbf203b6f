"""Reads single values, from what was written to what is meant.

A value is read by the type of its field and as JSON spells it, never by its looks alone: `no` is
text where the field takes text, and a mistake where it takes a number.
"""

import math
import re
from collections.abc import Iterator
from fractions import Fraction

Value = bool | int | float | str

NUMBER = re.compile(
    r"[-+]?((0|[1-9][0-9]{0,29})([.][0-9]{0,30})?|[.][0-9]{1,30})([eE][-+]?[0-9]{1,3})?"
)
INTEGER = re.compile(r"[-+]?[0-9]+")
MOST = 10**18
BOOLEANS = {"true": True, "false": False}
TRUE_WORDS = frozenset({"y", "yes", "on", "true"})
FALSE_WORDS = frozenset({"n", "no", "off", "false"})
# What one program takes for a number or a truth value, and the next one for text.
AMBIGUOUS = re.compile(
    r"[-+]?([0-9][0-9_]*(:[0-9_.]+)+|[0-9][0-9_]*|0[xob][0-9a-f_]+|[.]?(inf|nan))"
    r"|y|yes|on|true|n|no|off|false",
    re.IGNORECASE,
)
BINARY = {"K": 2**10, "M": 2**20, "B": 2**30, "T": 2**40}


class Misread(ValueError):
    """A value of legal form that means nothing legal: the code of the problem and its fields."""

    def __init__(self, code: str, **fields: Value) -> None:
        self.code, self.fields = code, fields
        super().__init__(code)


def as_written(text: str, types: set[str]) -> Value:
    """A value without quotes as JSON has it, where a field may have those types."""
    if "boolean" in types and text in BOOLEANS:
        return BOOLEANS[text]
    if types & {"integer", "number"} and NUMBER.fullmatch(text):
        return _number(text, types)
    return text


def _number(text: str, types: set[str]) -> Value:
    """A number, exact when it is whole; still text when no number can hold it."""
    exact = Fraction(text)
    whole = exact.denominator == 1 and abs(exact) <= MOST
    if whole and "integer" in types and (INTEGER.fullmatch(text) or "number" not in types):
        return int(exact)
    rounded = float(text)
    return rounded if math.isfinite(rounded) and bool(rounded) == bool(exact) else text


def ambiguous(text: str, value: Value) -> bool:
    """Whether text without quotes might be meant as something else."""
    looks_otherwise = AMBIGUOUS.fullmatch(text) or NUMBER.fullmatch(text)
    return isinstance(value, str) and looks_otherwise is not None


def respellings(text: str) -> Iterator[str]:
    """What may have been meant by a value that is not legal, the likeliest first."""
    yield text
    if text.lower() in TRUE_WORDS | FALSE_WORDS:
        yield str(text.lower() in TRUE_WORDS).lower()
    bare = re.sub("[_, ]", "", text)
    yield bare
    yield bare.upper()
    yield bare.lstrip("0")
    if re.fullmatch("0[xob][0-9a-f]{1,16}", bare):
        yield from _from_other_radix(bare)
    if re.fullmatch(r"[0-9]{1,9}([.][0-9]{1,9})?[kKmMbBtT]", bare):
        yield str(int(Fraction(bare[:-1]) * BINARY[bare[-1].upper()]))
    if re.fullmatch(r"[0-9]{1,9}([.][0-9]{1,9})?%", bare):
        yield str(float(Fraction(bare.rstrip("%")) / 100))
    yield f"{bare}%"
    yield from _durations(bare)
    if not text.lower().islower():
        return
    yield re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")


def _from_other_radix(text: str) -> Iterator[str]:
    try:
        yield str(int(text, 0))
    except ValueError:
        return


def _durations(text: str) -> Iterator[str]:
    if clock := re.fullmatch("([0-9]{1,3}):([0-9]{2})", text):
        yield f"{int(clock[1]) * 60 + int(clock[2])}s"
    if match := re.fullmatch("([0-9]{1,9})([smhd])[a-z]*", text):
        days = match[2] == "d"
        yield f"{int(match[1]) * 24}h" if days else f"{match[1]}{match[2]}"
    yield f"{text}s"


def is_positive(value: object) -> bool:
    """Whether a value of JSON is a number above zero; `true` is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
