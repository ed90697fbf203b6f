"""where a number lies in a drawing, and which numbers its axes show. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, log10

STEPS = (1, 2, 2.5, 5, 10)
FEW_DECADES = 2  # so few are divided at 2 and 5 too


@dataclass(frozen=True)
class Axis:
    """From a number to its place, 0 at the start and 1 at the end; outside numbers are cut."""

    low: float
    high: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            share = log10(max(value, self.low) / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers along the axis, about so many."""
        if self.log:
            return self._decades(most)
        step = round_step((self.high - self.low) / most)
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]

    def _decades(self, most: int) -> list[float]:
        first, last = floor(log10(self.low)), ceil(log10(self.high))
        each = max(1, ceil((last - first) / most))
        within = (1,) if log10(self.high / self.low) > FEW_DECADES else (1, 2, 5)
        found = [n * 10.0**power for power in range(first, last + 1, each) for n in within]
        return [value for value in found if self.low <= value <= self.high]


def round_step(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least so much."""
    power = 10.0 ** floor(log10(value))
    return next(power * step for step in STEPS if power * step >= value * (1 - 1e-9))


def from_zero(values: Iterable[float], room: float = 1.06) -> Axis:
    """A linear axis from 0 that holds all the values."""
    return Axis(0.0, (max(values, default=0.0) or 1.0) * room)


def logarithmic(values: Iterable[float], room: float) -> Axis:
    """A logarithmic axis that holds all the values, with some room on both sides."""
    found = [value for value in values if value > 0] or [1.0]
    return Axis(min(found) / room, max(found) * room, log=True)
