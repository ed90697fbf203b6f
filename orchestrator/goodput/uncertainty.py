"""Numbers with an 80 % interval: their sum, products, and the interval of what follows from them.

An interval is two half widths in logarithms, one to each side. Those of independent causes add up
as squares.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import exp, hypot, log

from orchestrator.types.goodput import GoodputForecast, Uncertain
from orchestrator.types.plan import Estimate


def exactly(value: float) -> Uncertain:
    """A number that is known."""
    return Uncertain(value=value, low=value, high=value)


def changed(number: Uncertain, change: Callable[[float], float]) -> Uncertain:
    """A function of a number; the interval in order, also where the function falls."""
    ends = sorted((change(number.low), change(number.high)))
    return Uncertain(value=change(number.value), low=ends[0], high=ends[1])


def total(numbers: Iterable[Uncertain]) -> Uncertain:
    """The sum of independent numbers."""
    listed = list(numbers)
    value = sum(one.value for one in listed)
    down = hypot(*(one.value - one.low for one in listed))
    up = hypot(*(one.high - one.value for one in listed))
    return Uncertain(value=value, low=max(value - down, 0.0), high=value + up)


def with_causes(value: float, ends: Iterable[tuple[float, float]], most: float) -> Uncertain:
    """A number with what it would be at both ends of each cause; at most so much."""
    down, up = [0.0], [0.0]
    for pair in ends:
        changes = [log(end / value) for end in pair]
        down.append(max(0.0, *(-change for change in changes)))
        up.append(max(0.0, *changes))
    return Uncertain(
        value=value, low=value * exp(-hypot(*down)), high=min(value * exp(hypot(*up)), most)
    )


def over_share(amount: Estimate, share: GoodputForecast) -> Estimate:
    """A time or cost of steps alone, with the time that trains nothing.

    The bound takes the best goodput of its interval. The interval of the result joins both.
    """
    lower, unoverlapped = amount.lower / share.high, amount.unoverlapped / share.expected
    whole = replace(amount, lower=lower, unoverlapped=unoverlapped)
    if amount.expected is None or amount.low is None or amount.high is None:
        return whole
    expected = amount.expected / share.expected
    down = hypot(log(amount.expected / amount.low), log(share.high / share.expected))
    up = hypot(log(amount.high / amount.expected), log(share.expected / share.low))
    low = max(expected * exp(-down), lower)
    return replace(whole, expected=expected, low=low, high=expected * exp(up))
