"""Measures what a forecast needs, and adds it to the machine's profile."""

import datetime
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import msgspec
import platformdirs
import psutil

from orchestrator import plugins
from orchestrator.errors import MeasurementFailed, UnknownName
from orchestrator.formatting import GIB
from orchestrator.planning.calibrated import (
    STEADY_SPREAD,
    ChipProfile,
    Machine,
    Measurements,
    Timing,
    shape_digest,
    with_profile,
)
from orchestrator.planning.rehearsal import Rehearsal
from orchestrator.plugins import require
from orchestrator.processes import LOOPBACK, emulated_devices, free_port, without_device_settings
from orchestrator.run.progress import Progress, Stage, silent, task
from orchestrator.run.requests import Provenance
from orchestrator.values import codec
from orchestrator.values.codec import to_pretty_json
from orchestrator.values.plan import Plan

# Runs the processes that measure. They never outlive the call that started them.


COMMAND: tuple[str, ...] = (sys.executable, "-m", "trainers.microbenchmarks")
PLAN, RESULT, LOG = "plan.json", "result.json", "log"
LIMIT_S = 600.0
LAST_LINES = 5


def run(plan: Plan | None = None) -> Measurements:
    """Time a plan's step on emulated devices, in as many processes as it has hosts; without a plan,
    what one of this machine's own devices does.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [*COMMAND, str(folder / RESULT)]
        if plan:
            (folder / PLAN).write_bytes(codec.to_json(plan))
            command += [str(folder / PLAN), f"{LOOPBACK}:{free_port()}"]
        busy = BusyCores()
        started = [start(command, plan, number, folder) for number in range(hosts(plan))]
        try:
            status = started[0].wait(LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise MeasurementFailed(
                f"this machine was not measured within {LIMIT_S / 60:.0f} minutes"
            ) from error
        finally:
            for process in started:
                process.kill()
                process.wait()
        if status:
            text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
            last = "\n".join(text.strip().splitlines()[-LAST_LINES:])
            raise MeasurementFailed(f"this machine cannot be measured:\n{last}")
        measured = codec.from_json((folder / RESULT).read_bytes(), Measurements)
        return replace(measured, others=busy.share_of_others())


class BusyCores:
    """The cores that this process may use, and what was done on them since it was made."""

    def __init__(self) -> None:
        self.began_s, self.busy_s, self.own_s = time.monotonic(), busy_s(), own_s()

    def share_of_others(self) -> float:
        """The share of the cores' time that went to other programs than this and its children."""
        others_s = (busy_s() - self.busy_s) - (own_s() - self.own_s)
        return max(0.0, others_s / ((time.monotonic() - self.began_s) * len(own_cores())))


def own_cores() -> list[int]:
    return psutil.Process().cpu_affinity() if psutil.LINUX else list(range(os.cpu_count() or 1))


def busy_s() -> float:
    """Seconds in which these cores worked, or were taken away by a hypervisor."""
    cores = psutil.cpu_times(percpu=True)
    return sum(sum(cores[n][:3]) + getattr(cores[n], "steal", 0.0) for n in own_cores())


def own_s() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def hosts(plan: Plan | None) -> int:
    return plan.hosts if plan else 1


def start(
    command: list[str], plan: Plan | None, number: int, folder: Path
) -> subprocess.Popen[bytes]:
    """Start one process; the first one's output goes into the log."""
    if plan:
        command = [*command, str(number)]
        environment = emulated_devices(os.environ, plan.devices_per_host)
        environment["MEGASCALE_SLICE_ID"] = str(number * plan.pods // plan.hosts)
    else:  # the devices of this machine are measured, which TPU_ describes
        environment = without_device_settings(os.environ, keep=("TPU_",))
    with (folder / LOG if number == 0 else Path(os.devnull)).open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            # Ctrl-C is for the caller. In sessions of their own they would take 1.4 times as long:
            # Linux shares cores between sessions first. The processes of a rehearsal are in one.
            process_group=0,
        )


# Stores chip profiles, each in a file with its digest as the name.


SCHEMA = 6


@dataclass(frozen=True)
class StoredProfile:
    """A profile and its file."""

    profile: ChipProfile
    path: Path


def folder() -> Path:
    """~/.cache/orch/profiles, or below XDG_CACHE_HOME."""
    return platformdirs.user_cache_path("orch") / "profiles"


def store_profile(profile: ChipProfile) -> StoredProfile:
    """Write the whole file or none. A file that exists already is the same."""
    path = folder() / f"{codec.digest(profile)}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
            part.write(codec.to_pretty_json(profile).encode())
        Path(part.name).replace(path)
    except OSError as error:
        raise MeasurementFailed(f"{path}: cannot be written: {error.strerror}") from error
    return StoredProfile(profile, path)


def newest(machine: Machine) -> StoredProfile | None:
    """The machine's profile that was stored last."""
    return next((one for one in stored_profiles() if one.profile.machine == machine), None)


def find(prefix: str) -> StoredProfile:
    """The profile whose digest has that prefix."""
    profiles = stored_profiles()
    same = [one for one in profiles if prefix and one.path.stem.startswith(prefix)]
    if len(same) == 1:
        return same[0]
    known = [codec.short(one.path.stem) for one in profiles]
    raise UnknownName("chip profile", prefix, known or ["none: orch calibrate makes one"])


def stored_profiles() -> list[StoredProfile]:
    """All of them, the newest first. A file that cannot be read counts as absent."""
    ages = {}
    for path in folder().glob("*.json"):
        with suppress(OSError, msgspec.DecodeError):
            profile = codec.from_json(path.read_bytes(), ChipProfile)
            if profile.schema == SCHEMA and codec.digest(profile) == path.stem:
                ages[path] = path.stat().st_mtime, profile
    ordered = sorted(ages.items(), key=lambda one: -one[1][0])
    return [StoredProfile(profile, path) for path, (_, profile) in ordered]


PACKAGES = ("jax", "jaxlib")


def stored_profile(plan: Plan) -> StoredProfile | None:
    """The newest profile of this machine, if it has a steady step of this rehearsal."""
    stored = newest(this_machine())
    key = shape_digest(plan), trainer_source(plan.trainer)
    timings = stored.profile.timings if stored else ()
    latest = next((one for one in reversed(timings) if (one.shape, one.source) == key), None)
    return stored if latest and latest.is_steady else None


def measure_plan(plan: Plan) -> StoredProfile:
    """The newest profile of this machine, with the step of this rehearsal as well."""
    machine = this_machine()
    stored = newest(machine)
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
    schema = SCHEMA
    return store_profile(
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


# Chip profiles of this machine, measured with progress events.


PROFILE_DOCUMENT = "chip_profile.json"
TASK = "measuring this machine"


def measure_machine(progress: Progress | None = None) -> StoredProfile:
    """A new profile of this machine's devices."""
    require("prove")
    progress = progress or silent
    with task(progress, TASK):
        progress(Stage(task=TASK, stage="it takes a minute or two"))
        return measure_devices()


def calibrated_rehearsal(
    rehearsal: Rehearsal, provenance: Provenance, progress: Progress
) -> tuple[Rehearsal, Provenance]:
    """A rehearsal with a forecast from this machine's profile, and its provenance with the profile.

    What the profile lacks for this plan is measured first, and stored for the next one.
    """
    stored = stored_profile(rehearsal.plan)
    if stored is None:
        with task(progress, TASK):
            progress(Stage(task=TASK, stage="a step with few layers, about a minute"))
            stored = measure_plan(rehearsal.plan)
    document = to_pretty_json(stored.profile).encode()
    plan = with_profile(rehearsal.plan, stored.profile)
    return replace(rehearsal, plan=plan), provenance.with_document(PROFILE_DOCUMENT, document)


# Measures how fast this machine's devices are, and stores the result as chip profiles.


__all__ = ["StoredProfile", "find", "measure_devices", "measure_plan", "stored_profile"]
