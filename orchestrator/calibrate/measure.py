"""Calibrate room: wishes to a profile, the arrow of this room."""

import datetime
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

from orchestrator.calibrate import shelf
from orchestrator.calibrate.machine import emulating, with_devices
from orchestrator.calibrate.process import ask
from orchestrator.calibrate.words import Devices, Told
from orchestrator.plan import benchmarks, calibrated
from orchestrator.plan.benchmarks import merged
from orchestrator.types.chip_profile import Benchmarks, ChipProfile, CollectiveBenchmark, Machine
from orchestrator.types.plan import Plan

Progress = Callable[[int, int], None]  # how many are measured, of how many


def for_plan(plan: Plan, progress: Progress) -> shelf.Kept:
    """A profile of this machine with all that the forecast of an emulated plan reads.

    The newest that is kept, if it has all of it; else that with what it lacks.
    """
    machine = emulating()
    kept = shelf.newest(machine)
    profile = kept.profile if kept else _empty(machine)
    wanted = calibrated.wishes(plan, profile)
    if kept and not (wanted.kernels or wanted.exchanges):
        return kept
    return shelf.keep(merged(profile, emulated(machine, wanted, progress)))


def of_machine(progress: Progress) -> shelf.Kept:
    """A new profile of the devices that JAX finds here; where these are CPU's, of emulated ones."""
    found = next(
        told.devices for told in ask(Benchmarks(), processes=1, devices=None) if told.devices
    )
    if found.platform == "cpu":
        machine = emulating()
        return shelf.keep(emulated(machine, benchmarks.of_emulated_devices(), progress))
    return shelf.keep(_accelerated(found, progress))


def emulated(machine: Machine, wanted: Benchmarks, progress: Progress) -> ChipProfile:
    """What CPU devices reach that share this machine's cores; every grouping in its processes."""
    return _filled(_empty(machine), wanted, _all(wanted), progress)


def _filled(
    profile: ChipProfile, wanted: Benchmarks, tells: Iterable[Told], progress: Progress
) -> ChipProfile:
    """The profile with all that is told. Making ready takes the time: that is the progress."""
    ready, total = 0, len(wanted.kernels) + len(wanted.exchanges)
    progress(ready, total)
    for told in tells:
        profile = _with(profile, told)
        if told.ready:
            ready += 1
            progress(ready, total)
    return profile


def _all(wanted: Benchmarks) -> Iterable[Told]:
    if wanted.kernels:
        most = max(wish.devices for wish in wanted.kernels)
        yield from ask(Benchmarks(kernels=wanted.kernels), processes=1, devices=most)
    for (processes, devices), group in groupby(sorted(wanted.exchanges, key=_where), key=_where):
        yield from ask(Benchmarks(exchanges=tuple(group)), processes=processes, devices=devices)


def _where(wish: CollectiveBenchmark) -> tuple[int, int]:
    return wish.processes, wish.devices


def _accelerated(found: Devices, progress: Progress) -> ChipProfile:
    """What the machine's own devices reach, each with memory and units of its own."""
    wanted = benchmarks.of_own_devices(found.count)
    tells = ask(wanted, processes=1, devices=None)
    return _filled(_empty(with_devices(found)), wanted, tells, progress)


def _empty(machine: Machine) -> ChipProfile:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return ChipProfile(schema=shelf.SCHEMA, machine=machine, measured_on=today.isoformat())


def _with(profile: ChipProfile, told: Told) -> ChipProfile:
    if told.kernel:
        return replace(profile, kernels=(*profile.kernels, told.kernel))
    if told.exchange:
        return replace(profile, exchanges=(*profile.exchanges, told.exchange))
    return profile
