"""The forecast of goodput: the share of time that trains, and what takes the rest."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil, erf, exp, expm1, hypot, inf, log, sqrt

from orchestrator.formatting import DAY_S
from orchestrator.values.goodput import (
    EvaluationCost,
    GoodputForecast,
    GoodputInputs,
    GoodputLine,
    LossKind,
    Uncertain,
)
from orchestrator.values.plan import Estimate

# How likely a time or a cost stays within a limit, from its 80 % interval.


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


# The share of time that trains, when failures strike at random and undo what is not saved.


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


# Numbers with an 80 % interval: their sum, products, and the interval of what follows from
# them.


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


DEFAULT_EVERY = 200  # steps, where nothing is known to fail and the best interval is wanted
# The inputs that are uncertain, of a recovery and of all else.
RECOVERY: tuple[LossKind, ...] = ("detection", "waiting", "restart", "restore")
OTHERS = ("failures_per_day", "blocking_s", "write_s")


def goodput_forecast(inputs: GoodputInputs, step_s: float, steps: int) -> GoodputForecast:
    """The goodput of a run of so many steps, each of which should take `step_s`."""
    rhythm = rhythm_of(inputs, {})
    with_evaluation_s = step_s / (1 - rhythm.evaluating)
    best_steps = best_every(inputs, with_evaluation_s, steps)
    every = inputs.every_steps or best_steps
    every_s = every * with_evaluation_s
    share = rhythm.share(every_s)
    interval = with_causes(share, ends(inputs, every_s, steps * with_evaluation_s), 1.0)
    stated = inputs.stated
    if stated is not None:
        interval = exactly(stated)
    known = rhythm.between_failures_s < inf
    return GoodputForecast(
        expected=interval.value,
        low=interval.low,
        high=interval.high,
        stated=stated is not None,
        lines=() if stated is not None else tuple(lines(inputs, rhythm, every_s, step_s)),
        seconds_between_failures=rhythm.between_failures_s if known else None,
        every_steps=every,
        every_s=every_s,
        best_every_steps=best_steps,
        best=stated if stated is not None else rhythm.share(best_steps * with_evaluation_s),
        needed_bytes_per_s=inputs.save.bytes / every_s,
        inputs=inputs,
    )


def rhythm_of(inputs: GoodputInputs, instead: dict[str, float]) -> Rhythm:
    """The inputs at their values, or with others `instead` of some."""

    def value(name: str, number: Uncertain) -> float:
        return instead.get(name, number.value)

    per_day = value("failures_per_day", inputs.failures_per_day)
    return Rhythm(
        between_failures_s=DAY_S / per_day if per_day else inf,
        recovery_s=sum(value(kind, recovery_part(inputs, kind)) for kind in RECOVERY),
        blocking_s=value("blocking_s", inputs.save.blocking_s),
        write_s=value("write_s", inputs.save.write_s),
        missing=value("missing_pods", inputs.missing_pods),
        evaluating=evaluating_share(inputs.evaluation),
    )


def evaluating_share(cost: EvaluationCost | None) -> float:
    """The share of the time in steps and evaluations that evaluations take."""
    return cost.in_steps / (cost.every_steps + cost.in_steps) if cost else 0.0


def recovery_part(inputs: GoodputInputs, kind: LossKind) -> Uncertain:
    number: Uncertain = getattr(inputs, f"{kind}_s")
    return number


def ends(inputs: GoodputInputs, every_s: float, run_s: float) -> Iterator[tuple[float, float]]:
    """The share at both ends of each uncertain input, and of how many failures happen to strike."""
    numbers: dict[str, Uncertain] = {kind: recovery_part(inputs, kind) for kind in RECOVERY}
    numbers["failures_per_day"], numbers["missing_pods"] = (
        inputs.failures_per_day,
        inputs.missing_pods,
    )
    numbers["blocking_s"], numbers["write_s"] = inputs.save.blocking_s, inputs.save.write_s
    numbers["chance"] = by_chance(inputs.failures_per_day.value, run_s)
    for name, number in numbers.items():
        key = "failures_per_day" if name == "chance" else name
        low, high = (
            rhythm_of(inputs, {key: end}).share(every_s) for end in (number.low, number.high)
        )
        yield low, high


def by_chance(per_day: float, run_s: float) -> Uncertain:
    """The rate at which failures strike a run of that length: their number is Poisson's."""
    if not per_day:
        return exactly(0.0)
    spread = DEVIATIONS * sqrt(per_day * DAY_S / run_s)
    return Uncertain(value=per_day, low=max(per_day - spread, 0.0), high=per_day + spread)


def best_every(inputs: GoodputInputs, step_s: float, steps: int) -> int:
    """The whole number of steps between saves with the highest share, at most all steps.

    A save is over before the next begins, also where the storage is as slow as it may be: steps
    that wait for it cost more than those that are done again after a failure.
    """
    rhythm = rhythm_of(inputs, {})
    if rhythm.between_failures_s == inf:
        return DEFAULT_EVERY
    written = ceil(inputs.save.write_s.high / step_s)
    least = max(int(rhythm.best_interval_s() / step_s), written, 1)
    best = max((least, least + 1), key=lambda every: rhythm.share(every * step_s))
    return max(min(best, steps), 1)


def lines(
    inputs: GoodputInputs, rhythm: Rhythm, every_s: float, step_s: float
) -> Iterator[GoodputLine]:
    """All losses. With the share that trains they are one."""
    share = rhythm.stepping_share(every_s)
    yield saving_line(rhythm, every_s)
    if inputs.evaluation:
        yield evaluation_line(inputs.evaluation, share, rhythm.evaluating, step_s)
    if not inputs.failures_per_day.value:
        return
    struck = inputs.failures_per_day.value * (1 - rhythm.recovering_share())
    yield lost_steps_line(inputs, rhythm, every_s, struck)
    if missing := inputs.missing_pods.value:
        yield fewer_pods_line(inputs, share * (1 - rhythm.evaluating), missing, struck)
    for kind in RECOVERY:
        if recovery_part(inputs, kind).value:
            yield recovery_line(inputs, rhythm, kind)


def saving_line(rhythm: Rhythm, every_s: float) -> GoodputLine:
    """What steps wait for saves."""
    share, blocks_s = rhythm.stepping_share(every_s), rhythm.blocks_s(every_s)
    return GoodputLine(
        kind="saving",
        share=rhythm.saving_share(every_s),
        each_s=blocks_s,
        per_day=share * DAY_S / every_s,
        formula="stepping x blocking / every",
        inputs={"stepping": share, "blocking": blocks_s, "every": every_s},
    )


def lost_steps_line(
    inputs: GoodputInputs, rhythm: Rhythm, every_s: float, struck: float
) -> GoodputLine:
    """The steps since the last save, which failures lose. So many failures a day strike a step."""
    kept = rhythm.stepping_share(every_s) + rhythm.saving_share(every_s)
    lost = max(1 - kept - rhythm.recovering_share(), 0.0)
    return GoodputLine(
        kind="lost_steps",
        share=lost,
        each_s=lost * DAY_S / struck,
        per_day=struck,
        formula="about every / 2 + write",
        inputs={"every": every_s, "write": rhythm.write_s},
        sources=inputs.sources["storage_bytes_per_s"],
    )


def fewer_pods_line(
    inputs: GoodputInputs, training: float, missing: float, struck: float
) -> GoodputLine:
    """What an elastic run lacks while a pod is out."""
    return GoodputLine(
        kind="fewer_pods",
        share=training * missing,
        each_s=training * missing * DAY_S / struck,
        per_day=struck,
        formula="training x missing",
        inputs={"training": training, "missing": missing},
        sources=inputs.sources["waiting_s"],
    )


def evaluation_line(
    cost: EvaluationCost, stepping: float, evaluating: float, step_s: float
) -> GoodputLine:
    """What evaluations take: their forward passes, at the rate of a step's FLOPs."""
    each_s = cost.in_steps * step_s
    return GoodputLine(
        kind="evaluation",
        share=stepping * evaluating,
        each_s=each_s,
        per_day=stepping * evaluating * DAY_S / each_s,
        formula="batches x step x forward_flops / step_flops, every so many steps",
        inputs={
            "batches": cost.batches,
            "step": step_s,
            "forward_flops": cost.forward_flops,
            "step_flops": cost.step_flops,
            "every": cost.every_steps,
        },
    )


def recovery_line(inputs: GoodputInputs, rhythm: Rhythm, kind: LossKind) -> GoodputLine:
    """What one part of all recoveries takes."""
    each_s = recovery_part(inputs, kind).value
    return GoodputLine(
        kind=kind,
        share=rhythm.recovering_share() * each_s / rhythm.recovery_s,
        each_s=each_s,
        per_day=inputs.failures_per_day.value,
        formula="(1 - exp(-recovery / between_failures)) x each / recovery",
        inputs={
            "recovery": rhythm.recovery_s,
            "between_failures": rhythm.between_failures_s,
            "each": each_s,
        },
        sources=inputs.sources.get(f"{kind}_s", ()),
    )
