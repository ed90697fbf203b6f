"""Metering: what is emitted, when it is read, and by which definitions."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from orchestrator.errors import LossNotFinite
from orchestrator.planning import flops
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.run import SkippedCheckpoint, Startup, Step
from tests.trainer_plans import plan_of
from trainers import meter
from trainers.contract import METRICS, Program, load
from trainers.mesh import abstract_mesh_of
from trainers.meter import Meter

OPENING = Startup(
    steps_done=7,
    skipped=(SkippedCheckpoint(step=9, why="torn"),),
    state_s=0.5,
    compile_s=12.0,
)


def program_of(plan: Plan) -> Program:
    """The trainer's program, without a device."""
    return load("llama").program(plan, abstract_mesh_of(plan))


class Metric:
    """A number on a device that notes when it is asked for."""

    def __init__(self, name: str, value: float, diary: list[str]) -> None:
        self._name, self._value, self._diary = name, value, diary

    def copy_to_host_async(self) -> None:
        """Where a real array starts its way to the host."""

    def __float__(self) -> float:
        self._diary.append(f"read {self._name}")
        return self._value


class Bench:
    """A meter with a clock that is set by hand."""

    def __init__(self, plan: Plan, peak_flops_per_s: float | None = None) -> None:
        self.now_s, self.steps, self.diary = 100.0, [], []  # type: float, list[Step], list[str]
        self.meter = Meter(
            program_of(plan), self.steps.append, OPENING, peak_flops_per_s,
            clock=lambda: self.now_s, memory=self._looked,
        )  # fmt: skip

    def _looked(self) -> int:
        self.diary.append("memory")
        return 1000 + len(self.steps)

    def step(self, index: int, ends_s: float, **changed: float) -> None:
        """Dispatch a step; the one before ends at this time."""
        values = {"loss": 2.5, "grad_norm": 1.5, "learning_rate": 0.25, **changed}
        metrics: dict[str, Any] = {
            name: Metric(f"{name} of {index}", value, self.diary) for name, value in values.items()
        }
        self.now_s = ends_s
        self.diary.append(f"dispatched {index}")
        self.meter.add_step(index, metrics)


def test_a_step_is_read_when_the_next_is_on_the_device() -> None:
    """Nothing waits for the step that was just dispatched."""
    bench = Bench(plan_of())
    for index in range(3):
        bench.step(index, 101.0 + index)
    reads = [line for line in bench.diary if "loss" in line or "dispatched" in line]
    assert reads == [
        "dispatched 0", "dispatched 1", "read loss of 0", "dispatched 2", "read loss of 1",
    ]  # fmt: skip
    bench.now_s = 104.0
    bench.meter.flush()
    bench.meter.flush()
    assert [step.index for step in bench.steps] == [0, 1, 2]


def test_the_first_step_is_kept_apart() -> None:
    """It carries compile seconds and what was restored, and no rate is computed from it."""
    bench = Bench(plan_of(), peak_flops_per_s=1e12)
    bench.step(7, 100.5)
    bench.step(8, 103.0)
    bench.step(9, 103.5)
    first, second = bench.steps
    assert first.startup == OPENING
    assert first.step_s == 3.0
    assert (first.tokens_per_s_per_chip, first.model_flops_per_s_per_chip, first.mfu) == (
        (None,) * 3
    )
    assert second.startup is None
    assert second.step_s == 0.5
    assert second.mfu is not None


def test_rates_follow_from_seconds_by_the_one_definition() -> None:
    """Tokens and model FLOPs are per chip, MFU over the peak of all devices."""
    plan = replace(plan_of(data=2, tensor=4), chips=4)  # chips of two devices
    bench = Bench(plan, peak_flops_per_s=1e9)
    for index, ends_s in enumerate((100.0, 101.0, 101.25)):
        bench.step(index, ends_s)
    step = bench.steps[1]
    per_step = flops.model_flops_per_token(plan.model, plan.batch.length) * plan.batch.tokens
    assert step.tokens == plan.batch.tokens == 512
    assert step.tokens_per_s_per_chip == 512 / 0.25 / 4
    assert step.model_flops_per_s_per_chip == pytest.approx(per_step / 0.25 / 4)
    assert step.mfu == pytest.approx(flops.mfu(per_step, 0.25, 8, 1e9))
    assert (step.loss, step.grad_norm, step.learning_rate) == (2.5, 1.5, 0.25)


def test_a_trainer_is_metered_by_its_own_count() -> None:
    """Another trainer does other work on the same plan, and says how much."""
    plan = plan_of()
    program = replace(program_of(plan), model_flops_per_step=1e6)
    steps: list[Step] = []
    times = iter((0.0, 1.0, 1.5))
    metered = Meter(program, steps.append, OPENING, 1e9, clock=lambda: next(times))
    for index in range(2):
        metered.add_step(index, {name: jnp.float32(1) for name in METRICS})
    metered.flush()
    assert steps[1].model_flops_per_s_per_chip == 1e6 / 0.5
    assert steps[1].mfu == pytest.approx(1e6 / 0.5 / 1e9)


def test_waiting_counts_to_the_step_in_which_it_happened() -> None:
    """A wait lies between the ends of two steps: it is part of the later one's seconds."""
    bench = Bench(plan_of())
    bench.meter.add_wait(data_s=0.5)
    bench.step(0, 101.0)
    bench.meter.add_wait(checkpoint_s=0.25)
    bench.meter.add_wait(data_s=0.125)
    bench.step(1, 102.0)
    bench.step(2, 103.0)
    assert [(step.data_s, step.checkpoint_s) for step in bench.steps] == [(0.625, 0.25), (0.0, 0.0)]


def test_without_a_known_peak_there_is_no_mfu() -> None:
    """No default stands in for the peak of a device nobody knows."""
    bench = Bench(plan_of())
    for index in range(3):
        bench.step(index, 101.0 + index)
    assert bench.steps[1].mfu is None
    assert bench.steps[1].model_flops_per_s_per_chip is not None


def test_memory_is_looked_up_where_it_costs_nothing() -> None:
    """After the first step of an attempt, and where the loop waits for the device anyway."""
    bench = Bench(plan_of())
    for index in range(4):
        bench.step(index, 101.0 + index)
    bench.now_s = 105.0
    bench.meter.flush()
    assert [step.peak_hbm_bytes for step in bench.steps] == [1000, None, None, 1003]
    assert bench.diary.count("memory") == 2


class Device:
    """A device that says what it holds, or does not."""

    def __init__(self, **stats: int) -> None:
        self._stats = stats

    def memory_stats(self) -> dict[str, int] | None:
        return self._stats or None


def test_the_fullest_device_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of a CPU say nothing, some say less than others; the peak is of all that do."""
    devices = [Device(), Device(bytes_in_use=9), Device(peak_bytes_in_use=5, bytes_in_use=3),
               Device(peak_bytes_in_use=7)]  # fmt: skip
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert meter._peak_hbm_bytes() == 7
    monkeypatch.setattr(jax, "local_devices", lambda: devices[:2])
    assert meter._peak_hbm_bytes() is None


def test_what_else_a_trainer_measures_is_kept() -> None:
    """Metrics beyond the three of the contract go along under their own names."""
    bench = Bench(plan_of())
    bench.step(0, 101.0, z_loss=0.125)
    bench.meter.flush()
    assert bench.steps[0].trainer_metrics == {"z_loss": 0.125}


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_an_error(name: str, value: float) -> None:
    """It is named with its step, and the step is not emitted."""
    bench = Bench(plan_of())
    bench.step(0, 101.0)
    bench.step(1, 102.0, **{name: value})
    with pytest.raises(LossNotFinite, match=f"step 2: {name} is {value}"):
        bench.meter.flush()
    assert [step.index for step in bench.steps] == [0]


def test_real_arrays_are_read_as_they_are() -> None:
    """The meter takes what a compiled step gives: device scalars."""
    steps: list[Step] = []
    metered = Meter(program_of(plan_of()), steps.append, OPENING, None)
    metrics = {name: jnp.float32(0.1) for name in ("loss", "grad_norm", "learning_rate")}
    metered.add_step(0, metrics)
    metered.flush()
    assert steps[0].loss == float(jnp.float32(0.1))


def test_a_step_survives_json() -> None:
    """Every bit of a loss comes back, so that records can be compared exactly."""
    bench = Bench(plan_of(), peak_flops_per_s=1e12)
    for index in range(3):
        bench.step(index, 101.1 + index, loss=1 / 3, z_loss=1e-30)
    for step in bench.steps:
        assert codec.from_json(codec.to_json(step), Step) == step
