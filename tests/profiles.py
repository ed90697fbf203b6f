"""Chip profiles for tests, with round rates."""

from dataclasses import replace
from typing import get_args

from orchestrator.planning.calibrated import ChipProfile, Machine, Operation, Timing, shape_digest
from orchestrator.run.calibrate import _SCHEMA
from orchestrator.values.codec import DType, MatmulType
from orchestrator.values.plan import Plan

MACHINE = Machine(
    platform="cpu",
    device_kind="cpu",
    processor="a processor",
    cores=2,
    memory_bytes=2**34,
    versions={"jax": "1"},
)
H200 = replace(MACHINE, platform="gpu", device_kind="NVIDIA H200")
EMPTY = ChipProfile(schema=_SCHEMA, machine=MACHINE, measured_on="2026-01-02")
PER_S = 1e11  # FLOPs or bytes
LAYER_S, OUTSIDE_S = 0.2, 0.1  # of a step


def profile_for(plan: Plan) -> ChipProfile:
    """A profile of this machine with all that a rehearsal needs."""
    return replace(EMPTY, timings=rehearsal_timings(plan))


def rehearsal_timings(plan: Plan) -> tuple[Timing, Timing]:
    dtype = plan.precision.compute
    points = tuple((layers, OUTSIDE_S + layers * LAYER_S) for layers in (1.0, 2.0))
    step = Timing(
        operation="step", dtype=dtype, points=points, spread=0.1, shape=shape_digest(plan)
    )
    return flat("matmul", dtype), step


def chip_profile(machine: Machine = H200) -> ChipProfile:
    """A profile of what one device of a chip does."""
    return replace(EMPTY, machine=machine, timings=device_timings())


def device_timings() -> tuple[Timing, ...]:
    operations: tuple[tuple[Operation, int], ...] = (
        ("matmul", 0), ("copy", 0), ("attention", 64), ("attention", 128),
    )  # fmt: skip
    return tuple(
        flat(operation, dtype, head_dim)
        for operation, head_dim in operations
        for dtype in get_args(DType)
    )


def flat(operation: Operation, dtype: MatmulType, head_dim: int = 0) -> Timing:
    """The same rate for every amount."""
    points = tuple((amount, amount / PER_S) for amount in (1.0, 1e3, 1e9))
    return Timing(operation=operation, dtype=dtype, points=points, spread=0.1, head_dim=head_dim)
