"""Chip profiles for tests: every rate is one, so that seconds are amounts."""

from dataclasses import replace

from orchestrator.plan import calibrated
from orchestrator.types.chip_profile import (
    ChipProfile,
    CollectiveBenchmark,
    CollectiveTime,
    KernelBenchmark,
    KernelTime,
    Machine,
)
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
EMPTY = ChipProfile(schema=3, machine=MACHINE, measured_on="2026-01-02")
FLOPS_PER_S = 1e11
LATENCY_S, BYTES_PER_S = 1e-3, 1e9


def profile_for(plan: Plan, machine: Machine = MACHINE) -> ChipProfile:
    """A profile that has what the plan needs: flat rates, and a latency for every exchange."""
    wanted = calibrated.wishes(plan, replace(EMPTY, machine=machine))
    return ChipProfile(
        schema=3,
        machine=machine,
        measured_on="2026-01-02",
        kernels=tuple(map(kernel_time, wanted.kernels)),
        exchanges=tuple(map(exchange_time, wanted.exchanges)),
    )


def kernel_time(wish: KernelBenchmark) -> KernelTime:
    """One device after another, each at FLOPS_PER_S."""
    seconds = wish.amount * wish.devices / FLOPS_PER_S
    fields = {name: getattr(wish, name) for name in KernelBenchmark.__dataclass_fields__}
    return KernelTime(**fields, seconds=seconds, least_s=seconds, spread=0.1)


def exchange_time(wish: CollectiveBenchmark) -> CollectiveTime:
    fields = {name: getattr(wish, name) for name in CollectiveBenchmark.__dataclass_fields__}
    seconds = LATENCY_S + wish.bytes / BYTES_PER_S
    return CollectiveTime(**fields, seconds=seconds, least_s=seconds, spread=0.1)
