"""Goodput: the share of time that trains and what takes the rest, as forecast; and what is left of
a run, by its forecast and its measurements, log-normal and weighted by how sure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, erf, exp, expm1, hypot, inf, log, sqrt

from orchestrator.formatting import DAY_S, HOUR_S
from orchestrator.values.codec import Value
from orchestrator.values.goodput import (
    GoodputForecast,
    GoodputInputs,
    GoodputLine,
    LossKind,
    Outlook,
    Uncertain,
)
from orchestrator.values.plan import Estimate, Plan

_DEVIATIONS = 1.2815515655446004  # of a normal distribution, from its middle to an end of 80 %


def odds_below(amount: Estimate, limit: float) -> float | None:
    """Return the probability of at most the limit, log-normal on either side of `expected`."""
    expected, low, high = amount.expected, amount.low, amount.high
    if expected is None or low is None or high is None:
        return None
    if limit <= 0:
        return 0.0
    end = high if limit >= expected else low
    width = abs(log(end / expected)) / _DEVIATIONS
    return _odds(log(limit / expected), width)


def _odds(above: float, deviation: float) -> float:
    """Return the odds that a normal value is at most so far above its mean."""
    return 0.5 * (1 + erf(above / deviation / sqrt(2))) if deviation else float(above >= 0)


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


def with_causes(value: float, ends: Iterable[tuple[float, float]]) -> Uncertain:
    """Return a number, at most 1; `ends`: its values at both ends of independent causes."""
    down, up = [0.0], [0.0]
    for pair in ends:
        changes = [log(end / value) for end in pair]
        down.append(max(0.0, *(-change for change in changes)))
        up.append(max(0.0, *changes))
    return Uncertain(
        value=value, low=value * exp(-hypot(*down)), high=min(value * exp(hypot(*up)), 1.0)
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
        interval = with_causes(rhythm.share(every_s), ends)
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
    spread = _DEVIATIONS * sqrt(per_day * DAY_S / run_s)
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


# How unsure the steps to come are, as shares: beyond those measured, and for a single step.
_LASTING, _SINGLE_STEP = 0.02, 0.2


class SoFar(Value):
    now_s: float
    running_s: float  # since its first attempt began
    steps_done: int
    steps: int
    # None before the second step. It belongs to the stage in which the newest of the first
    # `measured_steps` lies: where a stage has just begun it is the one before.
    median_step_s: float | None
    measured_steps: int
    starts: int  # its attempts
    ended: bool


@dataclass(frozen=True)
class _Belief:
    """A number whose logarithm has this mean and deviation."""

    mean: float
    deviation: float

    @classmethod
    def between(cls, value: float, low: float, high: float) -> "_Belief":
        return cls(log(value), log(high / low) / 2 / _DEVIATIONS)

    def uncertain(self, most: float | None = None) -> Uncertain:
        width = _DEVIATIONS * self.deviation
        ends = [exp(self.mean + sign * width) for sign in (0, -1, 1)]
        value, low, high = ends if most is None else [min(end, most) for end in ends]
        return Uncertain(value=value, low=low, high=high)


def outlook(
    plan: Plan, so_far: SoFar, deadline_at_s: float | None, *, forecast: bool
) -> Outlook | None:
    """Return what is left, or None. `forecast`: whether the plan's is about the run's devices."""
    stage = plan.stage_of(max(so_far.measured_steps - 1, 0))
    # The seconds of the steps that are left.
    beliefs = []
    known = stage.forecast.step_s
    if forecast and known.expected is not None and known.low and known.high:
        beliefs.append(_Belief.between(known.expected, known.low, known.high))
    if so_far.median_step_s:
        steps = max(so_far.measured_steps - stage.first_step, 1)
        unsure = hypot(_LASTING, _SINGLE_STEP / sqrt(steps))
        beliefs.append(_Belief(log(so_far.median_step_s), unsure))
    step = _combined(beliefs) if beliefs else None
    if step is None or so_far.ended:
        return None
    left = max(so_far.steps - so_far.steps_done, 0)
    done_steps: float = so_far.steps_done
    left_steps: float = left
    if plan.stages:
        # Steps of all stages, counted in steps of this one by what each should take: what is
        # learned of its steps holds for those of the others.
        step_s, done_s = stage.forecast.step_s.likeliest, plan.run_s(so_far.steps_done)
        done_steps = done_s / step_s
        left_steps = max(plan.run_s(so_far.steps) - done_s, 0.0) / step_s
    share = _goodput_belief(
        stage.forecast.goodput if forecast else None, so_far, done_steps * exp(step.mean)
    )
    # left_s = steps x seconds per step / goodput, in logarithms
    left_s = _Belief(
        log(max(left_steps, 1)) + step.mean - share.mean, hypot(step.deviation, share.deviation)
    )
    seconds = left_s.uncertain() if left else exactly(0.0)
    price = plan.forecast.dollars_per_chip_hour if forecast and not plan.chip_profile else None
    rate = price and price * plan.chips * plan.forecast.goodput.inputs.rented / HOUR_S
    odds, until_s = None, (deadline_at_s or 0.0) - so_far.now_s
    if deadline_at_s is not None and (not left or until_s <= 0):
        odds = float(not left)
    elif deadline_at_s is not None:
        odds = _odds(log(until_s) - left_s.mean, left_s.deviation)
    return Outlook(
        steps_left=left,
        step_s=step.uncertain(),
        goodput=share.uncertain(most=1.0),
        days_left=changed(seconds, lambda s: s * (1 / DAY_S)),
        ends_at_s=changed(seconds, lambda s: s + so_far.now_s),
        dollars_so_far=None if rate is None else rate * so_far.running_s,
        dollars_left=None if rate is None else changed(seconds, lambda s: s * rate),
        deadline_at_s=deadline_at_s,
        odds=odds,
    )


def _goodput_belief(forecast: GoodputForecast | None, so_far: SoFar, done_s: float) -> _Belief:
    """Return the goodput of the time left: the more failures so far, the surer are past losses."""
    if forecast is None:  # between losing as much as so far, most of it at the start, and nothing
        lost_s = max(so_far.running_s - done_s, 0.0)
        share = max(1 - lost_s / max(so_far.running_s, done_s), _LASTING)
        return _Belief.between(sqrt(share), share, 1.0)
    prior = _Belief.between(forecast.expected, forecast.low, forecast.high)
    if forecast.stated or not so_far.median_step_s or so_far.running_s <= 0:
        return prior
    share = min(done_s, so_far.running_s) / so_far.running_s
    if not share:
        return prior
    unsure = hypot(_LASTING, (1 - share) / sqrt(so_far.starts), HOUR_S / so_far.running_s)
    return _combined([prior, _Belief(log(share), unsure)])


def _combined(beliefs: list[_Belief]) -> _Belief:
    """Return the mean of beliefs, weighted by how sure they are; the first without doubt if any."""
    for belief in beliefs:
        if not belief.deviation:
            return belief
    weights = [belief.deviation**-2 for belief in beliefs]
    mean = sum(w * belief.mean for w, belief in zip(weights, beliefs, strict=True)) / sum(weights)
    return _Belief(mean, sum(weights) ** -0.5)


class StagePart(Value):
    """The goodput of a stage, and the seconds of its steps without losses."""

    goodput: GoodputForecast
    steps_s: float

    @property
    def all_s(self) -> float:
        return self.steps_s / self.goodput.expected


def change_s(goodput: GoodputForecast) -> float:
    """Seconds of save, compilation (at most a restart) and restore; 0 where goodput is stated."""
    inputs = goodput.inputs
    if goodput.stated:
        return 0.0
    start_s = (inputs.restart_s.value + inputs.restore_s.value) / inputs.starts
    return inputs.save.write_s.value + start_s


def over_stages(parts: Sequence[StagePart]) -> GoodputForecast:
    """Return the goodput of all stages, weighted by seconds, with the longest stage's saves."""
    longest = max(parts, key=lambda part: part.all_s).goodput
    steps_s = sum(part.steps_s for part in parts)
    changes = [change_s(part.goodput) for part in parts[1:]]

    def share(name: str) -> float:
        seconds = sum(part.steps_s / getattr(part.goodput, name) for part in parts)
        return float(steps_s / (seconds + sum(changes)))

    total_s = sum(part.all_s for part in parts) + sum(changes)
    # Losses of all stages, each kind once; formulas and inputs are those of the longest.
    by_kind: dict[str, list[tuple[StagePart, GoodputLine]]] = {}
    for part in parts:
        for line in part.goodput.lines:
            by_kind.setdefault(line.kind, []).append((part, line))
    lines = []
    for same in by_kind.values():
        lost_s = sum(part.all_s * line.share for part, line in same)
        count = sum(part.all_s / DAY_S * line.per_day for part, line in same)
        _, line = max(same, key=lambda pair: pair[0].all_s)
        each_s = lost_s / count if count else line.each_s
        per_day = count / total_s * DAY_S
        lines.append(replace(line, share=lost_s / total_s, each_s=each_s, per_day=per_day))
    if lost_s := sum(changes):
        each_s = lost_s / len(changes)
        lines.append(
            GoodputLine(
                kind="stage_changes",
                share=lost_s / total_s,
                each_s=each_s,
                per_day=len(changes) / total_s * DAY_S,
                formula="changes x (write + start) / total",
                inputs={"changes": len(changes), "each": each_s, "total": total_s},
            )
        )
    return replace(
        longest,
        expected=share("expected"),
        low=share("low"),
        high=share("high"),
        best=share("best"),
        lines=tuple(lines),
    )
