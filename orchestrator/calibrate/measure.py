"""Measures what a forecast needs, and adds it to the machine's profile."""

import datetime
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby
from typing import get_args

from orchestrator.calibrate import profile_store
from orchestrator.calibrate.machine import this_machine
from orchestrator.calibrate.processes import run
from orchestrator.calibrate.profile_store import StoredProfile
from orchestrator.plan import calibrated
from orchestrator.types.chip_profile import Benchmark, ChipProfile, Devices, Machine, Operation
from orchestrator.types.plan import Plan
from orchestrator.types.spec import DType

Progress = Callable[[int, int], None]  # how many benchmarks are ready, of how many
HEAD_DIMS, REHEARSED_HEAD_DIMS = (64, 128), (16,)
EMULATED = ((1, 4), (2, 8))  # processes and devices that `orch calibrate` emulates
ALONE: tuple[Operation, ...] = ("matmul", "attention", "elementwise", "copy")
COLLECTIVES: tuple[Operation, ...] = ("all-gather", "reduce-scatter", "all-reduce", "permute")


def for_plan(plan: Plan, progress: Progress) -> StoredProfile:
    """A profile of this machine with everything that the forecast of an emulated plan needs.

    It is the newest stored one, together with the benchmarks that it lacked.
    """
    machine = this_machine()
    stored = profile_store.newest(machine)
    profile = stored.profile if stored else empty(machine)
    missing = calibrated.missing(plan, profile)
    if stored and not missing:
        return stored
    return profile_store.store(measured(profile, missing, progress))


def of_machine(progress: Progress) -> StoredProfile:
    """A new profile of the devices that JAX reports. On a CPU, devices are emulated."""
    devices = next(reply.devices for reply in run((), processes=1, devices=None) if reply.devices)
    profile = empty(this_machine(devices.platform, devices.kind))
    return profile_store.store(measured(profile, standard_benchmarks(devices), progress))


def empty(machine: Machine) -> ChipProfile:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return ChipProfile(schema=profile_store.SCHEMA, machine=machine, measured_on=today.isoformat())


def measured(
    profile: ChipProfile, benchmarks: Iterable[Benchmark], progress: Progress
) -> ChipProfile:
    """The profile with these benchmarks' timings. Compiling takes the time, so it is the progress."""
    benchmarks = tuple(benchmarks)
    timings, compiled = list(profile.timings), 0
    progress(compiled, len(benchmarks))
    for (processes, devices), group in groupby(sorted(benchmarks, key=place), key=place):
        emulated = devices if profile.emulated else None
        for reply in run(tuple(group), processes=processes, devices=emulated):
            if reply.compiled:
                compiled += 1
                progress(compiled, len(benchmarks))
            if reply.timing:
                timings.append(reply.timing)
    return replace(profile, measured_on=empty(profile.machine).measured_on, timings=tuple(timings))


def place(benchmark: Benchmark) -> tuple[int, int]:
    """Benchmarks of one place are timed by the same processes."""
    return benchmark.processes, benchmark.devices


def standard_benchmarks(devices: Devices) -> list[Benchmark]:
    """What `orch calibrate` measures, for no plan in particular.

    An accelerator computes alone; its collectives are timed in every regular group of devices.
    """
    if devices.platform == "cpu":
        return [benchmark for place in EMULATED for benchmark in emulated_benchmarks(*place)]
    count = devices.count
    groups = [
        (size, stride)
        for size in range(2, count + 1)
        for stride in range(1, count // size + 1)
        if count % (size * stride) == 0
    ]
    return [*alone(1, 1, HEAD_DIMS), *collectives(count, 1, groups)]


def emulated_benchmarks(processes: int, devices: int) -> list[Benchmark]:
    """Groups inside a process, and across all processes."""
    inside = devices // processes
    groups = [(inside, 1), (processes, inside)]
    return [
        *alone(devices, processes, REHEARSED_HEAD_DIMS),
        *collectives(devices, processes, [pair for pair in groups if pair[0] > 1]),
    ]


def alone(devices: int, processes: int, head_dims: tuple[int, ...]) -> list[Benchmark]:
    """What devices do without one another."""
    return [
        Benchmark(
            operation=operation,
            dtype=dtype,
            devices=devices,
            processes=processes,
            head_dim=head_dim,
        )
        for operation in ALONE
        for dtype in get_args(DType)
        for head_dim in (head_dims if operation == "attention" else (0,))
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
