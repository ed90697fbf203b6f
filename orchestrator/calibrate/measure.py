"""Measures what a forecast needs, and adds it to the machine's profile."""

import datetime
import hashlib
import os
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import psutil

from orchestrator import plugins
from orchestrator.calibrate import profile_store
from orchestrator.calibrate.processes import own_cores, run
from orchestrator.calibrate.profile_store import StoredProfile
from orchestrator.formatting import GIB
from orchestrator.plan.calibrated import shape_digest
from orchestrator.types.chip_profile import (
    STEADY_SPREAD,
    ChipProfile,
    Machine,
    Measurements,
    Timing,
)
from orchestrator.types.plan import Plan

PACKAGES = ("jax", "jaxlib")


def stored_profile(plan: Plan) -> StoredProfile | None:
    """The newest profile of this machine, if it has a steady step of this rehearsal."""
    stored = profile_store.newest(this_machine())
    key = shape_digest(plan), trainer_source(plan.trainer)
    timings = stored.profile.timings if stored else ()
    latest = next((one for one in reversed(timings) if (one.shape, one.source) == key), None)
    return stored if latest and latest.is_steady else None


def measure_plan(plan: Plan) -> StoredProfile:
    """The newest profile of this machine, with the step of this rehearsal as well."""
    machine = this_machine()
    stored = profile_store.newest(machine)
    known = stored.profile.timings if stored else ()
    return store(machine, (*known, *measured_timings(plan)))


def measured_timings(plan: Plan) -> tuple[Timing, ...]:
    """A large matmul on all cores, and the rehearsal's step.

    A step that is unsteady is measured again, once, and the steadier of both counts.
    """
    measured = run(plan)
    if step_spread(measured) > STEADY_SPREAD:
        measured = min(measured, run(plan), key=step_spread)
    shape, source = shape_digest(plan), trainer_source(plan.trainer)
    return tuple(
        replace(one, shape=shape, source=source, others=measured.others)
        if one.operation == "step"
        else one
        for one in measured.timings
    )


def step_spread(measured: Measurements) -> float:
    return max(one.spread for one in measured.timings if one.operation == "step")


def measure_devices() -> StoredProfile:
    """A new profile of what a single device does, of those that JAX reports."""
    measured = run()
    return store(this_machine(measured.platform, measured.device_kind), measured.timings)


def store(machine: Machine, timings: tuple[Timing, ...]) -> StoredProfile:
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    schema = profile_store.SCHEMA
    return profile_store.store(
        ChipProfile(schema=schema, machine=machine, measured_on=today, timings=timings)
    )


def trainer_source(name: str) -> str:
    """A digest of the trainer's module, or of its package: another one takes other seconds."""
    file = plugins.source(plugins.trainer_entry_point(name).module)
    if file is None:
        return ""
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    return hashlib.sha256(b"".join(one.read_bytes() for one in files)).hexdigest()


def this_machine(platform: str = "cpu", device_kind: str = "cpu") -> Machine:
    """This machine with devices of that kind. It needs no JAX, so a lookup takes no time."""
    return Machine(
        platform=platform,
        device_kind=device_kind,
        processor=processor(),
        cores=len(own_cores()),
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
