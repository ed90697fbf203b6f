"""The share of time that trains, when failures strike at random and undo what is not saved.

Failures strike at any time, M seconds apart on average. A run saves every t seconds of steps, which
wait w seconds for the save; it counts a seconds later. After a failure the run needs R seconds, in
which it may fail again, and does the steps after its last save that counts once more. Between two
saves that count t + w seconds must pass without a failure; after a restart it is a seconds more. So
with restarts of M (exp(R/M) - 1) seconds on average,

    share = t/M exp(-(R + a)/M) / (exp((t + w)/M) - 1)

This is Daly's exact form (2006), with saves that are written while steps go on. Where R and t are
small against M it is 1 - (R + a + (t + w)/2)/M over 1 + w/t, the ETTR of Meta (arXiv 2410.21680).
"""

from dataclasses import dataclass
from math import exp, expm1, inf, sqrt

LEAST_SHARE = 1e-9  # a run that never gets on, without a division by zero
ITERATIONS = 40


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """Seconds: between failures, of a recovery, that a save blocks, and until it counts.

    `missing` is the share of pods that a run goes on without, on average: a step then takes longer.
    `evaluating` is the share of the time in steps and evaluations that the latter take.
    """

    between_failures_s: float
    recovery_s: float
    blocking_s: float
    write_s: float
    missing: float = 0.0
    evaluating: float = 0.0

    def blocks_s(self, interval_s: float) -> float:
        """How long steps wait for a save: also for the one before, where that is still written."""
        return self.blocking_s + max(self.write_s - interval_s, 0.0)

    def share(self, interval_s: float) -> float:
        """The share of time that trains, with that many seconds of steps between saves."""
        training = (1 - self.evaluating) * (1 - self.missing)
        return max(self.stepping_share(interval_s) * training, LEAST_SHARE)

    def stepping_share(self, interval_s: float) -> float:
        """The share of time in steps and evaluations that count, on however many pods."""
        blocks_s, between_s = self.blocks_s(interval_s), self.between_failures_s
        if between_s == inf:
            return interval_s / (interval_s + blocks_s)
        segment = (interval_s + blocks_s) / between_s
        if segment > 500:
            return LEAST_SHARE
        survives = exp(-(self.recovery_s + self.write_s) / between_s)
        return max(interval_s / between_s * survives / expm1(segment), LEAST_SHARE)

    def saving_share(self, interval_s: float) -> float:
        """The share of time in which steps that count wait for saves."""
        return self.stepping_share(interval_s) * self.blocks_s(interval_s) / interval_s

    def recovering_share(self) -> float:
        """The share of time in recoveries, those that fail again included."""
        return -expm1(-self.recovery_s / self.between_failures_s)

    def best_interval_s(self) -> float:
        """The interval with the highest share: the root of x = 1 - exp(-x - w/M) with x = t/M.

        Young's sqrt(2 w M) is its first term. A save is over before the next begins.
        """
        between_s = self.between_failures_s
        if between_s == inf:
            return inf
        blocked = self.blocking_s / between_s
        x = sqrt(2 * blocked)
        for _ in range(ITERATIONS):
            value, slope = x + expm1(-x - blocked), 1 - exp(-x - blocked)
            if slope <= 0:
                break
            x -= value / slope
        return max(x * between_s, self.write_s)
