"""The forecast of goodput: the share of time that trains, and what takes the rest."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import ceil, erf, exp, expm1, hypot, inf, log, sqrt

from orchestrator.formatting import DAY_S
from orchestrator.values.codec import Value
from orchestrator.values.goodput import (
    GoodputForecast,
    GoodputInputs,
    GoodputLine,
    LossKind,
    Uncertain,
)
from orchestrator.values.plan import Estimate

DEVIATIONS = 1.2815515655446004  # of a normal distribution, from its middle to an end of 80 %


def odds_below(amount: Estimate, limit: float) -> float | None:
    """Return the probability of at most the limit, log-normal on either side of `expected`."""
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


_LEAST_SHARE = 1e-9  # a run that never gets on, without a division by zero
_ITERATIONS = 40


class Rhythm(Value):
    """When failures strike at random and undo what is not saved: seconds between them, of a
    recovery, that a save blocks, and until it counts. `missing` is the share of pods that a run
    goes on without, on average: a step then takes longer. `evaluating` is the share of the time in
    steps and evaluations that the latter take.
    """

    between_failures_s: float
    recovery_s: float
    blocking_s: float
    write_s: float
    missing: float = 0.0
    evaluating: float = 0.0

    def blocks_s(self, interval_s: float) -> float:
        """Seconds that steps wait for a save, and for the one before while that is written."""
        return self.blocking_s + max(self.write_s - interval_s, 0.0)

    def share(self, interval_s: float) -> float:
        """The share of time that trains, with `interval_s` seconds of steps between saves."""
        training = (1 - self.evaluating) * (1 - self.missing)
        return max(self.stepping_share(interval_s) * training, _LEAST_SHARE)

    def stepping_share(self, interval_s: float) -> float:
        """The share of time in steps and evaluations that count, on however many pods."""
        blocks_s, between_s = self.blocks_s(interval_s), self.between_failures_s
        if between_s == inf:
            return interval_s / (interval_s + blocks_s)
        segment = (interval_s + blocks_s) / between_s
        if segment > 500:
            return _LEAST_SHARE
        survives = exp(-(self.recovery_s + self.write_s) / between_s)
        return max(interval_s / between_s * survives / expm1(segment), _LEAST_SHARE)

    def best_interval_s(self) -> float:
        """The interval with the highest share: the root of x = 1 - exp(-x - w/M) with x = t/M.
        Young's sqrt(2 w M) is its first term. A save is over before the next begins.
        """
        between_s = self.between_failures_s
        if between_s == inf:
            return inf
        blocked = self.blocking_s / between_s
        x = sqrt(2 * blocked)
        for _ in range(_ITERATIONS):
            value, slope = x + expm1(-x - blocked), 1 - exp(-x - blocked)
            if slope <= 0:
                break
            x -= value / slope
        return max(x * between_s, self.write_s)


def exactly(value: float) -> Uncertain:
    return Uncertain(value=value, low=value, high=value)


def changed(number: Uncertain, change: Callable[[float], float]) -> Uncertain:
    """Return a function of a number; the interval is in order, also where the function falls."""
    ends = sorted((change(number.low), change(number.high)))
    return Uncertain(value=change(number.value), low=ends[0], high=ends[1])


def total(numbers: Iterable[Uncertain]) -> Uncertain:
    """Return the sum of independent numbers."""
    listed = list(numbers)
    value = sum(number.value for number in listed)
    down = hypot(*(number.value - number.low for number in listed))
    up = hypot(*(number.high - number.value for number in listed))
    return Uncertain(value=value, low=max(value - down, 0.0), high=value + up)


def with_causes(value: float, ends: Iterable[tuple[float, float]], most: float) -> Uncertain:
    """Return a number, at most `most`; `ends`: its values at both ends of independent causes."""
    down, up = [0.0], [0.0]
    for pair in ends:
        changes = [log(end / value) for end in pair]
        down.append(max(0.0, *(-change for change in changes)))
        up.append(max(0.0, *changes))
    return Uncertain(
        value=value, low=value * exp(-hypot(*down)), high=min(value * exp(hypot(*up)), most)
    )


def over_share(amount: Estimate, share: GoodputForecast) -> Estimate:
    """Return a time or cost with the time that trains nothing; the bound takes the best share."""
    lower, unoverlapped = amount.lower / share.high, amount.unoverlapped / share.expected
    whole = replace(amount, lower=lower, unoverlapped=unoverlapped)
    if amount.expected is None or amount.low is None or amount.high is None:
        return whole
    expected = amount.expected / share.expected
    down = hypot(log(amount.expected / amount.low), log(share.high / share.expected))
    up = hypot(log(amount.high / amount.expected), log(share.expected / share.low))
    low = max(expected * exp(-down), lower)
    return replace(whole, expected=expected, low=low, high=expected * exp(up))


_DEFAULT_EVERY = 200  # steps, where nothing is known to fail and the best interval is wanted
_RECOVERY: tuple[LossKind, ...] = ("detection", "waiting", "restart", "restore")


def goodput_forecast(inputs: GoodputInputs, step_s: float, steps: int) -> GoodputForecast:
    """Return the goodput of a run of `steps` steps, each of which should take `step_s`."""
    rhythm = _rhythm_of(inputs, {})
    with_evaluation_s = step_s / (1 - rhythm.evaluating)
    # The whole number of steps between saves with the highest share, at most all steps. A save is
    # over before the next begins, also where the storage is as slow as it may be: steps that wait
    # for it cost more than those that are done again after a failure.
    if rhythm.between_failures_s == inf:
        best_steps = _DEFAULT_EVERY
    else:
        written = ceil(inputs.save.write_s.high / with_evaluation_s)
        least = max(int(rhythm.best_interval_s() / with_evaluation_s), written, 1)
        every = max((least, least + 1), key=lambda every: rhythm.share(every * with_evaluation_s))
        best_steps = max(min(every, steps), 1)
    every = inputs.every_steps or best_steps
    every_s = every * with_evaluation_s
    stated = inputs.stated
    if stated is None:
        ends = _ends(inputs, every_s, steps * with_evaluation_s)
        interval = with_causes(rhythm.share(every_s), ends, 1.0)
        best = rhythm.share(best_steps * with_evaluation_s)
        lines = tuple(_lines(inputs, rhythm, every_s, step_s))
    else:
        interval, best, lines = exactly(stated), stated, ()
    known = rhythm.between_failures_s < inf
    return GoodputForecast(
        expected=interval.value,
        low=interval.low,
        high=interval.high,
        stated=stated is not None,
        lines=lines,
        seconds_between_failures=rhythm.between_failures_s if known else None,
        every_steps=every,
        every_s=every_s,
        best_every_steps=best_steps,
        best=best,
        needed_bytes_per_s=inputs.save.bytes / every_s,
        inputs=inputs,
    )


def _uncertain_inputs(inputs: GoodputInputs) -> dict[str, Uncertain]:
    recovery: dict[str, Uncertain] = {kind: getattr(inputs, f"{kind}_s") for kind in _RECOVERY}
    return {
        **recovery,
        "failures_per_day": inputs.failures_per_day,
        "missing_pods": inputs.missing_pods,
        "blocking_s": inputs.save.blocking_s,
        "write_s": inputs.save.write_s,
    }


def _rhythm_of(inputs: GoodputInputs, instead: dict[str, float]) -> Rhythm:
    """Return the rhythm of the inputs at their values, or with others `instead` of some."""
    numbers = {name: number.value for name, number in _uncertain_inputs(inputs).items()} | instead
    per_day, cost = numbers["failures_per_day"], inputs.evaluation
    return Rhythm(
        between_failures_s=DAY_S / per_day if per_day else inf,
        recovery_s=sum(numbers[kind] for kind in _RECOVERY),
        blocking_s=numbers["blocking_s"],
        write_s=numbers["write_s"],
        missing=numbers["missing_pods"],
        evaluating=cost.in_steps / (cost.every_steps + cost.in_steps) if cost else 0.0,
    )


def _ends(inputs: GoodputInputs, every_s: float, run_s: float) -> Iterator[tuple[float, float]]:
    """Yield the share at both ends of each uncertain input, and of Poisson's count of failures."""
    per_day = inputs.failures_per_day.value
    spread = DEVIATIONS * sqrt(per_day * DAY_S / run_s)
    by_chance = Uncertain(value=per_day, low=max(per_day - spread, 0.0), high=per_day + spread)
    causes = [*_uncertain_inputs(inputs).items(), ("failures_per_day", by_chance)]
    for name, number in causes:
        low, high = (
            _rhythm_of(inputs, {name: end}).share(every_s) for end in (number.low, number.high)
        )
        yield low, high


def _lines(
    inputs: GoodputInputs, rhythm: Rhythm, every_s: float, step_s: float
) -> Iterator[GoodputLine]:
    """Yield all losses. With the share that trains they add up to one."""
    stepping, blocks_s = rhythm.stepping_share(every_s), rhythm.blocks_s(every_s)
    saving = stepping * blocks_s / every_s
    numbers = {"stepping": stepping, "blocking": blocks_s, "every": every_s}
    per_day = stepping * DAY_S / every_s
    yield _line("saving", saving, blocks_s, per_day, "stepping x blocking / every", numbers)
    if cost := inputs.evaluation:
        each_s, evaluating = cost.in_steps * step_s, stepping * rhythm.evaluating
        formula = "batches x step x forward_flops / step_flops, every so many steps"
        numbers = {
            "batches": cost.batches,
            "step": step_s,
            "forward_flops": cost.forward_flops,
            "step_flops": cost.step_flops,
            "every": cost.every_steps,
        }
        per_day = evaluating * DAY_S / each_s
        yield _line("evaluation", evaluating, each_s, per_day, formula, numbers)
    per_day = inputs.failures_per_day.value
    if not per_day:
        return
    recovering = -expm1(-rhythm.recovery_s / rhythm.between_failures_s)
    struck = per_day * (1 - recovering)  # failures per day that strike a step
    # What is left of the time: the steps since the last save, which failures lose.
    lost = max(1 - (stepping + saving) - recovering, 0.0)
    each_s, formula = lost * DAY_S / struck, "about every / 2 + write"
    numbers, sources = {"every": every_s, "write": rhythm.write_s}, inputs.sources
    source = sources["storage_bytes_per_s"]
    yield _line("lost_steps", lost, each_s, struck, formula, numbers, source)
    if missing := inputs.missing_pods.value:
        training = stepping * (1 - rhythm.evaluating)
        share, numbers = training * missing, {"training": training, "missing": missing}
        each_s, source = training * missing * DAY_S / struck, sources["waiting_s"]
        yield _line("fewer_pods", share, each_s, struck, "training x missing", numbers, source)
    for kind in _RECOVERY:
        if each_s := getattr(inputs, f"{kind}_s").value:
            share, between_s = recovering * each_s / rhythm.recovery_s, rhythm.between_failures_s
            formula = "(1 - exp(-recovery / between_failures)) x each / recovery"
            numbers = {"recovery": rhythm.recovery_s, "between_failures": between_s}
            numbers["each"] = each_s
            source = sources.get(f"{kind}_s", ())
            yield _line(kind, share, each_s, per_day, formula, numbers, source)


def _line(
    kind: LossKind, share: float, each_s: float, per_day: float, formula: str,
    numbers: dict[str, float], sources: tuple[str, ...] = (),
) -> GoodputLine:  # fmt: skip
    return GoodputLine(
        kind=kind, share=share, each_s=each_s, per_day=per_day, formula=formula, inputs=numbers,
        sources=sources,
    )  # fmt: skip
