"""How likely a time or a cost stays within a limit, from its 80 % interval."""

from math import erf, log, sqrt

from orchestrator.types.plan import Estimate

DEVIATIONS = 1.2815515655446004  # of a normal distribution, from its middle to an end of 80 %


def odds_below(amount: Estimate, limit: float) -> float | None:
    """The probability that an amount is at most the limit; None without an interval.

    The logarithm is normal on each side of `expected`, with the width of that side.
    """
    expected, low, high = amount.expected, amount.low, amount.high
    if expected is None or low is None or high is None:
        return None
    if limit <= 0:
        return 0.0
    end = high if limit >= expected else low
    width = abs(log(end / expected)) / DEVIATIONS
    if width == 0:
        return float(limit >= expected)
    return 0.5 * (1 + erf(log(limit / expected) / width / sqrt(2)))
