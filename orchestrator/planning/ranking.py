"""The ranking: which candidate of a search is the plan, and which others are worth a look."""

from dataclasses import dataclass
from math import exp
from typing import Literal

import numpy as np

from orchestrator import catalog
from orchestrator.network.mesh_axes import ICI_AXES, LOGICAL_AXES
from orchestrator.network.rematerialization import policy
from orchestrator.planning.expected import expected_s
from orchestrator.planning.layout import Training
from orchestrator.planning.search import Candidates, Choice, SearchRequest, layout_of_rows
from orchestrator.planning.time import step_time, time_lines
from orchestrator.planning.torus import Bools, Floats, Ints, axis_sizes
from orchestrator.values.plan import Plan

# Plans this close by the first rule are equal within the accuracy of a forecast.
TIE = 0.01
# Expected times this close differ by less than their constants are rounded.
SAME = 0.001
# A policy that offloads has to gain more than the forecast knows. Two published jobs were timed
# with and without it (tp_v6e4_8b, tp_v6e256_8b_splash): what it changed was off by 2.2 and 1.8 %.
OFFLOAD_GAIN = 0.02
RULE = (
    "fastest per token, by the mean of lower and unoverlapped time (a run hides its exchanges in"
    " part, and host transfers as far as computation covers them); nothing is offloaded for a gain"
    f" below {OFFLOAD_GAIN:.0%}; of plans within {TIE:.0%}, the batch nearest to the requested one,"
    " then the best expected time, then the fewest axes"
)
WITHIN_LAYERS = (*LOGICAL_AXES["heads"], *LOGICAL_AXES["experts"])


@dataclass(frozen=True)
class RankedChoice:
    """The best choice of its kind: of its tensor size, policy and microbatches.

    `alike` other meshes of that kind differ from it by less than the forecast knows.
    """

    choice: Choice
    alike: int


def best_choices(request: SearchRequest, candidates: Candidates, most: int) -> list[Choice]:
    """The best choice, then the best of each other kind, by RULE."""
    return [one.choice for one in ranked_choices(request, candidates, most)]


def ranked_choices(request: SearchRequest, candidates: Candidates, most: int) -> list[RankedChoice]:
    """The same, each with the number of meshes like it. The last may be one that accumulates
    gradients, where it is expected to be faster than the first.
    """
    kinds = kinds_of(candidates)
    remaining = np.ones(len(candidates), bool)
    rows: list[int] = []
    while remaining.any() and len(rows) < most:
        rows.append(best_row(request, candidates, remaining))
        remaining &= ~alike_kinds(kinds, rows[-1])
    if len(rows) > 1:
        rows = with_accumulation(request, candidates, rows)
    return [
        RankedChoice(
            candidates.choice(row),
            meshes_alike(request, candidates, row, alike_kinds(kinds, row)),
        )
        for row in rows
    ]


def alike_kinds(kinds: Ints, row: int) -> Bools:
    """The rows of the same kind."""
    return np.asarray((kinds == kinds[row]).all(axis=1))


def with_accumulation(request: SearchRequest, candidates: Candidates, rows: list[int]) -> list[int]:
    """The rows; the last is replaced where none has the microbatches that are expected to win."""
    [s_per_token] = expected_s_per_token(request, candidates, np.array(rows[:1]))
    faster = accumulating_row(request, candidates, float(s_per_token))
    shown = candidates.microbatches[rows]
    if faster is None or shown[0] > 1 or candidates.microbatches[faster] in shown:
        return rows
    return [*rows[:-1], faster]


def kinds_of(candidates: Candidates) -> Ints:
    """What tells one kind of plan from another: the sizes of axes that split layers, policy and
    microbatches.
    """
    sizes = axis_sizes(candidates.factors)[:, [ICI_AXES.index(axis) for axis in WITHIN_LAYERS]]
    return np.column_stack([sizes, candidates.remat, candidates.microbatches])


def meshes_alike(request: SearchRequest, candidates: Candidates, row: int, same: Bools) -> int:
    """Other meshes of the same kind within the spread of the forecast."""
    efficiency = catalog.efficiency(request.chip.name)
    factor = exp(efficiency.spread.value) if efficiency else 1 + TIE
    cost = candidates.cost_s_per_token
    near = same & (cost <= cost[row] * factor)
    return len(np.unique(axis_sizes(candidates.factors[near]), axis=0)) - 1


def best_row(request: SearchRequest, candidates: Candidates, among: Bools) -> int:
    """The row that RULE picks; of equal rows the cheapest, then the first enumerated."""
    rows = contenders(request, candidates, among)
    return pick(candidates, rows, expected_s_per_token(request, candidates, rows))


def contenders(request: SearchRequest, candidates: Candidates, among: Bools) -> Ints:
    """The rows between which the expected time decides."""
    cost = candidates.cost_s_per_token
    on_chip = among & ~candidates.offloads
    if cost[on_chip].min(initial=np.inf) <= cost[among].min() * (1 + OFFLOAD_GAIN):
        among = on_chip
    rows = np.flatnonzero(among & (cost <= cost[among].min() * (1 + TIE)))
    return least(rows, np.abs(candidates.sequences[rows] - request.experiment.batch.sequences))


def pick(candidates: Candidates, rows: Ints, expected: Floats) -> int:
    """Of contenders the best, with the expected seconds per token of each."""
    rows = least(rows, expected, SAME)
    rows = least(rows, (axis_sizes(candidates.factors[rows]) > 1).sum(axis=1))
    return int(rows[np.argmin(candidates.cost_s_per_token[rows])])


def least(rows: Ints, values: Floats | Ints, within: float = 0.0) -> Ints:
    """The rows with the least value, or within a share of it."""
    return np.asarray(rows[values <= values.min() * (1 + within)])


def expected_s_per_token(request: SearchRequest, candidates: Candidates, rows: Ints) -> Floats:
    """What a run is expected to take; the same for all rows where no such run is known."""
    if catalog.efficiency(request.chip.name) is None:
        return np.ones(len(rows))
    return expected_s_of(layout_of_rows(request, candidates, rows))


def expected_s_of(layout: Training) -> Floats:
    """The same for layouts."""
    efficiency = catalog.efficiency(layout.chip.name)
    if efficiency is None:
        return np.ones(len(layout.sequences))
    lines = time_lines(layout)
    seconds = expected_s(layout, lines, step_time(layout, lines), efficiency)
    return np.asarray(seconds / (layout.sequences * layout.length))


def accumulates_faster(
    request: SearchRequest, candidates: Candidates, s_per_token: float
) -> tuple[int, float] | None:
    """Microbatches with which a step is expected to be faster than a plan's, and its seconds for a
    token; None if there are none.
    """
    row = accumulating_row(request, candidates, s_per_token)
    if row is None:
        return None
    [expected] = expected_s_per_token(request, candidates, np.array([row]))
    return int(candidates.microbatches[row]), float(expected)


def accumulating_row(
    request: SearchRequest, candidates: Candidates, s_per_token: float
) -> int | None:
    """The row that accumulates gradients and is expected to be faster by more than the forecast
    knows.

    With one microbatch slices wait for each other in every layer, with more once a step. Such waits
    are learned from runs; the rule counts work alone.
    """
    efficiency = catalog.efficiency(request.chip.name)
    if request.pods == 1 or efficiency is None or not len(candidates):
        return None
    cost, numbers = candidates.cost_s_per_token, np.unique(candidates.microbatches)
    rows = np.array(
        [np.where(candidates.microbatches == one, cost, np.inf).argmin() for one in numbers]
    )
    expected = expected_s_per_token(request, candidates, rows)
    best = int(expected.argmin())
    known = exp(efficiency.reference_spread.value)
    faster = float(expected[best]) * known < s_per_token
    return int(rows[best]) if faster and numbers[best] > 1 else None


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
