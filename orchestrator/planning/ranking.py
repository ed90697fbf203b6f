"""The ranking: which candidate of a search is the plan, and which others are worth a look."""

from dataclasses import dataclass
from math import exp
from typing import Literal

import numpy as np

from orchestrator.catalog.published import Efficiency, GpuEfficiency
from orchestrator.network.mesh_axes import ICI_AXES, LOGICAL_AXES, in_slice, ways
from orchestrator.network.rematerialization import policy
from orchestrator.planning import gpu_expected
from orchestrator.planning.expected import expected_s
from orchestrator.planning.feasibility import sizes_by_name
from orchestrator.planning.forecast import efficiency_of
from orchestrator.planning.layout import Training
from orchestrator.planning.search import Candidates, Choice, SearchRequest, layout_of_rows
from orchestrator.planning.step_work import step_work
from orchestrator.planning.time import step_time, time_lines
from orchestrator.planning.torus import Bools, Floats, Ints, axis_sizes, distinct
from orchestrator.values.plan import Plan

# Plans this close by the first rule are equal within the accuracy of a forecast.
TIE = 0.01
# Expected times this close differ by less than their constants are rounded.
_SAME = 0.001
# A policy that offloads has to gain more than the forecast knows. Two published jobs were timed
# with and without it (tp_v6e4_8b, tp_v6e256_8b_splash): what it changed was off by 2.2 and 1.8 %.
OFFLOAD_GAIN = 0.02
# Among plans this close by the first rule, one expected to be faster by more than the forecast
# knows goes first.
SURE_WITHIN = 0.05
# No published run of such a chip shows whether the sends of a pipeline run next to its products.
_PIPELINE_GAIN = 0.05
PIPELINE_RULE = f"; a pipeline has to gain more than {_PIPELINE_GAIN:.0%}"
RULE = (
    "fastest per token, by the mean of lower and unoverlapped time (a run hides its exchanges in"
    " part, and host transfers as far as computation covers them) with what no exchange hides;"
    f" nothing is offloaded for a gain below {OFFLOAD_GAIN:.0%}; of plans within {TIE:.0%}, the"
    " batch nearest to the requested one, then the best expected time, then the fewest axes; but of"
    f" plans within {SURE_WITHIN:.0%}, one that is expected to be faster by more than the forecast"
    " knows"
)
_WITHIN_LAYERS = in_slice((*LOGICAL_AXES["heads"], *LOGICAL_AXES["experts"]))


@dataclass(frozen=True)
class RankedChoice:
    """The best choice of its tensor size, policy and microbatches, with the number of meshes
    `alike`: their forecasts differ by less than it knows.
    """

    choice: Choice
    alike: int


def best_choice(request: SearchRequest, candidates: Candidates) -> Choice | None:
    return next((ranked.choice for ranked in ranked_choices(request, candidates, 1)), None)


def ranked_choices(request: SearchRequest, candidates: Candidates, most: int) -> list[RankedChoice]:
    """Return the best choices of each kind, with the number of meshes like it; the last may be one
    that accumulates gradients and is expected to be faster than the first.
    """
    kinds = kinds_of(candidates)

    def same_kind(row: int) -> Bools:
        return np.asarray((kinds == kinds[row]).all(axis=1))

    remaining = np.ones(len(candidates), bool)
    rows: list[int] = []
    while remaining.any() and len(rows) < most:
        among = contenders(candidates, remaining)
        expected = expected_s_of(layout_of_rows(request, candidates, among))
        rows.append(pick(request, candidates, among, expected))
        remaining &= ~same_kind(rows[-1])
    if len(rows) > 1:
        [s_per_token] = expected_s_of(layout_of_rows(request, candidates, np.array(rows[:1])))
        faster = accumulates_faster(request, candidates, float(s_per_token))
        shown = candidates.microbatches[rows]
        if faster and shown[0] == 1 and candidates.microbatches[faster[0]] not in shown:
            rows[-1] = faster[0]
    # Costs within the spread of the forecast are alike.
    factor = 1 + TIE
    if known := _known(request):
        factor = exp(known.spread if isinstance(known, GpuEfficiency) else known.spread.value)
    cost = candidates.cost_s_per_token
    ranked = []
    for row in rows:
        near = same_kind(row) & (cost <= cost[row] * factor)
        meshes = distinct(candidates.meshes[near], axis=0)
        ranked.append(RankedChoice(candidates.choice(row), len(meshes) - 1))
    return ranked


def kinds_of(candidates: Candidates) -> Ints:
    """Return what tells kinds of plans apart: axes that split layers, policy and microbatches."""
    sizes = axis_sizes(candidates.factors)[:, [ICI_AXES.index(axis) for axis in _WITHIN_LAYERS]]
    kinds = np.column_stack([sizes, candidates.remat, candidates.microbatches])
    stages = _stages_of(candidates)
    return np.column_stack([kinds, stages]) if np.any(stages > 1) else kinds


def _stages_of(candidates: Candidates) -> Ints:
    return np.asarray(ways(sizes_by_name(candidates.meshes), "layers"))


def contenders(candidates: Candidates, among: Bools) -> Ints:
    """Return the rows between which the expected time may decide."""
    cost = candidates.cost_s_per_token
    return np.flatnonzero(among & (cost <= cost[among].min() * (1 + SURE_WITHIN)))


def pick(request: SearchRequest, candidates: Candidates, rows: Ints, expected: Floats) -> int:
    """Return the best contender, from the expected seconds per token of each: by cost and batch, of
    equals the fastest, the simplest, the cheapest; or one that is surely expected to be faster.
    """
    known = _sure_factor(request) or 1 + TIE
    first = _first(request, candidates, rows, expected)
    # How much accumulating gradients spares of the waits for slices, no published run shows.
    alike = candidates.microbatches[rows] <= candidates.microbatches[rows[first]]
    best = expected[alike].min()
    if best * known < expected[first]:
        near = alike & (expected <= best * known)
        return int(rows[near][_first(request, candidates, rows[near], expected[near])])
    return int(rows[first])


def _first(request: SearchRequest, candidates: Candidates, rows: Ints, expected: Floats) -> int:
    """Return the place of the first among rows, by all of RULE but its last part."""
    cost, places = candidates.cost_s_per_token[rows], np.arange(len(rows))
    on_chip = ~candidates.offloads[rows]
    if cost[on_chip].min(initial=np.inf) <= cost.min() * (1 + OFFLOAD_GAIN):
        places = places[on_chip]
    plain = places[_stages_of(candidates)[rows][places] == 1]
    if cost[plain].min(initial=np.inf) <= cost[places].min() * (1 + _PIPELINE_GAIN):
        places = plain
    places = places[cost[places] <= cost[places].min() * (1 + TIE)]
    for values, within in (
        (np.abs(candidates.sequences[rows] - request.experiment.batch.sequences), 0.0),
        (expected, _SAME),
        ((candidates.meshes[rows] > 1).sum(axis=1), 0.0),
    ):
        places = places[values[places] <= values[places].min() * (1 + within)]
    return int(places[np.argmin(cost[places])])


def expected_s_of(layout: Training) -> Floats:
    """Return the expected seconds per token of layouts; 1 where no run on such chips is known."""
    known = efficiency_of(layout.chip, layout.model, layout.precision.compute)
    if known is None:
        return np.ones(len(layout.sequences))
    lines = time_lines(layout)
    time = step_time(layout, lines)
    if isinstance(known, GpuEfficiency):
        seconds = gpu_expected.expected_s(layout, lines, time, known)
    else:
        seconds = expected_s(step_work(layout, lines), time, known)
    return np.asarray(seconds / (layout.sequences * layout.length))


def _known(request: SearchRequest) -> Efficiency | GpuEfficiency | None:
    experiment = request.experiment
    return efficiency_of(request.chip, experiment.model, experiment.precision.compute)


def _sure_factor(request: SearchRequest) -> float | None:
    """Return by which factor one expected step of such chips is surely shorter than another."""
    if (known := _known(request)) is None:
        return None
    spread = known.spread if isinstance(known, GpuEfficiency) else known.reference_spread.value
    return exp(spread)


def accumulates_faster(
    request: SearchRequest, candidates: Candidates, s_per_token: float
) -> tuple[int, float] | None:
    """Return the row that accumulates gradients and is expected to be faster by more than the
    forecast knows, and its seconds per token: it waits for other slices once per step, which the
    rule does not count.
    """
    known = _sure_factor(request)
    if request.pods == 1 or known is None or not len(candidates):
        return None
    cost, numbers = candidates.cost_s_per_token, distinct(candidates.microbatches)
    rows = np.array(
        [np.where(candidates.microbatches == number, cost, np.inf).argmin() for number in numbers]
    )
    expected = expected_s_of(layout_of_rows(request, candidates, rows))
    best = int(expected.argmin())
    if numbers[best] == 1 or float(expected[best]) * known >= s_per_token:
        return None
    return int(rows[best]), float(expected[best])


# `waits`: it accumulates gradients to wait less, and the ranking counts only work. `offload`: it
# offloads for less than the forecast knows. `batch`: as fast by the rule, but further from the
# requested batch. `work`: its work takes longer by the rule.
Reason = Literal["waits", "offload", "batch", "work"]


def passed_over(plan: Plan, other: Plan) -> Reason | None:
    """Return the rule's part that puts a plan before one expected to be faster; None otherwise."""
    if (other.forecast.mfu.expected or 0.0) <= (plan.forecast.mfu.expected or 0.0):
        return None
    if other.batch.microbatches > plan.batch.microbatches:
        return "waits"
    change = loss(plan, other)
    if policy(other.remat).needs_host and -OFFLOAD_GAIN <= change <= 0:
        return "offload"
    return "batch" if change <= TIE else "work"


def loss(plan: Plan, other: Plan) -> float:
    """Return the share by which another takes longer for a token, as the ranking counts it."""
    return _ranked_s_per_token(other) / _ranked_s_per_token(plan) - 1


def _ranked_s_per_token(ranked: Plan) -> float:
    step_s = ranked.forecast.step_s
    unhidden_s = step_s.unoverlapped - ranked.forecast.hidden_s
    never_hidden_s = ranked.forecast.never_hidden_s
    return ((step_s.lower + unhidden_s) / 2 + never_hidden_s) / ranked.batch.tokens
