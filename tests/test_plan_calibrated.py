"""Forecasts from a measured machine: of a rehearsal, and of a plan on chips of one's own."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator import reading as specs
from orchestrator.errors import SpecError
from orchestrator.planning import calibrated, flops
from orchestrator.planning.calibrated import ChipProfile
from orchestrator.planning.plan_warnings import too_long
from orchestrator.planning.planner import make_plan
from orchestrator.planning.rehearsal import rehearse
from orchestrator.show import plan_screen as render
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from tests.conftest import ROOT
from tests.example_specs import TINY, spec_of
from tests.profiles import (
    EMPTY,
    H200,
    LAYER_S,
    MACHINE,
    OUTSIDE_S,
    PER_S,
    chip_profile,
    profile_for,
)
from tests.trainer_plans import TINY as TINY_MODEL
from tests.trainer_plans import plan_of


def rehearsed(**changes: Any) -> Plan:
    plan = plan_of(**changes)
    return calibrated.with_profile(plan, profile_for(plan))


def line(plan: Plan, kind: str) -> Any:
    return next(entry for entry in plan.forecast.time if entry.kind == kind)


# --- a rehearsal


@pytest.mark.parametrize("layers", [1, 2, 8])
def test_every_layer_takes_as_long_as_the_measured_ones(layers: int) -> None:
    """The step of a deeper network adds layers to what lies outside them."""
    plan = rehearsed(model=replace(TINY_MODEL, layers=layers), pods=2, hosts=2)
    forecast = plan.forecast
    assert forecast.step_s.expected == pytest.approx(OUTSIDE_S + layers * LAYER_S)
    assert line(plan, "layers").value == pytest.approx(layers * LAYER_S)
    assert line(plan, "outside_layers").value == pytest.approx(OUTSIDE_S)
    assert forecast.expected_time == forecast.time
    assert plan.chip_profile is not None
    profile = f"profile {codec.short(plan.chip_profile)}"
    assert all(entry.sources == (profile,) for entry in forecast.time)


def test_a_disturbed_measurement_makes_no_negative_line() -> None:
    """Two layers that took as long as one, or three times as long, add up all the same."""
    plan = plan_of()
    profile = profile_for(plan)
    matmul, step = profile.timings
    for second_s in (0.9, 3.0):
        disturbed = replace(step, points=((1.0, 1.0), (2.0, second_s)))
        made = calibrated.with_profile(plan, replace(profile, timings=(matmul, disturbed)))
        assert all(entry.value >= 0 for entry in made.forecast.time)
        total = sum(entry.value for entry in made.forecast.time)
        assert total == pytest.approx(made.forecast.step_s.unoverlapped)


def test_the_machines_matmul_is_the_peak_of_a_rehearsal() -> None:
    """All its emulated devices share it; `lower` is what MFU counts at that rate."""
    for devices in (1, 4):
        plan = rehearsed(data=devices)
        forecast = plan.forecast
        counted_flops = flops.model_flops_per_step(plan.model, plan.batch)
        assert forecast.peak_flops_per_s * devices == pytest.approx(PER_S)
        assert forecast.model_flops_per_step == counted_flops
        assert forecast.step_s.lower == pytest.approx(counted_flops / PER_S)
        assert forecast.mfu.lower == pytest.approx(1)
        reached = counted_flops / forecast.step_s.unoverlapped / PER_S
        assert forecast.mfu.unoverlapped == pytest.approx(reached)
        assert forecast.dollars is None


@pytest.mark.parametrize("spec", ["llama3_70b_4pod", "llama3_8b_v6e_2slice", "tiny_2pod"])
def test_an_interval_surrounds_what_is_expected(spec: str) -> None:
    """Not below the bound."""
    loaded = specs.load(ROOT / "specs" / f"{spec}.yaml", ())
    plan = rehearse(loaded, make_plan(loaded)).plan
    step_s = calibrated.with_profile(plan, profile_for(plan)).forecast.step_s
    assert step_s.expected is not None
    assert step_s.low is not None
    assert step_s.high is not None
    assert step_s.lower <= step_s.low < step_s.expected < step_s.high


SAME_STEP = ({"seed": 7}, {"tokens": 10**9}, {"name": "other"}, {"chip_profile": "abc"})
OTHER_STEP: tuple[dict[str, Any], ...] = (
    {"sequences": 32},
    {"remat": "none"},
    {"fsdp": 2},
    {"hosts": 2},
    {"trainer": "mlp"},
    {"model": replace(TINY_MODEL, layers=3)},
)


def test_a_step_is_measured_again_if_its_seconds_may_differ() -> None:
    """Not for another seed, number of steps or name, nor for another learning rate."""
    shape = calibrated.shape_digest(plan_of())
    assert all(calibrated.shape_digest(plan_of(**changes)) == shape for changes in SAME_STEP)
    others = [calibrated.shape_digest(plan_of(**changes)) for changes in OTHER_STEP]
    assert len({shape, *others}) == 1 + len(others)


def test_a_forecast_takes_the_newest_measurement() -> None:
    """A changed trainer is measured again; what came before stays in the profile."""
    plan = plan_of()
    profile = profile_for(plan)
    _, step = profile.timings
    newer = replace(
        step,
        source="changed",
        points=((1.0, 5.0), (2.0, 6.0)),
    )
    made = calibrated.with_profile(plan, replace(profile, timings=(*profile.timings, newer)))
    assert line(made, "layers").value == pytest.approx(2)


def test_what_a_profile_lacks_is_an_error() -> None:
    """It names the operation."""
    plan = plan_of()
    for timing in profile_for(plan).timings:
        profile = replace(EMPTY, timings=(timing,))
        with pytest.raises(SpecError, match="orch calibrate measures it"):
            calibrated.with_profile(plan, profile)


def test_the_plan_names_the_profile_and_depends_on_nothing_else() -> None:
    """Another profile is another plan; the same one gives the same bytes."""
    plan = plan_of(pods=2, tensor=2, hosts=2)
    profile = profile_for(plan)
    made = calibrated.with_profile(plan, profile)
    assert made.chip_profile == codec.digest(profile)
    assert codec.to_json(made) == codec.to_json(calibrated.with_profile(plan, profile))
    later = calibrated.with_profile(plan, replace(profile, measured_on="2026-01-03"))
    assert later.digest != made.digest != plan.digest


def test_a_forecast_of_a_profile_warns_of_no_published_runs() -> None:
    """What was learned from them has no part in it."""
    plan = make_plan(spec_of(TINY, topology="2x2x1", pods=2, sequences=64, length=128))
    assert "extrapolation" in {warning.code for warning in plan.warnings}
    made = calibrated.with_profile(plan, profile_for(plan))
    assert made.warnings == tuple(too_long(made))


# --- chips


def of_gpus(count: str, length: int = 128) -> Plan:
    spec = spec_of(TINY, chip="h200", topology=count, pods=1, sequences=64, length=length)
    return make_plan(spec)


def test_a_chips_own_profile_makes_its_forecast() -> None:
    """A single device overlaps nothing, so the sum is expected. Bound and peak stay."""
    plan = of_gpus("1")
    made = calibrated.with_own_profile(plan, chip_profile())
    was, step_s = plan.forecast, made.forecast.step_s
    assert made.chip_profile is not None
    assert made.digest != plan.digest
    assert step_s.lower == was.step_s.lower
    assert (made.forecast.bound, made.forecast.peak_flops_per_s) == (
        was.bound,
        was.peak_flops_per_s,
    )
    assert step_s.expected == pytest.approx(sum(entry.value for entry in made.forecast.time))
    for kind, unit in (("matmul", "flops"), ("elementwise", "bytes"), ("weight_traffic", "bytes")):
        assert line(made, kind).value == pytest.approx(line(made, kind).inputs[unit] / PER_S)
    screen = render.plan_screen(made, "orch plan x.yaml")
    assert f"profile {codec.short(made.chip_profile)}" in screen


@pytest.mark.parametrize(("per_s", "hides"), [(1e9, True), (1e20, False)])
def test_transfers_hide_behind_passes_at_the_measured_rates(per_s: float, hides: bool) -> None:
    """A slow chip hides all that it offloads, one that takes no time hides nothing."""
    spec = spec_of(TINY, chip="v5e", topology="1x1", pods=1, sequences=64, length=512)
    plan = make_plan(replace(spec, experiment=replace(spec.experiment, remat="offload_input")))
    profile = chip_profile(replace(H200, device_kind="TPU v5e"))
    timings = tuple(
        replace(timing, points=tuple((amount, amount / per_s) for amount, _ in timing.points))
        for timing in profile.timings
    )
    forecast = calibrated.with_own_profile(plan, replace(profile, timings=timings)).forecast
    whole, shown = (
        next(entry for entry in ledger if entry.kind == "offload")
        for ledger in (forecast.time, forecast.expected_time)
    )
    assert forecast.step_s.expected is not None
    if hides:
        assert shown.value == pytest.approx(0, abs=1e-12)
        assert forecast.step_s.expected == pytest.approx(forecast.step_s.unoverlapped - whole.value)
    else:
        assert shown.value == pytest.approx(whole.value, rel=1e-3)


def test_a_chips_own_profile_keeps_the_price_of_the_spec() -> None:
    """`dollars_per_chip_hour` of the spec comes before the list price."""
    spec = spec_of(TINY, chip="h200", topology="1", pods=1, sequences=64, length=128)
    plan = make_plan(replace(spec, resources=replace(spec.resources, dollars_per_chip_hour=9.0)))
    made = calibrated.with_own_profile(plan, chip_profile())
    assert made.forecast.dollars_per_chip_hour == 9.0
    assert made.forecast.dollars is not None
    assert made.forecast.dollars.lower == pytest.approx(9.0 * made.forecast.chip_hours.lower)


def test_links_and_their_overlap_are_not_measured() -> None:
    """Eight devices keep the datasheet's seconds for exchanges, and have no expected step."""
    plan = of_gpus("8")
    made = calibrated.with_own_profile(plan, chip_profile())
    assert made.forecast.step_s.expected is None
    assert made.forecast.step_s.unoverlapped >= made.forecast.step_s.lower
    exchanged = [entry for entry in plan.forecast.time if entry.collective]
    assert exchanged
    assert [entry for entry in made.forecast.time if entry.collective] == sorted(
        exchanged, key=lambda entry: -entry.value
    )


@pytest.mark.parametrize("head_dim_nearest", [(64, 64), (80, 64), (112, 128), (256, 128)])
def test_attention_takes_the_rate_of_the_nearest_head(head_dim_nearest: tuple[int, int]) -> None:
    """A rate is that of the largest amount."""
    head_dim, nearest = head_dim_nearest
    plan = plan_of(replace(TINY_MODEL, head_dim=head_dim))
    timing = calibrated._timing_of(chip_profile(), "attention", plan)
    assert timing.head_dim == nearest
    points = ((10.0, 1.0), (110.0, 2.0), (210.0, 6.0))
    assert replace(timing, points=points).per_s == 35


def test_a_profile_of_other_chips_is_an_error() -> None:
    """An H200 does not describe an H100, nor a CPU either."""
    plan = of_gpus("1")
    for machine in (replace(H200, device_kind="NVIDIA H100 80GB HBM3"), MACHINE):
        kind = machine.device_kind
        with pytest.raises(SpecError, match=f"the profile is of {kind}, the plan of h200"):
            calibrated.with_own_profile(plan, chip_profile(machine))


def test_a_profile_survives_json() -> None:
    """It is stored as JSON, and its digest is of that text."""
    profile = profile_for(plan_of(pods=2, tensor=2, hosts=2))
    read = codec.from_json(codec.to_json(profile), ChipProfile)
    assert codec.digest(read) == codec.digest(profile) != codec.digest(EMPTY)
