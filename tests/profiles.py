"""Chip profiles for tests, with round rates."""

from dataclasses import replace

from orchestrator.calibrate.profile_store import SCHEMA
from orchestrator.plan import calibrated
from orchestrator.types.chip_profile import Benchmark, ChipProfile, Machine, Timing
from orchestrator.types.plan import Plan

MACHINE = Machine(
    platform="cpu",
    device_kind="cpu",
    processor="a processor",
    cores=2,
    memory_bytes=2**34,
    versions={"jax": "1"},
)
H200 = replace(MACHINE, platform="gpu", device_kind="NVIDIA H200")
EMPTY = ChipProfile(schema=SCHEMA, machine=MACHINE, measured_on="2026-01-02")
PER_S = 1e11  # FLOPs or bytes, of all devices
LATENCY_S, BYTES_PER_S = 1e-3, 1e9


def profile_for(plan: Plan, machine: Machine = MACHINE) -> ChipProfile:
    """A profile with all that the plan needs: flat rates, and a latency for every collective."""
    empty = replace(EMPTY, machine=machine)
    return replace(empty, timings=tuple(map(timing_of, calibrated.missing(plan, empty))))


def timing_of(benchmark: Benchmark) -> Timing:
    latency_s, rate = (LATENCY_S, BYTES_PER_S) if benchmark.group > 1 else (0.0, PER_S)
    per_device = rate if benchmark.group > 1 else rate / benchmark.devices
    points = tuple((amount, latency_s + amount / per_device) for amount in (1.0, 1e3, 1e9))
    return Timing(benchmark=benchmark, points=points, best_per_s=per_device, spread=0.1)
