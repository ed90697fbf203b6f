"""What is left of a run: its forecast, and what it has measured so far, each as sure as it is.

Both are numbers whose logarithms are normal. Their mean is weighted by how sure each is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import erf, exp, hypot, log, sqrt

from orchestrator.formatting import DAY_S
from orchestrator.goodput.losses import DEVIATIONS
from orchestrator.values.goodput import GoodputForecast, GoodputLine, Outlook, Uncertain
from orchestrator.values.plan import Plan

HOUR_S = 3600.0
# How unsure the steps to come are, as shares: beyond those measured, and for one step alone.
LASTING, OF_ONE_STEP = 0.02, 0.2


@dataclass(frozen=True, kw_only=True)
class SoFar:
    """What a run has done, at `now_s`: its median step, None before the second. That is of the
    stage in which the newest of the first `measured_steps` lies: where a stage has just begun it
    is the one before.

    `running_s` is the time since its first attempt began, `starts` the number of its attempts.
    """

    now_s: float
    running_s: float
    steps_done: int
    steps: int
    median_step_s: float | None
    measured_steps: int
    starts: int
    ended: bool


@dataclass(frozen=True)
class Belief:
    """A number whose logarithm has this mean and deviation."""

    mean: float
    deviation: float

    def uncertain(self, most: float | None = None) -> Uncertain:
        width = DEVIATIONS * self.deviation
        ends = [exp(self.mean + sign * width) for sign in (0, -1, 1)]
        value, low, high = ends if most is None else [min(end, most) for end in ends]
        return Uncertain(value=value, low=low, high=high)


def outlook(
    plan: Plan, so_far: SoFar, deadline_at_s: float | None, *, forecast: bool
) -> Outlook | None:
    """What is left; None where neither a forecast nor a measurement says how long a step takes.

    `forecast`: whether the plan's is about the devices that the run is on.
    """
    stage = plan.stage_of(max(so_far.measured_steps - 1, 0))
    step = step_belief(stage, so_far, forecast=forecast)
    if step is None or so_far.ended:
        return None
    done_steps, left_steps = steps_of_stage(plan, stage, so_far)
    share = goodput_belief(stage.forecast.goodput, so_far, done_steps * exp(step.mean))
    left = max(so_far.steps - so_far.steps_done, 0)
    left_s = Belief(
        log(max(left_steps, 1)) + step.mean - share.mean, hypot(step.deviation, share.deviation)
    )
    seconds = left_s.uncertain() if left else Uncertain(value=0.0, low=0.0, high=0.0)
    price = plan.forecast.dollars_per_chip_hour if forecast and not plan.chip_profile else None
    rate = price and price * plan.chips * plan.forecast.goodput.inputs.rented / HOUR_S
    return Outlook(
        steps_left=left,
        step_s=step.uncertain(),
        goodput=share.uncertain(most=1.0),
        days_left=scaled(seconds, 1 / DAY_S),
        ends_at_s=shifted(seconds, so_far.now_s),
        dollars_so_far=None if rate is None else rate * so_far.running_s,
        dollars_left=None if rate is None else scaled(seconds, rate),
        deadline_at_s=deadline_at_s,
        odds=None if deadline_at_s is None else odds(left_s, left, deadline_at_s - so_far.now_s),
    )


def steps_of_stage(plan: Plan, stage: Plan, so_far: SoFar) -> tuple[float, float]:
    """The steps that are done and left, counted in steps of one stage by what each should take:
    what is learned of its steps holds for those of the others.
    """
    if not plan.stages:
        return so_far.steps_done, max(so_far.steps - so_far.steps_done, 0)
    step_s, done_s = stage.forecast.step_s.likeliest, plan.run_s(so_far.steps_done)
    return done_s / step_s, max(plan.run_s(so_far.steps) - done_s, 0.0) / step_s


def step_belief(plan: Plan, so_far: SoFar, *, forecast: bool) -> Belief | None:
    """The seconds of the steps that are left."""
    beliefs = []
    known = plan.forecast.step_s
    if forecast and known.expected is not None and known.low and known.high:
        beliefs.append(Belief(log(known.expected), log(known.high / known.low) / 2 / DEVIATIONS))
    if so_far.median_step_s:
        steps = max(so_far.measured_steps - plan.first_step, 1)
        unsure = hypot(LASTING, OF_ONE_STEP / sqrt(steps))
        beliefs.append(Belief(log(so_far.median_step_s), unsure))
    return combined(beliefs) if beliefs else None


def goodput_belief(forecast: GoodputForecast, so_far: SoFar, done_s: float) -> Belief:
    """The goodput of the time that is left: what was lost is as sure as failures were many."""
    prior = Belief(log(forecast.expected), log(forecast.high / forecast.low) / 2 / DEVIATIONS)
    if forecast.stated or not so_far.median_step_s or so_far.running_s <= 0:
        return prior
    trained_s = min(done_s, so_far.running_s)
    share = trained_s / so_far.running_s
    if not share:
        return prior
    unsure = hypot(LASTING, (1 - share) / sqrt(so_far.starts), HOUR_S / so_far.running_s)
    return combined([prior, Belief(log(share), unsure)])


def combined(beliefs: list[Belief]) -> Belief:
    """The mean of beliefs, weighted by how sure they are. One without doubt is the only one."""
    sure = [one for one in beliefs if not one.deviation]
    if sure:
        return sure[0]
    weights = [one.deviation**-2 for one in beliefs]
    mean = sum(w * one.mean for w, one in zip(weights, beliefs, strict=True)) / sum(weights)
    return Belief(mean, sum(weights) ** -0.5)


def odds(left_s: Belief, left: int, until_s: float) -> float:
    """The probability that what is left takes no longer."""
    if not left or until_s <= 0:
        return float(not left)
    if not left_s.deviation:
        return float(log(until_s) >= left_s.mean)
    return 0.5 * (1 + erf((log(until_s) - left_s.mean) / left_s.deviation / sqrt(2)))


def scaled(number: Uncertain, factor: float) -> Uncertain:
    return Uncertain(
        value=number.value * factor, low=number.low * factor, high=number.high * factor
    )


def shifted(number: Uncertain, by: float) -> Uncertain:
    return Uncertain(value=number.value + by, low=number.low + by, high=number.high + by)


# The goodput of a run in stages, from that of each stage.


@dataclass(frozen=True, kw_only=True)
class StagePart:
    """The goodput of a stage, and the seconds of its steps alone."""

    goodput: GoodputForecast
    steps_s: float

    @property
    def all_s(self) -> float:
        return self.steps_s / self.goodput.expected


def change_s(goodput: GoodputForecast) -> float:
    """What a change of stages takes: a save is written, the next step compiled, the state restored.

    A compilation takes no longer than a restart. A goodput that the spec states counts it all.
    """
    inputs = goodput.inputs
    if goodput.stated:
        return 0.0
    start_s = (inputs.restart_s.value + inputs.restore_s.value) / inputs.starts
    return inputs.save.write_s.value + start_s


def over_stages(parts: Sequence[StagePart]) -> GoodputForecast:
    """Seconds add up, so shares are weighted by them. Saves are those of the longest stage."""
    longest = max(parts, key=lambda one: one.all_s).goodput
    steps_s = sum(one.steps_s for one in parts)
    changes = [change_s(one.goodput) for one in parts[1:]]

    def share(of: str) -> float:
        seconds = sum(one.steps_s / getattr(one.goodput, of) for one in parts)
        return float(steps_s / (seconds + sum(changes)))

    total_s = sum(one.all_s for one in parts) + sum(changes)
    return replace(
        longest,
        expected=share("expected"),
        low=share("low"),
        high=share("high"),
        best=share("best"),
        lines=(*_lines(parts, total_s), *_changes(changes, total_s)),
    )


def _lines(parts: Sequence[StagePart], total_s: float) -> list[GoodputLine]:
    """The losses of all stages, each kind once; formulas and inputs are those of the longest."""
    kinds = dict.fromkeys(line.kind for one in parts for line in one.goodput.lines)
    lines = []
    for kind in kinds:
        same = [(one, line) for one in parts for line in one.goodput.lines if line.kind == kind]
        lost_s = sum(one.all_s * line.share for one, line in same)
        count = sum(one.all_s / DAY_S * line.per_day for one, line in same)
        _, longest = max(same, key=lambda pair: pair[0].all_s)
        lines.append(
            replace(
                longest,
                share=lost_s / total_s,
                each_s=lost_s / count if count else longest.each_s,
                per_day=count / total_s * DAY_S,
            )
        )
    return lines


def _changes(changes: Sequence[float], total_s: float) -> list[GoodputLine]:
    lost_s = sum(changes)
    if not lost_s:
        return []
    each_s = lost_s / len(changes)
    return [
        GoodputLine(
            kind="stage_changes",
            share=lost_s / total_s,
            each_s=each_s,
            per_day=len(changes) / total_s * DAY_S,
            formula="changes x (write + start) / total",
            inputs={"changes": len(changes), "each": each_s, "total": total_s},
        )
    ]
