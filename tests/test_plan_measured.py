"""Forecasts on measured ceilings: what is counted, what is asked of a machine, what it comes to."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from orchestrator.plan.messages import messages, ways

from orchestrator import catalog
from orchestrator import spec as specs
from orchestrator.errors import SpecError
from orchestrator.network.rematerialization import policy
from orchestrator.plan import benchmarks, calibrated, flops
from orchestrator.plan.kernels import pieces
from orchestrator.plan.layout import Layout
from orchestrator.plan.planner import make_plan, too_long
from orchestrator.plan.rehearsal import rehearse
from orchestrator.plan.torus import NO_LINKS
from orchestrator.render import plan as render
from orchestrator.types import codec
from orchestrator.types.chip_profile import ChipProfile
from orchestrator.types.plan import Plan
from tests.asks import TINY, spec_of
from tests.census import Counted, census
from tests.conftest import ROOT
from tests.profiles import (
    EMPTY,
    FLOPS_PER_S,
    H200,
    LATENCY_S,
    exchange_time,
    kernel_time,
    profile_for,
)
from tests.trainer_plans import plan_of
from trainers.contract import load
from trainers.mesh import abstract_mesh_of

SHAPES: list[dict[str, Any]] = [
    {"pods": 2, "fsdp": 2, "tensor": 2, "gradient_reduction": "per_layer"},
    {"pods": 2, "data": 2, "sequence": 2, "gradient_reduction": "per_layer"},
    {"pods": 2, "data": 2, "sequence": 2},
    {"tensor": 8, "microbatches": 2, "remat": "none"},
    {"fsdp": 4, "tensor": 4, "remat": "keep_mlp"},
    {"data": 3, "fsdp": 2, "sequences": 12},
]


def layout_of(plan: Plan) -> Layout:
    return Layout(
        chip=catalog.chip(plan.chip),
        model=plan.model,
        precision=plan.precision,
        remat=policy(plan.remat),
        length=plan.batch.length,
        sequences=plan.batch.sequences,
        microbatches=plan.batch.microbatches,
        links=NO_LINKS,
        **plan.mesh,
    )


def counted(plan: Plan) -> Counter[Counted]:
    """The plan's messages as the census has them: bytes that a device puts in, all axes named."""
    layout, found = layout_of(plan), Counter[Counted]()
    for one in messages(layout, plan.gradient_reduction == "per_layer"):
        into = one.bytes / (ways(layout, one.axes) if one.kind == "all-gather" else 1)
        over_tensor = (*one.axes, "copies") if one.axes[-1] == "tensor" else one.axes
        found[one.kind, one.dtype, over_tensor, float(into)] += int(one.calls)
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_message_of_the_trainer_is_counted(shape: dict[str, Any]) -> None:
    """Kind, type, group, bytes and number of each collective are those of the traced step."""
    plan = plan_of(**shape)
    program = load("llama").program(plan, abstract_mesh_of(plan))
    traced = program.step.trace(program.state, program.batch).jaxpr
    assert counted(plan) == census(traced.jaxpr)


def test_a_plan_asks_for_what_its_forecast_reads() -> None:
    """With all of it there is a forecast; with any kind of it missing, an error names what."""
    plan = plan_of(pods=2, fsdp=2, tensor=2, hosts=2)
    profile = profile_for(plan)
    nothing = calibrated.wishes(plan, profile)
    assert (nothing.kernels, nothing.exchanges) == ((), ())
    calibrated.on_profile(plan, profile)
    for partial in (replace(profile, kernels=()), replace(profile, exchanges=())):
        with pytest.raises(SpecError, match="orch calibrate measures it"):
            calibrated.on_profile(plan, partial)


def test_a_machine_is_asked_only_for_what_is_new() -> None:
    """Another mesh of the same machine needs other groups, and no kernel again."""
    plan, other = plan_of(pods=2, fsdp=4, hosts=2), plan_of(pods=2, fsdp=2, tensor=2, hosts=2)
    more = calibrated.wishes(other, profile_for(plan))
    assert more.kernels == ()
    assert {wish.kind for wish in more.exchanges} >= {"all-gather", "permute"}
    both = benchmarks.merged(profile_for(plan), profile_for(other))
    for one in (plan, other):
        assert calibrated.wishes(one, both).exchanges == ()


def test_the_plan_names_the_profile_and_depends_on_nothing_else() -> None:
    """Another profile is another plan; the same one gives the same bytes."""
    plan = plan_of(pods=2, tensor=2, hosts=2)
    profile = profile_for(plan)
    made = calibrated.on_profile(plan, profile)
    assert made.chip_profile == codec.digest(profile)
    assert codec.to_json(made) == codec.to_json(calibrated.on_profile(plan, profile))
    later = calibrated.on_profile(plan, replace(profile, measured_on="2026-01-03"))
    assert later.digest != made.digest != plan.digest


def on_flat_rates(plan: Plan) -> tuple[Plan, ChipProfile]:
    profile = profile_for(plan)
    return calibrated.on_profile(plan, profile), profile


def test_devices_of_one_machine_take_turns() -> None:
    """Twice the devices for twice the batch is twice the seconds; the peak is of the machine."""
    few, _ = on_flat_rates(plan_of(data=4, sequences=16))
    many, _ = on_flat_rates(plan_of(data=8, sequences=32))
    for name in ("matmuls", "attention", "gates"):
        ratio = line(many, name).value / line(few, name).value
        assert ratio == pytest.approx(2)
    for plan in (few, many):
        assert plan.forecast.peak_flops_per_s * plan.devices == pytest.approx(FLOPS_PER_S)


def test_the_lines_add_up_to_what_is_expected() -> None:
    """What cannot be left out at the best rate is the bound; MFU is of the same FLOPs as ever."""
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
    counted_flops = flops.model_flops_per_step(made.model, made.batch)
    assert forecast.model_flops_per_step == counted_flops
    reached = counted_flops / forecast.step_s.unoverlapped / FLOPS_PER_S
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
    """No MFU is above 100 %, with attention however cheap; what is done again lowers it."""
    loaded = specs.load(ROOT / "specs" / f"{spec}.yaml", setting)
    plan = rehearse(loaded, make_plan(loaded)).plan
    forecast = on_flat_rates(plan)[0].forecast
    assert 0 < forecast.mfu.lower <= 1 + 1e-12
    if plan.remat == "none" and not layout_of(plan).copied_heads:
        assert forecast.mfu.lower == pytest.approx(1)


def of_gpus(count: str) -> Plan:
    asked = spec_of(TINY, chip="h200", topology=count, pods=1, sequences=64, length=128)
    return make_plan(asked)


def test_a_chips_own_profile_makes_its_forecast() -> None:
    """One device does all in turns: the sum is expected. Bound, peak and price stay datasheets'."""
    plan = of_gpus("1")
    made = calibrated.on_its_chips(plan, profile_for(plan, H200))
    was, step_s = plan.forecast, made.forecast.step_s
    assert made.chip_profile is not None
    assert made.digest != plan.digest
    assert step_s.lower == was.step_s.lower
    assert step_s.expected == pytest.approx(sum(line.value for line in made.forecast.time))
    assert made.forecast.peak_flops_per_s == was.peak_flops_per_s
    assert made.forecast.dollars is not None
    assert "cores" in {line.resource for line in made.forecast.time}
    screen = render.screen(made, "orch plan x.yaml")
    assert f"profile {codec.short(made.chip_profile)}" in screen
    assert "as measured" in screen


def test_what_several_chips_hide_is_not_known() -> None:
    """Every group of eight devices has its times; no step is expected of their sum."""
    plan = of_gpus("8")
    wanted = benchmarks.of_own_devices(plan.devices)
    profile = replace(
        EMPTY,
        machine=H200,
        kernels=tuple(map(kernel_time, wanted.kernels)),
        exchanges=tuple(map(exchange_time, wanted.exchanges)),
    )
    made = calibrated.on_its_chips(plan, profile)
    assert made.forecast.step_s.expected is None
    assert made.forecast.step_s.unoverlapped >= made.forecast.step_s.lower
    groups = {(one.ways, one.stride) for one in wanted.exchanges}
    assert groups == {(2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1)}


def test_a_profile_of_other_chips_is_refused() -> None:
    """An H200 says nothing of an H100, nor a CPU of either."""
    plan = of_gpus("1")
    for kind in ("NVIDIA H100 80GB HBM3", "cpu"):
        other = profile_for(plan, replace(H200, device_kind=kind))
        with pytest.raises(SpecError, match=f"the profile is of {kind}, the plan of h200"):
            calibrated.on_its_chips(plan, other)


def test_messages_cost_their_number_and_their_bytes() -> None:
    """A thousand small ones are a thousand latencies."""
    made, _ = on_flat_rates(plan_of(pods=2, data=1, fsdp=2, hosts=2))
    pods = line(made, "pods")
    assert pods.value > pods.inputs["calls"] * LATENCY_S
    assert pods.value == pytest.approx(
        pods.inputs["calls"] * LATENCY_S + pods.inputs["bytes"] / 1e9, rel=0.01
    )


@pytest.mark.parametrize(
    ("size_bytes", "seconds"), [(1, 1), (60, 2), (110, 3), (160, 8), (310, 23)]
)
def test_a_message_costs_what_sizes_like_its_own_do(size_bytes: int, seconds: float) -> None:
    """Straight between the two beside it, and on from the last two."""
    points = [(10, 1.0), (110, 3.0), (210, 13.0)]
    assert calibrated.between_sizes(points, size_bytes) == pytest.approx(seconds)


def test_what_all_parameters_take_is_one_update() -> None:
    """Each is met once a step: no cache holds them, however small each is."""
    plan = plan_of(fsdp=2)
    found = {piece.name: piece for piece in pieces(layout_of(plan))}
    update = found["optimizer update"]
    assert (update.calls, update.amount) == (1, layout_of(plan).owned_elements)


@pytest.mark.parametrize(("data", "together"), [(1, 9), (2, 1)])
def test_gradients_that_do_not_wait_are_timed_together(data: int, together: int) -> None:
    """Those of a layer go to the other pods beside one another, unless they go as one."""
    plan = plan_of(pods=2, data=data, fsdp=2, hosts=2, gradient_reduction="per_layer")
    sent = [one for one in benchmarks.all_messages(plan, layout_of(plan)) if one.name == "pods"]
    assert {one.together for one in sent} == {together, 1}
    wanted = calibrated.wishes(plan, EMPTY).exchanges
    assert {wish.together for wish in wanted if wish.kind == "all-reduce"} == {together, 1}
    alone = replace(profile_for(plan), exchanges=())
    times = tuple(exchange_time(replace(wish, together=1)) for wish in wanted)
    lacking = calibrated.wishes(plan, replace(alone, exchanges=times)).exchanges
    assert {wish.together for wish in lacking} == {together} - {1}


def test_a_backward_pass_is_timed_with_its_product() -> None:
    """Three products at once, and those that are only repeated alone; four of each in a block."""
    plan = plan_of(tensor=2, remat="full")
    found = {piece.name: piece for piece in pieces(layout_of(plan))}
    assert (found["matmuls"].kernel, found["recompute"].kernel) == ("matmul", "matmul forward")
    each = 4 * plan.model.layers
    assert found["matmuls"].calls == each == found["recompute"].calls
    assert found["unembedding"].calls == 1


@pytest.mark.parametrize(
    ("amount", "seconds"), [(0.1, 0.1), (0.5, 0.5), (1, 1), (10, 2), (100, 4), (1000, 40)]
)
def test_seconds_between_and_beyond_what_was_timed(amount: float, seconds: float) -> None:
    """Straight in logarithms between two points, in proportion outside."""
    points = [(1.0, 1.0), (100.0, 4.0)]
    assert calibrated.interpolated(points, amount) == pytest.approx(seconds)


def test_a_tiny_amount_still_costs_its_call() -> None:
    """Nothing is for free, however small."""
    assert calibrated.interpolated([(1.0, 1.0)], 1e-9) == pytest.approx(calibrated.OVERHEAD)


def test_a_profile_survives_json() -> None:
    """It is kept as text, and its digest is of that."""
    profile = profile_for(plan_of(pods=2, tensor=2, hosts=2))
    read = codec.from_json(codec.to_json(profile), ChipProfile)
    assert codec.digest(read) == codec.digest(profile) != codec.digest(EMPTY)


def line(plan: Plan, name: str) -> Any:
    return next(one for one in plan.forecast.time if one.name == name)


def test_a_forecast_of_a_profile_warns_of_no_published_runs() -> None:
    """What was learned from them has no part in it."""
    plan = make_plan(spec_of(TINY, topology="2x2x1", pods=2, sequences=64, length=128))
    assert any("expected" in warning for warning in plan.warnings)
    made, _ = on_flat_rates(plan)
    assert made.warnings == too_long(made)
