"""What a step is expected to take: never below the bound, one formula for one plan and for many."""

import random
from dataclasses import asdict, replace
from functools import cache
from math import exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import catalog
from orchestrator.catalog.published import Range
from orchestrator.errors import OrchError
from orchestrator.evidence.score.evaluate import DENSE, published_samples
from orchestrator.evidence.score.learn import _OF_COLLECTIVES, _is_reference
from orchestrator.network.rematerialization import POLICIES
from orchestrator.planning.expected import (
    _APART_S,
    _BELOW_ALONE,
    AXES,
    _own_step_parts,
    axis_values,
    expected_lines,
    expected_s,
    extrapolations,
    interval,
    skew_share,
    step_parts,
    unseen,
)
from orchestrator.planning.feasibility import sizes_by_name
from orchestrator.planning.layout import Training
from orchestrator.planning.planner import make_plan, make_plans
from orchestrator.planning.search import (
    Candidates,
    SearchRequest,
    layout_of_choice,
    make_layout,
    search,
    search_request,
)
from orchestrator.planning.step_work import ICI_RATE, StepWork, step_work
from orchestrator.planning.time import step_time, time_lines
from orchestrator.planning.torus import axis_sizes, find_links
from orchestrator.show.plan_screen import plan_screen
from orchestrator.values.model import Model
from orchestrator.values.plan import Plan, plan_digest
from orchestrator.values.spec import MeshRequest, Precision, Spec
from tests.example_specs import TINY, chosen, spec_of

SLICES = [("v4", "4x4x4"), ("v5e", "16x16"), ("v5p", "4x4x8"), ("v6e", "8x16"), ("tpu7x", "4x4x4")]
REQUESTS = {
    (chip, pods): search_request(spec_of("llama3-8b", chip=chip, topology=shape, pods=pods))
    for chip, shape in SLICES
    for pods in (1, 4)
}


@cache
def candidates_of(key: tuple[str, int]) -> Candidates:
    return search(REQUESTS[key]).candidates


MAXTEXT_16B = Model(
    name="maxtext-16b", layers=32, d_model=5120, d_ff=32_768, heads=32, kv_heads=32, head_dim=256,
    vocab=32_768, gated=False, tied=True,
)  # fmt: skip


@st.composite
def layouts(draw: st.DrawFn) -> Training:
    """Any realizable plan of 8B on a slice or four, under any policy that the chip can price."""
    key = draw(st.sampled_from(sorted(REQUESTS)))
    candidates = candidates_of(key)
    choice = candidates.choice(draw(st.integers(0, len(candidates) - 1)))
    remat = draw(st.sampled_from(sorted(POLICIES)))
    length = draw(st.sampled_from([1024, 4096, 131_072]))
    return replace(layout_of_choice(REQUESTS[key], replace(choice, remat=remat)), length=length)


@settings(max_examples=60)
@given(layouts())
def test_estimates_are_ordered(layout: Training) -> None:
    """lower <= low <= expected <= high, for any plan; and the ledger adds up to expected."""
    known = catalog.efficiency(layout.chip.name)
    assert known is not None
    lines = time_lines(layout)
    time = step_time(layout, lines)
    expected = float(expected_s(step_work(layout, lines), time, known))
    low, high = interval(layout, step_work(layout, lines), time, known)
    assert float(time.lower_s) <= low <= expected <= high
    ledger = expected_lines(layout, step_work(layout, lines), time, known)
    assert sum(line.value for line in ledger) == pytest.approx(expected, rel=1e-12)
    assert all(line.value > 0 for line in ledger)


def test_many_layouts_at_once_cost_what_each_costs() -> None:
    """The same functions price arrays."""
    request = REQUESTS["v5p", 4]
    candidates = candidates_of(("v5p", 4))
    rows = slice(0, 50)
    known = catalog.efficiency("v5p")
    assert known is not None
    many = of_rows(request, candidates.factors[rows], candidates.sequences[rows])
    lines = time_lines(many)
    together = expected_s(step_work(many, lines), step_time(many, lines), known)
    for i in range(50):
        choice = replace(candidates.choice(i), microbatches=1, remat="full")
        one = layout_of_choice(request, choice)
        own = time_lines(one)
        alone = expected_s(step_work(one, own), step_time(one, own), known)
        assert together[i] == pytest.approx(float(alone), rel=1e-12)


def of_rows(request: SearchRequest, factors: np.ndarray, sequences: np.ndarray) -> Training:
    links = find_links(request.torus, factors)
    return make_layout(
        request, sizes_by_name(axis_sizes(factors)), sequences, 1, POLICIES["full"], links
    )


def on_pods(layout: Training, pods: int) -> Training:
    return replace(layout, mesh={**layout.mesh, "pods": pods})


def test_slower_machines_and_more_slices_take_longer() -> None:
    """A lower share of the peak, and waiting for more slices, show in the step."""
    request, known = REQUESTS["v5p", 4], catalog.efficiency("v5p")
    assert known is not None
    layout = layout_of_choice(request, candidates_of(("v5p", 4)).choice(0))
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
    share = (known.slice_wait_s.value + 3 * known.slice_hop_s.value) / _APART_S
    own_s = sum(ledger[name] for name in own)
    assert own_s / 80 < _APART_S
    assert ledger["waiting for slices"] == pytest.approx(share * own_s)


def test_short_layers_are_less_certain() -> None:
    """The interval is wider where no published run is alike."""
    known = catalog.efficiency("v5p")
    assert known is not None
    layout = layout_of_choice(REQUESTS["v5p", 4], candidates_of(("v5p", 4)).choice(0))
    work = step_work(layout, time_lines(layout))
    short = replace(work, gathers_s=0.0, dcn_s=0.0, serial_s=0.0)
    longer = replace(short, matmul_s=100 * short.matmul_s)
    own_s = [sum(_own_step_parts(work, known).values()) for work in (short, longer)]
    assert skew_share(short, own_s[0]) < skew_share(longer, own_s[1]) == 1
    everywhere = replace(known, ranges={})
    assert unseen(short, {}, everywhere) > unseen(longer, {}, everywhere) == 0


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


def in_int8(model: Model | str) -> Spec:
    """A spec of a chip and a type of which no run is published."""
    return spec_of(
        model, chip="h100", topology="8", pods=1, sequences=64, length=2048,
        precision=Precision(compute="int8"),
    )  # fmt: skip


def test_without_published_runs_there_is_no_estimate() -> None:
    """A forecast in a type without runs says so by leaving it out, and has the bound."""
    forecast = make_plan(in_int8(TINY)).forecast
    assert forecast.step_s.expected is None
    assert forecast.mfu.expected is None
    assert forecast.expected_time == ()
    assert forecast.step_s.lower > 0


def test_without_published_runs_a_plan_warns_and_names_no_range() -> None:
    """Its figures are at best."""
    plan = make_plan(in_int8("llama2-7b"))
    assert (plan.forecast.days.low, plan.forecast.days.high) == (None, None)
    [warned] = [warning for warning in plan.warnings if warning.code == "no_expected"]
    assert warned.figures == {"chip": "h100 in int8"}
    shown = plan_screen(plan, "orch explain x.yaml")
    last = shown[shown.rindex("Plan: ") :]
    assert last.count("at least") == 2
    assert " to " not in last.partition("\n")[0]
    assert not any(warning.code == "no_expected" for warning in make_plan(spec_of()).warnings)


def test_a_plan_says_whose_runs_it_expects() -> None:
    learned = make_plan(spec_of("llama2-7b", pods=1)).forecast.learned_from
    assert learned is not None
    assert (learned.reference.software, learned.reference.runs) == ("maxtext", 38)
    assert learned.reference.longer == 0
    assert {other.software for other in learned.others} == {
        "axlearn",
        "levanter",
        "pytorch-xla",
        "t5x",
    }
    assert all(other.runs > 0 for other in learned.others)
    assert make_plan(in_int8("llama2-7b")).forecast.learned_from is None


def layout_and_work(spec: Spec) -> tuple[Training, StepWork]:
    """The layout that a spec's plan has, and its work."""
    request = search_request(spec)
    layout = layout_of_choice(request, chosen(request))
    return layout, step_work(layout, time_lines(layout))


# --- what nothing hides


@pytest.mark.parametrize("axis", ["pods", "data"])
def test_accumulated_gradients_are_reduced_in_series(axis: str) -> None:
    """With microbatches the reduction begins when no matmul is left: it adds to the lower bound."""
    spec = spec_of("llama-1b", chip="v5e", topology="2x2", pods=64, sequences=512)
    if axis == "data":
        spec = spec_of("llama-1b", chip="v5e", topology="4x4", pods=1, sequences=64,
                       mesh=MeshRequest(data=4))  # fmt: skip
    request = search_request(spec)
    layout = layout_of_choice(request, chosen(request))
    layout = replace(layout, microbatches=2)
    lines = time_lines(layout)
    reduced = [line for line in lines if line.resource == axis]
    assert sum(line.value for line in reduced) > 0
    assert all(line.serial_s == pytest.approx(line.value) for line in reduced)
    compute_s = sum(line.value for line in lines if line.resource == "mxu")
    reduction_s = sum(line.value for line in reduced)
    time, known = step_time(layout, lines), catalog.efficiency("v5e")
    assert known is not None
    assert float(time.lower_s) >= compute_s + reduction_s
    series = step_parts(step_work(layout, lines), known)["serial_collectives"]
    assert float(series) >= reduction_s
    assert float(expected_s(step_work(layout, lines), time, known)) > float(time.lower_s)


def test_two_microbatches_on_64_slices_of_four_chips_take_nearly_two_seconds() -> None:
    """1B: each chip sends a quarter of the gradients, in bf16, twice over 25 Gb/s: 0.39 s."""
    spec = spec_of("llama-1b", chip="v5e", topology="2x2", pods=64, sequences=1024, remat="none")
    plan = make_plan(spec)
    [pods] = [line for line in plan.forecast.time if line.name == "pods"]
    counted_s = 2 * 63 / 64 * plan.model.parameters / 4 * 2 / 3.125e9
    assert plan.batch.microbatches == 2
    assert pods.serial_s == pods.value == pytest.approx(counted_s, rel=0.01)
    [series] = [line for line in plan.forecast.expected_time if line.kind == "serial_collectives"]
    assert series.value >= counted_s * 0.99
    assert plan.forecast.step_s.expected is not None
    assert plan.forecast.step_s.expected > 1.9


def test_of_reductions_layer_by_layer_the_first_layer_and_the_embedding_come_last() -> None:
    """The others run behind the layers before them."""
    spec = spec_of("llama3-8b", chip="v5p", topology="4x4x4", pods=2, sequences=256)
    layout, _ = layout_and_work(spec)
    [pods] = [line for line in time_lines(layout) if line.name == "pods"]
    model, wire = layout.model, layout.gradient_bytes
    last = layout.network.embedding.elements + layout.total_elements(
        layout.network.blocks[0].matmuls
    ) * layout.ways("heads")
    owned = last / layout.devices_along(("fsdp", "sequence", "tensor", "data"))
    sent = 2 * owned * wire * (2 - 1) / 2
    assert layout.microbatches == 1
    assert pods.serial_s == pytest.approx(sent / pods.inputs["rate"], rel=0.01)
    assert pods.serial_s < pods.value / model.layers * 10


def test_links_that_are_slower_than_the_chip_show_in_full() -> None:
    """Gathers hide behind a device's own work only as far as there is any."""
    layout = layout_of_choice(REQUESTS["v5p", 1], candidates_of(("v5p", 1)).choice(0))
    known = catalog.efficiency("v5p")
    assert known is not None
    work = step_work(layout, time_lines(layout))
    own_s = float(sum(_own_step_parts(work, known).values()))
    little = step_parts(replace(work, gathers_s=own_s / 2, dcn_s=0.0), known)["exposed_gathers"]
    much = step_parts(replace(work, gathers_s=9 * own_s, dcn_s=own_s), known)["exposed_gathers"]
    assert float(little) == pytest.approx(known.exposed_gathers.value * own_s / 2)
    assert float(much) == pytest.approx(8 * own_s)


def test_key_and_value_gathers_hide_behind_nothing() -> None:
    """Attention over split sequences waits for all keys; tensor exchanges go piece by piece."""
    mesh = MeshRequest(sequence=4, tensor=2)
    spec = spec_of("llama3-8b", topology="4x4x4", pods=1, sequences=64, length=32_768, mesh=mesh)
    layout, work = layout_and_work(spec)
    lines = {line.kind: line for line in time_lines(layout) if line.kind != "latency"}
    whole_s = lines["kv_gather"].value + lines["kv_scatter"].value
    assert work.serial_s >= whole_s / ICI_RATE
    piecewise_s = lines["activation_gather"].value + lines["activation_scatter"].value
    assert work.tensor_s == pytest.approx(piecewise_s / ICI_RATE)


def test_a_plan_pays_no_overhead_of_runs() -> None:
    """A forecast is of a steady step; averages over whole runs teach it nothing between steps."""
    known = catalog.efficiency("v5p")
    assert known is not None
    assert known.run_overhead_s.value > 0
    layout = layout_of_choice(REQUESTS["v5p", 1], candidates_of(("v5p", 1)).choice(0))
    lines = time_lines(layout)
    time = step_time(layout, lines)
    dear = replace(known, run_overhead_s=replace(known.run_overhead_s, value=9.0))
    assert expected_s(step_work(layout, lines), time, dear) == expected_s(
        step_work(layout, lines), time, known
    )


# --- outside the published runs


TINY_STEP = spec_of(TINY, topology="2x2x1", pods=2, sequences=64, length=128)


@pytest.mark.parametrize(
    ("spec", "axes"),
    [
        (spec_of(), {"chips", "data", "sequence", "links_share", "tokens"}),
        (spec_of(topology="4x4x8", pods=1, sequences=128), set()),
        (TINY_STEP, {"length", "step_s"}),
        (spec_of(chip="tpu7x", topology="8x8x8", pods=1), {"chips"}),
        (spec_of("llama3-8b", topology="4x4x8", pods=1, mesh=MeshRequest(data=2)), {"data"}),
        (
            spec_of(
                chip="v6e",
                topology="8x16",
                pods=2,
                sequences=512,
                remat="full",
                mesh=MeshRequest(fsdp=128, fsdp_dcn=2),
            ),
            {"fsdp_dcn"},
        ),
        (spec_of(TINY, chip="h100", topology="8", pods=1, sequences=64), {"step_s"}),
    ],
    ids=["70B on 35,840", "70B on 128", "tiny", "512 tpu7x", "data 2", "shared", "tiny on H100"],
)
def test_a_plan_warns_along_each_axis_that_it_leaves(spec: Spec, axes: set[str]) -> None:
    """With its value and the range of the runs; its digest does not depend on it."""
    plan = make_plan(spec)
    outside_runs = plan.forecast.extrapolations
    assert axes <= {run.axis for run in outside_runs}
    assert bool(axes) == bool(outside_runs)
    assert all(not run.low <= run.value <= run.high for run in outside_runs)
    warned = [warning.figures for warning in plan.warnings if warning.code == "extrapolation"]
    assert warned == [asdict(run) for run in outside_runs]
    assert plan_digest(replace(plan, warnings=())) == plan.digest


# Without stages no bubble is unsure.
@pytest.mark.parametrize(
    "axis", [axis for axis in AXES if not axis.endswith("mfu") and axis != "stages"]
)
def test_the_interval_is_wider_along_each_axis(axis: str) -> None:
    """A range that ends before the plan widens its interval; one that holds it does not."""
    spec = spec_of(
        "llama3-8b", topology="4x4x8", pods=2, length=32_768, sequences=128, remat="offload_input",
        mesh=MeshRequest(data=2, sequence=2, tensor=2),
    )  # fmt: skip
    layout, work = layout_and_work(spec)
    known = catalog.efficiency("v5p")
    assert known is not None
    lines = time_lines(layout)
    time = step_time(layout, lines)
    values = axis_values(layout, work, float(expected_s(step_work(layout, lines), time, known)))
    value = values[axis]
    inside = {name: Range(low=one / 2, high=one * 2) for name, one in values.items()}
    below = Range(low=value / 9, high=value / 3)
    above = Range(low=value * 3, high=value * 9)
    apart = above if axis in _BELOW_ALONE else below
    sure = replace(known, ranges=inside)
    unsure = replace(known, ranges={**inside, axis: apart})
    width = [
        high / low
        for low, high in (interval(layout, work, time, efficiency) for efficiency in (sure, unsure))
    ]
    assert extrapolations(values, sure.ranges) == ()
    [found] = extrapolations(values, unsure.ranges)
    assert (found.axis, found.value) == (axis, value)
    assert width[1] > width[0]


@pytest.mark.parametrize("remat", ["auto", "none"])
def test_an_interval_covers_a_run_with_as_many_slices_and_one_microbatch(remat: str) -> None:
    """16B on 32 slices of 256 v5e took 11.8 s; a plan with microbatches expects less."""
    spec = spec_of(MAXTEXT_16B, chip="v5e", topology="16x16", pods=32, sequences=49_152,
                   length=2048, tolerance=0, remat=remat)  # fmt: skip
    plan = make_plan(spec)
    low, high = plan.forecast.step_s.low, plan.forecast.step_s.high
    assert plan.batch.microbatches > 1
    assert low is not None
    assert high is not None
    assert low < 11.843 < high


def test_no_published_run_is_an_extrapolation() -> None:
    """The ranges are those of the runs. How collectives hide is known from the reference alone."""
    samples, _ = published_samples(*DENSE)
    for sample in samples:
        known = catalog.efficiency(sample.run.chip)
        assert known is not None
        outside = {
            extrapolation.axis for extrapolation in extrapolations(sample.axis_values, known.ranges)
        }
        assert outside <= (set() if _is_reference(sample) else _OF_COLLECTIVES)


SMALL_SLICES = {
    "v5e": ("4x4", "4x8", "8x8"),
    "v5p": ("2x2x4", "4x4x4"),
    "v6e": ("4x4", "4x8", "8x8"),
    "tpu7x": ("2x2x2", "2x2x4"),
}
MODELS = (
    "llama3-8b", "qwen3-8b", "gemma3-27b", "llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b"
)  # fmt: skip


@pytest.mark.parametrize("specs", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_no_runner_up_is_surely_expected_to_be_faster(specs: int) -> None:
    """Of random specs; those that accumulate more gradients aside, whose gain no run shows."""
    dice, planned = random.Random(specs), 0
    while planned < specs:
        chip = dice.choice([*SMALL_SLICES])
        spec = spec_of(
            dice.choice(MODELS),
            chip=chip,
            topology=dice.choice(SMALL_SLICES[chip]),
            pods=dice.choice((1, 1, 2, 4)),
            length=dice.choice((2048, 4096, 8192)),
            sequences=dice.choice((64, 128, 256, 512)),
        )
        try:
            first, *others = make_plans(spec, 6)
        except OrchError:
            continue
        planned += 1
        known = catalog.efficiency(chip)
        assert known is not None
        least = expected_per_token_of(first) / exp(known.reference_spread.value) * (1 - 1e-9)
        for other in others:
            if other.batch.microbatches <= first.batch.microbatches:
                assert expected_per_token_of(other) >= least, (spec, other.mesh, other.remat)


def test_rows_of_experts_decide_between_meshes() -> None:
    """Qwen3-30B-A3B on 64 v6e: with `expert 4` or `tensor 4` rows move more often, or further."""
    spec = spec_of("qwen3-30b-a3b", chip="v6e", topology="8x8", pods=1, sequences=256)
    [found] = make_plans(spec, 1)
    assert {axis: size for axis, size in found.mesh.items() if size > 1} == {"fsdp": 64}


def expected_per_token_of(plan: Plan) -> float:
    assert plan.forecast.step_s.expected is not None
    return plan.forecast.step_s.expected / plan.batch.tokens
