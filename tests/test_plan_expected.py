"""What a step is expected to take: never below the bound, one formula for one plan and for many."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import catalog
from orchestrator.network.rematerialization import POLICIES
from orchestrator.plan.expected import (
    APART_S,
    expected_lines,
    expected_s,
    interval,
    skew_share,
    step_parts,
    step_work,
    uncertainty,
)
from orchestrator.plan.feasibility import sizes_by_name
from orchestrator.plan.layout import Layout
from orchestrator.plan.plan_warnings import extrapolations
from orchestrator.plan.planner import make_plan, plan_digest, search_request
from orchestrator.plan.search import SearchRequest, layout_of_choice, make_layout, search
from orchestrator.plan.time import step_time, time_lines
from orchestrator.plan.torus import axis_sizes, find_links
from orchestrator.score.evaluate import published
from orchestrator.types.spec import Spec
from tests.example_specs import TINY, spec_of

SLICES = [("v4", "4x4x4"), ("v5e", "16x16"), ("v5p", "4x4x8"), ("v6e", "8x16"), ("tpu7x", "4x4x4")]
REQUESTS = {
    (chip, pods): search_request(spec_of("llama3-8b", chip=chip, topology=shape, pods=pods))
    for chip, shape in SLICES
    for pods in (1, 4)
}
CANDIDATES = {key: search(request).candidates for key, request in REQUESTS.items()}


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any realizable plan of 8B on a slice or four, under any policy that the chip can price."""
    key = draw(st.sampled_from(sorted(REQUESTS)))
    candidates = CANDIDATES[key]
    choice = candidates.choice(draw(st.integers(0, len(candidates) - 1)))
    remat = draw(st.sampled_from(sorted(POLICIES)))
    length = draw(st.sampled_from([1024, 4096, 131_072]))
    return replace(layout_of_choice(REQUESTS[key], replace(choice, remat=remat)), length=length)


@settings(max_examples=60)
@given(layouts())
def test_estimates_are_ordered(layout: Layout) -> None:
    """lower <= low <= expected <= high, for any plan; and the ledger adds up to expected."""
    known = catalog.efficiency(layout.chip.name)
    assert known is not None
    lines = time_lines(layout)
    time = step_time(layout, lines)
    expected = float(expected_s(layout, lines, time, known))
    low, high = interval(layout, lines, time, known)
    assert float(time.lower_s) <= low <= expected <= high
    ledger = expected_lines(layout, lines, time, known)
    assert sum(line.value for line in ledger) == pytest.approx(expected, rel=1e-12)
    assert all(line.value > 0 for line in ledger)


def test_many_layouts_at_once_cost_what_each_costs() -> None:
    """The same functions price arrays."""
    request = REQUESTS["v5p", 4]
    candidates = CANDIDATES["v5p", 4]
    rows = slice(0, 50)
    known = catalog.efficiency("v5p")
    assert known is not None
    many = of_rows(request, candidates.factors[rows], candidates.sequences[rows])
    lines = time_lines(many)
    together = expected_s(many, lines, step_time(many, lines), known)
    for i in range(50):
        choice = replace(candidates.choice(i), microbatches=1, remat="full")
        one = layout_of_choice(request, choice)
        own = time_lines(one)
        alone = expected_s(one, own, step_time(one, own), known)
        assert together[i] == pytest.approx(float(alone), rel=1e-12)


def of_rows(request: SearchRequest, factors: np.ndarray, sequences: np.ndarray) -> Layout:
    links = find_links(request.torus, factors)
    return make_layout(
        request, sizes_by_name(axis_sizes(factors)), sequences, 1, POLICIES["full"], links
    )


def on_pods(layout: Layout, pods: int) -> Layout:
    return replace(layout, mesh={**layout.mesh, "pods": pods})


def test_slower_machines_and_more_slices_take_longer() -> None:
    """A lower share of the peak, and waiting for more slices, show in the step."""
    request, known = REQUESTS["v5p", 4], catalog.efficiency("v5p")
    assert known is not None
    layout = layout_of_choice(request, CANDIDATES["v5p", 4].choice(0))
    todo = step_work(layout, time_lines(layout))
    slower = replace(known, matmul=catalog.LearnedConstant(value=known.matmul.value / 2))
    assert step_parts(todo, slower)["matmul"] == pytest.approx(
        2 * step_parts(todo, known)["matmul"]
    )
    alone = step_work(on_pods(layout, 1), time_lines(layout))
    assert (alone.reductions, alone.hops, step_parts(alone, known)["slice_wait"]) == (
        0,
        0,
        0,
    )
    more = replace(on_pods(layout, 16), sequences=4 * layout.sequences)
    sixteen = step_work(more, time_lines(more))
    assert (sixteen.reductions, sixteen.hops) == (todo.reductions, 5 * todo.hops)


def test_short_layers_wait_in_proportion() -> None:
    """70B on 35,840 chips has layers of a few milliseconds, which wait in proportion."""
    forecast = make_plan(spec_of()).forecast
    ledger = {line.name: line.value for line in forecast.expected_time}
    own = ("matmuls", "attention", "weights and optimizer", "between matmuls")
    known = catalog.efficiency("v5p")
    assert known is not None
    share = (known.slice_wait_s.value + 3 * known.slice_hop_s.value) / APART_S
    own_s = sum(ledger[name] for name in own)
    assert own_s / 80 < APART_S
    assert ledger["waiting for slices"] == pytest.approx(share * own_s)


def test_short_layers_are_less_certain() -> None:
    """The interval is wider where no published run is alike."""
    known = catalog.efficiency("v5p")
    assert known is not None
    layout = layout_of_choice(REQUESTS["v5p", 4], CANDIDATES["v5p", 4].choice(0))
    short = replace(step_work(layout, time_lines(layout)), links_s=0.0)
    longer = replace(short, matmul_s=100 * short.matmul_s)
    assert skew_share(short, known) < skew_share(longer, known) == 1
    assert bool(uncertainty(short, known) > uncertainty(longer, known))


@pytest.mark.parametrize("sequences", [1120, 4480])
def test_more_pods_at_the_same_batch_are_never_slower(sequences: int) -> None:
    """Strong scaling from one pod to eight: each doubling shortens the step."""
    steps = [
        make_plan(spec_of(pods=pods, sequences=sequences, tolerance=0.3)).forecast.step_s.expected
        for pods in (1, 2, 4, 8)
    ]
    assert all(step is not None for step in steps)
    assert steps == sorted(steps, key=lambda step: -(step or 0.0))


def test_a_plan_has_estimates_of_time_mfu_days_and_money() -> None:
    """Each with its interval; a rate's low end is the slow one."""
    forecast = make_plan(spec_of(topology="4x4x8", pods=1)).forecast
    for of in (forecast.step_s, forecast.days, forecast.chip_hours, forecast.dollars):
        assert of is not None
        assert of.low is not None
        assert of.expected is not None
        assert of.high is not None
        assert of.lower <= of.low < of.expected < of.high
    mfu, rate = forecast.mfu, forecast.tokens_per_s
    assert mfu.low is not None
    assert mfu.expected is not None
    assert mfu.high is not None
    assert mfu.low < mfu.expected < mfu.high <= mfu.lower
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low < rate.high <= rate.lower


def test_without_published_runs_there_is_no_estimate() -> None:
    """A GPU's forecast says so by leaving it out, and has the bound all the same."""
    forecast = make_plan(spec_of(TINY, chip="h100", topology="8", pods=1, sequences=64)).forecast
    assert forecast.step_s.expected is None
    assert forecast.mfu.expected is None
    assert forecast.expected_time == ()
    assert forecast.step_s.lower > 0


GUESS, EXTRAPOLATED = "short_steps", "many_chips"


@pytest.mark.parametrize(
    ("spec", "codes"),
    [
        (spec_of(), [EXTRAPOLATED]),
        (spec_of(topology="4x4x8", pods=1), []),
        (spec_of(TINY, topology="2x2x1", pods=2, sequences=64, length=128), [GUESS]),
        (
            spec_of(TINY, chip="tpu7x", topology="4x4x4", pods=2, sequences=512),
            [GUESS, EXTRAPOLATED],
        ),
        (spec_of(TINY, chip="h100", topology="8", pods=1, sequences=64), []),
    ],
    ids=["70B on 35,840", "70B on 128", "tiny", "tiny on 128 tpu7x", "no run known"],
)
def test_a_plan_warns_of_extrapolation(spec: Spec, codes: list[str]) -> None:
    """Of steps that are shorter and of chips that are more; its digest does not depend on it."""
    plan = make_plan(spec)
    warnings = [one for one in plan.warnings if one.code in (GUESS, EXTRAPOLATED)]
    assert [one.code for one in warnings] == codes
    assert warnings == list(extrapolations(plan))
    assert plan_digest(replace(plan, warnings=())) == plan.digest


def test_no_published_run_is_an_extrapolation() -> None:
    """The shortest step and the most chips of a kind are those of runs."""
    reached = [catalog.reach(chip) for chip, _ in SLICES]
    assert all(one is not None and one.step_s < 0.25 and one.chips >= 64 for one in reached)
    samples, _ = published()
    for sample in samples:
        known = catalog.reach(sample.run.chip)
        assert known is not None
        assert sample.run.chips <= known.chips
        assert sample.measured_s > known.step_s * 0.999
