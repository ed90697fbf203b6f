"""Forecasts on measured ceilings: what is counted, what is asked of a machine, what it comes to."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator.errors import Unservable
from orchestrator.plan import flops, measured, wishes
from orchestrator.plan.layout import Layout
from orchestrator.plan.messages import messages, ways
from orchestrator.plan.remat import policy
from orchestrator.plan.torus import NO_LINKS
from orchestrator.stations import codec
from orchestrator.stations.plan import Plan
from orchestrator.stations.profile import ChipProfile
from tests.census import Counted, census
from tests.profiles import EMPTY, FLOPS_PER_S, LATENCY_S, profile_for
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
        found[one.kind, over_tensor, float(into)] += int(one.calls)
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_message_of_the_trainer_is_counted(shape: dict[str, Any]) -> None:
    """Kind, group, bytes and number of each collective are those of the traced step."""
    plan = plan_of(**shape)
    program = load("llama").program(plan, abstract_mesh_of(plan))
    traced = program.step.trace(program.state, program.batch).jaxpr
    assert counted(plan) == census(traced.jaxpr)


def test_a_plan_asks_for_what_its_forecast_reads() -> None:
    """With all of it there is a forecast; with any kind of it missing, an error names what."""
    plan = plan_of(pods=2, fsdp=2, tensor=2, hosts=2)
    profile = profile_for(plan)
    nothing = measured.wishes(plan, profile)
    assert (nothing.kernels, nothing.exchanges) == ((), ())
    measured.on_profile(plan, profile)
    for partial in (replace(profile, kernels=()), replace(profile, exchanges=())):
        with pytest.raises(Unservable, match="orch calibrate measures it"):
            measured.on_profile(plan, partial)


def test_a_machine_is_asked_only_for_what_is_new() -> None:
    """Another mesh of the same machine needs other groups, and no kernel again."""
    plan, other = plan_of(pods=2, fsdp=4, hosts=2), plan_of(pods=2, fsdp=2, tensor=2, hosts=2)
    more = measured.wishes(other, profile_for(plan))
    assert more.kernels == ()
    assert {wish.kind for wish in more.exchanges} >= {"all-gather", "permute"}
    both = wishes.merged(profile_for(plan), profile_for(other))
    for one in (plan, other):
        assert measured.wishes(one, both).exchanges == ()


def test_the_plan_names_the_profile_and_depends_on_nothing_else() -> None:
    """Another profile is another plan; the same one gives the same bytes."""
    plan = plan_of(pods=2, tensor=2, hosts=2)
    profile = profile_for(plan)
    made = measured.on_profile(plan, profile)
    assert made.chip_profile == codec.digest(profile)
    assert codec.to_json(made) == codec.to_json(measured.on_profile(plan, profile))
    later = measured.on_profile(plan, replace(profile, measured_on="2026-01-03"))
    assert later.digest != made.digest != plan.digest


def on_flat_rates(plan: Plan) -> tuple[Plan, ChipProfile]:
    profile = profile_for(plan)
    return measured.on_profile(plan, profile), profile


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
    """Products alone at the best rate are the bound; MFU is of the same FLOPs as ever."""
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
    assert forecast.mfu.unoverlapped < forecast.mfu.roofline < 1
    assert forecast.dollars is None


def test_messages_cost_their_number_and_their_bytes() -> None:
    """A thousand small ones are a thousand latencies."""
    made, _ = on_flat_rates(plan_of(pods=2, data=1, fsdp=2, hosts=2))
    pods = line(made, "pods")
    assert pods.value > pods.inputs["calls"] * LATENCY_S
    assert pods.value == pytest.approx(
        pods.inputs["calls"] * LATENCY_S + pods.inputs["bytes"] / 1e9, rel=0.01
    )


@pytest.mark.parametrize(
    ("amount", "seconds"), [(0.1, 0.1), (0.5, 0.5), (1, 1), (10, 2), (100, 4), (1000, 40)]
)
def test_seconds_between_and_beyond_what_was_timed(amount: float, seconds: float) -> None:
    """Straight in logarithms between two points, in proportion outside."""
    points = [(1.0, 1.0), (100.0, 4.0)]
    assert measured.interpolated(points, amount) == pytest.approx(seconds)


def test_a_tiny_amount_still_costs_its_call() -> None:
    """Nothing is for free, however small."""
    assert measured.interpolated([(1.0, 1.0)], 1e-9) == pytest.approx(measured.OVERHEAD)


def test_a_profile_survives_json() -> None:
    """It is kept as text, and its digest is of that."""
    profile = profile_for(plan_of(pods=2, tensor=2, hosts=2))
    read = codec.from_json(codec.to_json(profile), ChipProfile)
    assert codec.digest(read) == codec.digest(profile) != codec.digest(EMPTY)


def line(plan: Plan, name: str) -> Any:
    return next(one for one in plan.forecast.time if one.name == name)
