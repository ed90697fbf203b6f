"""Why a runner-up that is expected to be faster than the plan is not the plan."""

from typing import Literal

from orchestrator.network.rematerialization import policy
from orchestrator.plan.ranking import OFFLOAD_GAIN, TIE
from orchestrator.types.plan import Plan

# `waits`: it accumulates gradients to wait less, and the ranking counts work alone. `offload`: it
# offloads for less than the forecast knows. `batch`: as fast by the rule, but further from the
# requested batch. `work`: its work takes longer by the rule.
Reason = Literal["waits", "offload", "batch", "work"]


def passed_over(plan: Plan, other: Plan) -> Reason | None:
    """Return the part of the ranking's rule that puts a plan before one that is expected to be
    faster; None where that other is not expected to be faster.
    """
    if not expects_more(other, plan):
        return None
    if other.batch.microbatches > plan.batch.microbatches:
        return "waits"
    change = loss(plan, other)
    if policy(other.remat).needs_host and -OFFLOAD_GAIN <= change <= 0:
        return "offload"
    return "batch" if change <= TIE else "work"


def expects_more(plan: Plan, than: Plan) -> bool:
    return (plan.forecast.mfu.expected or 0.0) > (than.forecast.mfu.expected or 0.0)


def loss(plan: Plan, other: Plan) -> float:
    """Return the share by which another takes longer for a token, as the ranking counts it."""
    return ranked_s(other) / ranked_s(plan) - 1


def ranked_s(plan: Plan) -> float:
    """Return the seconds per token by which plans are ranked."""
    step_s = plan.forecast.step_s
    unhidden_s = step_s.unoverlapped - plan.forecast.hidden_s
    return (step_s.lower + unhidden_s) / 2 / plan.batch.tokens
