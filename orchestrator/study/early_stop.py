"""Which trials of a sweep stop early: decided from their losses alone.

The same losses give the same decisions, whenever they are made: a trial counts for the others only
up to the step at which it was stopped.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.errors import LossNotFinite
from orchestrator.journal.step_table import Floats, Integers
from orchestrator.types.run import Run
from orchestrator.types.stop_rule import StopRule
from orchestrator.types.sweep import StopCode


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of a trial by the index of their steps, in order."""

    index: Integers
    loss: Floats

    @property
    def steps_done(self) -> int:
        return int(self.index[-1]) + 1 if len(self.index) else 0

    def until(self, step: int | None) -> "Losses":
        """The losses of the first so many steps."""
        if step is None:
            return self
        kept = self.index < step
        return Losses(self.index[kept], self.loss[kept])

    def mean(self, begin: int, end: int) -> float | None:
        """The mean loss of the steps from `begin` up to but not including `end`."""
        chosen = (self.index >= begin) & (self.index < end)
        return float(self.loss[chosen].mean()) if chosen.any() else None


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """Why a trial stops after a step: its loss there exceeds a limit, which `others` set."""

    code: StopCode
    step: int
    loss: float | None
    limit: float | None
    others: int


def checks(rule: StopRule, steps: int) -> Iterator[int]:
    """The steps after which a trial of so many steps is judged; it is not at its end."""
    at = rule.every
    while at < steps:
        yield at
        at = at * rule.reduction if rule.rule == "halving" else at + rule.every


def judge(rule: StopRule, steps: int, trial: Losses, others: Sequence[Losses]) -> EarlyStop | None:
    """The first check that a trial does not pass, as far as its losses go."""
    for at in checks(rule, steps):
        if trial.steps_done < at:
            return None
        if verdict := judge_at(rule, at, trial, others):
            return verdict
    return None


def judge_at(rule: StopRule, at: int, trial: Losses, others: Sequence[Losses]) -> EarlyStop | None:
    """Why a trial stops at a check; None where it goes on."""
    loss, first = trial.mean(at - rule.every, at), trial.mean(0, 1)
    if loss is None:
        return None
    if first is not None and loss > (limit := rule.diverged_at * first):
        return EarlyStop(code="diverged", step=at, loss=loss, limit=limit, others=0)
    reached = [one.mean(at - rule.every, at) for one in others if one.steps_done >= at]
    known = sorted(one for one in reached if one is not None)
    if rule.rule == "diverged" or len(known) < rule.after_trials:
        return None
    if rule.rule == "median":
        code: StopCode = "worse_than_median"
        limit = float(np.median(known))
    else:
        code = "not_among_best"
        limit = known[passing(len(known) + 1, rule.reduction) - 1]
    if loss <= limit:
        return None
    return EarlyStop(code=code, step=at, loss=loss, limit=limit, others=len(known))


def passing(trials: int, reduction: int) -> int:
    """How many of so many trials pass a check of successive halving."""
    return max(1, math.ceil(trials / reduction))


def diverged(run: Run) -> EarlyStop | None:
    """That a run ended because its loss was not finite."""
    error = run.attempts[-1].error if run.attempts else None
    if run.state != "failed" or not (error or "").startswith(LossNotFinite.__name__):
        return None
    return EarlyStop(code="not_finite", step=run.steps_done, loss=None, limit=None, others=0)


def judged(
    rule: StopRule | None,
    steps: int,
    trial: int,
    losses: Mapping[int, Losses],
) -> EarlyStop | None:
    """The verdict on one trial among all, by their numbers."""
    if rule is None or trial not in losses:
        return None
    others = [one for number, one in losses.items() if number != trial]
    return judge(rule, steps, losses[trial], others)
