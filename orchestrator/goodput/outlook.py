"""What is left of a run: its forecast and its measurements, log-normal and weighted by how sure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import erf, exp, hypot, log, sqrt

from orchestrator.formatting import DAY_S, HOUR_S
from orchestrator.goodput.losses import DEVIATIONS, changed, exactly
from orchestrator.values.codec import Value
from orchestrator.values.goodput import GoodputForecast, GoodputLine, Outlook, Uncertain
from orchestrator.values.plan import Plan

# How unsure the steps to come are, as shares: beyond those measured, and for a single step.
_LASTING, _SINGLE_STEP = 0.02, 0.2


class SoFar(Value):
    now_s: float
    running_s: float  # since its first attempt began
    steps_done: int
    steps: int
    # None before the second step. It is of the stage in which the newest of the first
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
        return cls(log(value), log(high / low) / 2 / DEVIATIONS)

    def uncertain(self, most: float | None = None) -> Uncertain:
        width = DEVIATIONS * self.deviation
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
    share = _goodput_belief(stage.forecast.goodput, so_far, done_steps * exp(step.mean))
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
    elif deadline_at_s is not None and not left_s.deviation:
        odds = float(log(until_s) >= left_s.mean)
    elif deadline_at_s is not None:
        odds = 0.5 * (1 + erf((log(until_s) - left_s.mean) / left_s.deviation / sqrt(2)))
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


def _goodput_belief(forecast: GoodputForecast, so_far: SoFar, done_s: float) -> _Belief:
    """Return the goodput of the time left: the more failures so far, the surer are past losses."""
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
