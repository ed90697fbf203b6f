"""Forecasts at measured rates: what is counted, what a profile needs, and what it comes to."""

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator import spec as specs
from orchestrator.calibrate.measure import accelerator_benchmarks
from orchestrator.errors import SpecError
from orchestrator.plan import calibrated, flops
from orchestrator.plan.messages import Message, messages
from orchestrator.plan.plan_warnings import too_long
from orchestrator.plan.planner import make_plan
from orchestrator.plan.rehearsal import rehearse
from orchestrator.render import plan_screen as render
from orchestrator.types import codec
from orchestrator.types.chip_profile import Benchmark, ChipProfile, Timing
from orchestrator.types.plan import Plan
from tests.census import Counted, census
from tests.conftest import ROOT
from tests.example_specs import TINY, spec_of
from tests.profiles import EMPTY, H200, LATENCY_S, PER_S, profile_for, timing_of
from tests.trainer_plans import plan_of
from trainers.contract import load
from trainers.mesh import abstract_mesh_of

SHAPES: list[dict[str, Any]] = [
    {"pods": 2, "fsdp": 2, "tensor": 2, "gradient_reduction": "per_layer"},
    {"pods": 2, "data": 2, "sequence": 2, "gradient_reduction": "per_layer"},
    {"pods": 2, "data": 2, "sequence": 2, "microbatches": 2},
    {"tensor": 8, "microbatches": 2, "remat": "none"},
    {"fsdp": 4, "tensor": 4, "remat": "keep_mlp"},
    {"data": 3, "fsdp": 2, "sequences": 12, "microbatches": 2},
]


def layout_of(plan: Plan) -> Any:
    return calibrated.layout_of(plan, catalog.chip(plan.chip))


def counted(plan: Plan) -> Counter[Counted]:
    """The plan's messages as the census has them: bytes that a device puts in, all axes named."""
    counts = Counter[Counted]()
    for one in messages(layout_of(plan), processes=1):
        into = one.bytes / (one.ways if one.operation == "all-gather" else 1)
        counts[one.operation, one.dtype, traced_axes(plan, one), float(into)] += int(one.calls)
    return counts


def traced_axes(plan: Plan, one: Message) -> tuple[str, ...]:
    """The axes as the trainer names them, which splits `tensor` where kv heads are copied."""
    if one.axes[-1] != "tensor":
        return one.axes
    whole = one.ways == prod(plan.mesh[axis] for axis in one.axes)
    return (*one.axes, "copies") if whole else ("copies",)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_message_of_the_trainer_is_counted(shape: dict[str, Any]) -> None:
    """Kind, type, group, bytes and number of each collective are those of the traced step."""
    plan = plan_of(**shape)
    program = load("llama").program(plan, abstract_mesh_of(plan))
    traced = program.step.trace(program.state, program.batch).jaxpr
    assert counted(plan) == census(traced.jaxpr)


def test_a_forecast_needs_exactly_the_missing_benchmarks() -> None:
    """With all of it there is a forecast; without any one timing an error names what is missing."""
    plan = plan_of(pods=2, fsdp=2, tensor=2, hosts=2)
    profile = profile_for(plan)
    assert calibrated.missing(plan, profile) == ()
    calibrated.with_profile(plan, profile)
    for timing in profile.timings:
        others = tuple(one for one in profile.timings if one != timing)
        with pytest.raises(SpecError, match="orch calibrate measures it"):
            calibrated.with_profile(plan, replace(profile, timings=others))


def test_another_mesh_of_as_many_devices_needs_other_groups_alone() -> None:
    """What devices do alone is known already."""
    plan, other = plan_of(pods=2, fsdp=4, hosts=2), plan_of(pods=2, fsdp=2, tensor=2, hosts=2)
    more = calibrated.missing(other, profile_for(plan))
    assert {benchmark.operation for benchmark in more} >= {"all-gather", "permute"}
    assert all(benchmark.group > 1 for benchmark in more)


def test_the_plan_names_the_profile_and_depends_on_nothing_else() -> None:
    """Another profile is another plan; the same one gives the same bytes."""
    plan = plan_of(pods=2, tensor=2, hosts=2)
    profile = profile_for(plan)
    made = calibrated.with_profile(plan, profile)
    assert made.chip_profile == codec.digest(profile)
    assert codec.to_json(made) == codec.to_json(calibrated.with_profile(plan, profile))
    later = calibrated.with_profile(plan, replace(profile, measured_on="2026-01-03"))
    assert later.digest != made.digest != plan.digest


def on_flat_rates(plan: Plan) -> tuple[Plan, ChipProfile]:
    profile = profile_for(plan)
    return calibrated.with_profile(plan, profile), profile


def test_devices_of_one_machine_take_turns() -> None:
    """Twice the devices with twice the batch take twice the seconds; the machine has one peak."""
    few, _ = on_flat_rates(plan_of(data=4, sequences=16))
    many, _ = on_flat_rates(plan_of(data=8, sequences=32))
    for name in ("matmuls", "attention", "between matmuls"):
        ratio = line(many, name).value / line(few, name).value
        assert ratio == pytest.approx(2)
    for plan in (few, many):
        assert plan.forecast.peak_flops_per_s * plan.devices == pytest.approx(PER_S)


def test_the_lines_add_up_to_what_is_expected() -> None:
    """The lines add up to the expected step, above the bound; each names the profile."""
    made, _ = on_flat_rates(plan_of(pods=2, tensor=2, hosts=2))
    forecast = made.forecast
    assert sum(line.value for line in forecast.time) == pytest.approx(forecast.step_s.unoverlapped)
    assert 0 < forecast.step_s.lower < forecast.step_s.unoverlapped
    assert forecast.step_s.expected == forecast.step_s.unoverlapped
    assert forecast.step_s.low is not None
    assert forecast.step_s.high is not None
    assert forecast.step_s.lower <= forecast.step_s.low < forecast.step_s.expected
    assert forecast.step_s.expected < forecast.step_s.high
    assert forecast.expected_time == forecast.time
    assert made.chip_profile is not None
    profile = f"profile {codec.short(made.chip_profile)}"
    assert all(line.sources == (profile,) for line in forecast.time)
    counted_flops = flops.model_flops_per_step(made.model, made.batch)
    assert forecast.model_flops_per_step == counted_flops
    reached = counted_flops / forecast.step_s.unoverlapped / PER_S
    assert forecast.mfu.unoverlapped == pytest.approx(reached)
    assert forecast.mfu.unoverlapped < forecast.mfu.lower < 1
    assert forecast.dollars is None


@pytest.mark.parametrize("spec", ["llama3_70b_4pod", "llama3_8b_v6e_2slice", "tiny_2pod"])
@pytest.mark.parametrize(
    "setting", [(), ("experiment.remat=none",), ("resources.pods=1",)], ids=str
)
def test_the_bound_of_a_rehearsal_counts_what_mfu_counts(
    spec: str, setting: tuple[str, ...]
) -> None:
    """No MFU is above 100 %, however cheap attention is; recomputation lowers it."""
    loaded = specs.load(ROOT / "specs" / f"{spec}.yaml", setting)
    plan = rehearse(loaded, make_plan(loaded)).plan
    forecast = on_flat_rates(plan)[0].forecast
    assert 0 < forecast.mfu.lower <= 1 + 1e-12
    if plan.remat == "none" and not layout_of(plan).copied_heads:
        assert forecast.mfu.lower == pytest.approx(1)


GPUS = replace(EMPTY, machine=H200)


def of_gpus(count: str) -> Plan:
    spec = spec_of(TINY, chip="h200", topology=count, pods=1, sequences=64, length=128)
    return make_plan(spec)


def test_a_chips_own_profile_makes_its_forecast() -> None:
    """A single device overlaps nothing, so the sum is expected. Bound and peak stay."""
    plan = of_gpus("1")
    made = calibrated.with_own_profile(plan, profile_for(plan, H200))
    was, step_s = plan.forecast, made.forecast.step_s
    assert made.chip_profile is not None
    assert made.digest != plan.digest
    assert step_s.lower == was.step_s.lower
    assert step_s.expected == pytest.approx(sum(line.value for line in made.forecast.time))
    assert made.forecast.peak_flops_per_s == was.peak_flops_per_s
    assert made.forecast.dollars is not None
    assert "cores" in {line.resource for line in made.forecast.time}
    screen = render.plan_screen(made, "orch plan x.yaml")
    assert f"profile {codec.short(made.chip_profile)}" in screen


def test_a_chips_own_profile_keeps_the_price_of_the_spec() -> None:
    """`dollars_per_chip_hour` of the spec comes before the list price."""
    spec = spec_of(TINY, chip="h200", topology="1", pods=1, sequences=64, length=128)
    plan = make_plan(replace(spec, resources=replace(spec.resources, dollars_per_chip_hour=9.0)))
    made = calibrated.with_own_profile(plan, profile_for(plan, H200))
    assert made.forecast.dollars_per_chip_hour == 9.0
    assert made.forecast.dollars is not None
    assert made.forecast.dollars.lower == pytest.approx(9.0 * made.forecast.chip_hours.lower)


def test_the_overlap_of_several_chips_is_unknown() -> None:
    """Eight devices have a time for every group, and no expected step."""
    plan = of_gpus("8")
    benchmarks = [*accelerator_benchmarks(plan.devices), *calibrated.missing(plan, GPUS)]
    made = calibrated.with_own_profile(
        plan, replace(GPUS, timings=tuple(map(timing_of, benchmarks)))
    )
    assert made.forecast.step_s.expected is None
    assert made.forecast.step_s.unoverlapped >= made.forecast.step_s.lower


def test_a_machines_own_devices_are_measured_in_every_group() -> None:
    """A plan on them finds its collectives, whatever its mesh."""
    benchmarks = accelerator_benchmarks(8)
    groups = {(one.group, one.stride) for one in benchmarks if one.group > 1}
    assert groups == {(2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1)}
    needed = calibrated.missing(of_gpus("8"), GPUS)
    assert {one for one in needed if one.group > 1} <= set(benchmarks)


def test_a_profile_of_other_chips_is_an_error() -> None:
    """An H200 does not describe an H100, nor a CPU either."""
    plan = of_gpus("1")
    for kind in ("NVIDIA H100 80GB HBM3", "cpu"):
        other = profile_for(plan, replace(H200, device_kind=kind))
        with pytest.raises(SpecError, match=f"the profile is of {kind}, the plan of h200"):
            calibrated.with_own_profile(plan, other)


@pytest.mark.parametrize("amount_seconds", [(1, 1), (60, 2), (110, 3), (160, 8), (310, 23)])
def test_seconds_lie_on_straight_lines_between_measured_amounts(
    amount_seconds: tuple[float, float],
) -> None:
    """Beyond the last they go on; less than the smallest costs as much as that one."""
    benchmark = Benchmark(operation="copy", dtype="bf16", devices=1)
    points = ((10.0, 1.0), (110.0, 3.0), (210.0, 13.0))
    timing = Timing(benchmark=benchmark, points=points, best_per_s=1.0, spread=0.0)
    amount, seconds = amount_seconds
    assert timing.seconds(amount) == pytest.approx(seconds)


def test_collectives_that_travel_together_share_their_latency() -> None:
    """Gradients of a layer do not wait for one another, unless they go as one."""
    plan = plan_of(pods=2, fsdp=2, hosts=2, gradient_reduction="per_layer")
    layout = layout_of(plan)
    sent = [one for one in messages(layout, processes=plan.hosts) if one.name == "pods"]
    assert {one.together for one in sent} == {9, 1}
    made, _ = on_flat_rates(plan)
    latencies = sum(one.calls / one.together for one in sent) * LATENCY_S
    moved = sum(one.calls * one.bytes for one in sent)
    assert line(made, "pods").value == pytest.approx(latencies + moved / 1e9, rel=0.01)


def test_a_profile_survives_json() -> None:
    """It is stored as JSON, and its digest is of that text."""
    profile = profile_for(plan_of(pods=2, tensor=2, hosts=2))
    read = codec.from_json(codec.to_json(profile), ChipProfile)
    assert codec.digest(read) == codec.digest(profile) != codec.digest(EMPTY)


def line(plan: Plan, name: str) -> Any:
    return next(one for one in plan.forecast.time if one.name == name)


def test_a_forecast_of_a_profile_warns_of_no_published_runs() -> None:
    """What was learned from them has no part in it."""
    plan = make_plan(spec_of(TINY, topology="2x2x1", pods=2, sequences=64, length=128))
    assert {one.code for one in plan.warnings} == {"extrapolation"}
    made, _ = on_flat_rates(plan)
    assert made.warnings == tuple(too_long(made))
