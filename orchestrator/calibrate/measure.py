"""Measures what a forecast needs, and adds it to the machine's profile."""

import datetime
import os
from collections.abc import Iterable
from dataclasses import replace
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import get_args

import psutil

from orchestrator.calibrate import profile_store
from orchestrator.calibrate.processes import run
from orchestrator.calibrate.profile_store import StoredProfile
from orchestrator.plan import calibrated
from orchestrator.types.chip_profile import Benchmark, ChipProfile, Machine, Operation
from orchestrator.types.plan import Plan
from orchestrator.types.spec_fields import DType

GIB = 2**30
PACKAGES = ("jax", "jaxlib")
EMULATED = ((1, 4), (2, 8))  # processes and devices that `orch calibrate` emulates
HEADS, REHEARSED_HEADS = ((512, 64), (512, 128)), ((128, 16),)  # lengths, head dimensions
COLLECTIVES: tuple[Operation, ...] = ("all-gather", "reduce-scatter", "all-reduce", "permute")


def for_plan(plan: Plan) -> StoredProfile:
    """A profile of this machine with everything that the forecast of an emulated plan needs.

    It is the newest stored one, together with the benchmarks that it lacked.
    """
    machine = this_machine()
    stored = profile_store.newest(machine)
    profile = stored.profile if stored else empty_profile(machine)
    missing = calibrated.missing(plan, profile)
    if stored and not missing:
        return stored
    return profile_store.store(measured(profile, missing))


def of_machine() -> StoredProfile:
    """A new profile of the devices that JAX reports. On a CPU, devices are emulated."""
    reported = run((), processes=1, devices=None)
    profile = empty_profile(this_machine(reported.platform, reported.device_kind))
    benchmarks = (
        [one for place in EMULATED for one in emulated_benchmarks(*place)]
        if profile.emulated
        else accelerator_benchmarks(reported.devices)
    )
    return profile_store.store(measured(profile, benchmarks))


def measured(profile: ChipProfile, benchmarks: Iterable[Benchmark]) -> ChipProfile:
    """The profile with the timings of these benchmarks as well."""

    def place(benchmark: Benchmark) -> tuple[int, int]:
        return benchmark.processes, benchmark.devices if profile.emulated else 0

    timings = list(profile.timings)
    for (processes, devices), group in groupby(sorted(benchmarks, key=place), key=place):
        timings += run(tuple(group), processes=processes, devices=devices or None).timings
    return replace(profile, measured_on=today(), timings=tuple(timings))


def empty_profile(machine: Machine) -> ChipProfile:
    return ChipProfile(schema=profile_store.SCHEMA, machine=machine, measured_on=today())


def today() -> str:
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def this_machine(platform: str = "cpu", device_kind: str = "cpu") -> Machine:
    """This machine with devices of that kind. It needs no JAX, so a lookup takes no time."""
    return Machine(
        platform=platform,
        device_kind=device_kind,
        processor=processor(),
        cores=len(psutil.Process().cpu_affinity()) if psutil.LINUX else os.cpu_count() or 1,
        # In whole GiB: what the kernel reserves differs from boot to boot.
        memory_bytes=psutil.virtual_memory().total // GIB * GIB,
        versions={package: metadata.version(package) for package in PACKAGES},
    )


def processor() -> str:
    """The model's name: one architecture has fast and slow processors."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else os.uname().machine


def emulated_benchmarks(processes: int, devices: int) -> list[Benchmark]:
    """What emulated devices do, with groups inside a process and across all processes."""
    inside = devices // processes
    groups = [(size, stride) for size, stride in ((inside, 1), (processes, inside)) if size > 1]
    return [
        *alone(devices, processes, REHEARSED_HEADS),
        *collectives(devices, processes, groups),
    ]


def accelerator_benchmarks(devices: int) -> list[Benchmark]:
    """What one accelerator does alone, and collectives in every regular group."""
    groups = [
        (size, stride)
        for size in range(2, devices + 1)
        for stride in range(1, devices // size + 1)
        if devices % (size * stride) == 0
    ]
    return [*alone(1, 1, HEADS), *collectives(devices, 1, groups)]


def alone(devices: int, processes: int, heads: tuple[tuple[int, int], ...]) -> list[Benchmark]:
    simple: tuple[Operation, ...] = ("matmul", "elementwise", "copy")
    kinds: list[tuple[Operation, int, int]] = [(operation, 0, 0) for operation in simple]
    kinds += [("attention", length, head_dim) for length, head_dim in heads]
    return [
        Benchmark(
            operation=operation,
            dtype=dtype,
            devices=devices,
            processes=processes,
            length=length,
            head_dim=head_dim,
        )
        for operation, length, head_dim in kinds
        for dtype in get_args(DType)
    ]


def collectives(devices: int, processes: int, groups: list[tuple[int, int]]) -> list[Benchmark]:
    return [
        Benchmark(
            operation=operation,
            dtype=dtype,
            devices=devices,
            processes=processes,
            group=size,
            stride=stride,
        )
        for operation in COLLECTIVES
        for dtype in get_args(DType)
        for size, stride in groups
    ]
