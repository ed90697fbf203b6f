"""Measure how fast this machine's devices are, and store the result as chip profiles: files named
by their digest, in ~/.cache/orch/profiles or below XDG_CACHE_HOME. What own runs teach is kept next
to them.
"""

import datetime
import hashlib
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import msgspec
import platformdirs
import psutil

from orchestrator import plugins, processes
from orchestrator.errors import JournalUnreadable, MeasurementFailed, SpecError, UnknownName
from orchestrator.evidence.report import make_report
from orchestrator.evidence.score.own_rows import csv_text, own_row
from orchestrator.evidence.score.published_runs import SkippedRow
from orchestrator.formatting import GIB
from orchestrator.journal.listing import find_run, list_runs
from orchestrator.journal.run_journal import Journal
from orchestrator.planning import calibrated
from orchestrator.planning.calibrated import ChipProfile, Machine, Measurements, Timing
from orchestrator.planning.own_runs import OWN_SCHEMA, Measured, OwnConstants, learn
from orchestrator.run.profile import measure_traces
from orchestrator.run.progress import RUNS, Progress, Stage, silent, task
from orchestrator.storage.addresses import folder
from orchestrator.values import codec
from orchestrator.values.codec import Value
from orchestrator.values.plan import Plan
from orchestrator.values.report import Report

_COMMAND: tuple[str, ...] = (*processes.MODULE, "trainers.microbenchmarks")
_PLAN, _RESULT, _LOG = "plan.json", "result.json", "log"
_LIMIT_S = 600.0
_LAST_LINES = 5
_SCHEMA = 6
_PACKAGES = ("jax", "jaxlib")
PROFILE_DOCUMENT = "chip_profile.json"
_TASK = "measuring this machine"
_KIND = "profiles"
_Kept = TypeVar("_Kept")


class _StoredProfile(msgspec.Struct, frozen=True):
    profile: ChipProfile
    path: Path


def calibrate(*, progress: Progress | None = None) -> _StoredProfile:
    """Make a new chip profile: what the devices of this machine reach. It takes a minute or two."""
    plugins.require("prove")
    report = progress or silent
    with task(report, _TASK):
        report(Stage(task=_TASK, stage="it takes a minute or two"))
        measured = _measure()
        machine = _this_machine(measured.platform, measured.device_kind)
        return _store_timings(machine, measured.timings)


def calibrated_plan(plan: Plan, progress: Progress) -> tuple[Plan, bytes]:
    """Return a rehearsal's plan with a forecast from this machine's profile, and the profile."""
    stored = _stored_profile(plan)
    if stored is None:  # measure what it lacks, and store that for the next one
        with task(progress, _TASK):
            progress(Stage(task=_TASK, stage="a step with few layers, about a minute"))
            stored = _measure_plan(plan)
    profile = stored.profile
    return calibrated.with_profile(plan, profile), codec.to_pretty_json(profile).encode()


def _stored_profile(plan: Plan) -> _StoredProfile | None:
    """Return the newest profile of this machine, if it has a steady step of this rehearsal."""
    stored = _newest(_this_machine())
    key = calibrated.shape_digest(plan), _trainer_source(plan.trainer)
    timings = stored.profile.timings if stored else ()
    latest = next((row for row in reversed(timings) if (row.shape, row.source) == key), None)
    return stored if latest and latest.is_steady else None


def _measure_plan(plan: Plan) -> _StoredProfile:
    machine = _this_machine()
    stored = _newest(machine)
    known = stored.profile.timings if stored else ()
    return _store_timings(machine, (*known, *_measured_timings(plan)))


def _measured_timings(plan: Plan) -> tuple[Timing, ...]:
    measured = _measure(plan)
    if _step_spread(measured) > calibrated.STEADY_SPREAD:  # once more: the steadier one counts
        measured = min(measured, _measure(plan), key=_step_spread)
    shape, source = calibrated.shape_digest(plan), _trainer_source(plan.trainer)
    return tuple(
        replace(row, shape=shape, source=source, others=measured.others)
        if row.operation == "step"
        else row
        for row in measured.timings
    )


def _step_spread(measured: Measurements) -> float:
    return max(row.spread for row in measured.timings if row.operation == "step")


def _trainer_source(name: str) -> str:
    """Return a digest of the trainer's module or package: another one takes other seconds."""
    file = plugins.source(plugins.trainer_entry_point(name).module)
    if file is None:
        return ""
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _this_machine(platform: str = "cpu", device_kind: str = "cpu") -> Machine:
    """Return this machine with devices of that kind. It needs no JAX, so a lookup takes no time."""
    info = Path("/proc/cpuinfo")  # with the model's name: one architecture is fast and slow
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return Machine(
        platform=platform,
        device_kind=device_kind,
        processor=names[0] if names else os.uname().machine,
        cores=len(_own_cores()),
        # In whole GiB: what the kernel reserves differs from boot to boot.
        memory_bytes=psutil.virtual_memory().total // GIB * GIB,
        versions={package: metadata.version(package) for package in _PACKAGES},
    )


def _store_timings(machine: Machine, timings: tuple[Timing, ...]) -> _StoredProfile:
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    made = ChipProfile(schema=_SCHEMA, machine=machine, measured_on=today, timings=timings)
    return _StoredProfile(made, _keep(_KIND, made))


def _keep(kind: str, value: Value) -> Path:
    """Keep a value under its digest: write the whole file or none. One that exists is the same."""
    path = _folder_of(kind) / f"{codec.digest(value)}.json"
    try:
        processes.write_whole(path, codec.to_pretty_json(value).encode())
    except OSError as error:
        raise MeasurementFailed(f"{path}: cannot be written: {error.strerror}") from error
    return path


def _kept(kind: str, what: type[_Kept]) -> list[tuple[str, _Kept]]:
    """Return what is kept by its digests, the newest first. An unreadable file counts as absent."""
    found = []
    for path in _folder_of(kind).glob("*.json"):
        with suppress(OSError, msgspec.DecodeError):
            value = codec.from_json(path.read_bytes(), what)
            if codec.digest(value) == path.stem:
                found.append((path.stat().st_mtime, path.stem, value))
    return [(digest, value) for _, digest, value in sorted(found, key=lambda row: -row[0])]


def _folder_of(kind: str) -> Path:
    return platformdirs.user_cache_path("orch") / kind


def _newest(machine: Machine) -> _StoredProfile | None:
    return next((row for row in _stored_profiles() if row.profile.machine == machine), None)


def find(prefix: str) -> _StoredProfile:
    """Return the profile whose digest begins with a prefix."""
    profiles = _stored_profiles()
    same = [stored for stored in profiles if prefix and stored.path.stem.startswith(prefix)]
    if len(same) == 1:
        return same[0]
    known = [codec.short(stored.path.stem) for stored in profiles]
    raise UnknownName("chip profile", prefix, known or ["none: orch calibrate makes one"])


def _stored_profiles() -> list[_StoredProfile]:
    return [
        _StoredProfile(profile, _folder_of(_KIND) / f"{digest}.json")
        for digest, profile in _kept(_KIND, ChipProfile)
        if profile.schema == _SCHEMA
    ]


def _measure(plan: Plan | None = None) -> Measurements:
    """Time a plan's step on emulated devices; without a plan, one of this machine's own devices."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [*_COMMAND, str(folder / _RESULT)]
        if plan:
            (folder / _PLAN).write_bytes(codec.to_json(plan))
            command += [str(folder / _PLAN), f"{processes.LOOPBACK}:{processes.free_port()}"]
        busy = _BusyCores()
        hosts = plan.hosts if plan else 1
        started = [_start(command, plan, number, folder) for number in range(hosts)]
        try:
            status = started[0].wait(_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            why = f"this machine was not measured within {_LIMIT_S / 60:.0f} minutes"
            raise MeasurementFailed(why) from error
        finally:
            for process in started:
                process.kill()
                process.wait()
        if status:
            text = (folder / _LOG).read_text(encoding="utf-8", errors="replace")
            last = "\n".join(text.strip().splitlines()[-_LAST_LINES:])
            raise MeasurementFailed(f"this machine cannot be measured:\n{last}")
        measured = codec.from_json((folder / _RESULT).read_bytes(), Measurements)
        return replace(measured, others=busy.share_of_others())


def _start(
    command: list[str], plan: Plan | None, number: int, folder: Path
) -> subprocess.Popen[bytes]:
    """Start one process; the first one's output goes into the log."""
    if plan:
        command = [*command, str(number)]
        environment = processes.emulated_devices(os.environ, plan.devices_per_host)
        environment["MEGASCALE_SLICE_ID"] = str(number * plan.pods // plan.hosts)
    else:  # the devices of this machine are measured, which TPU_ describes
        environment = processes.without_device_settings(os.environ, keep=("TPU_",))
    with (folder / _LOG if number == 0 else Path(os.devnull)).open("wb") as log:
        # Ctrl-C is for the caller. In sessions of their own they would take 1.4 times as long:
        # Linux shares cores between sessions first. The processes of a rehearsal are in one.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
            process_group=0,
        )  # fmt: skip


class _BusyCores:
    """The cores that this process may use, and what was done on them since it was made."""

    def __init__(self) -> None:
        self.began_s, self.busy_s, self.own_s = time.monotonic(), _busy_s(), _own_s()

    def share_of_others(self) -> float:
        others_s = (_busy_s() - self.busy_s) - (_own_s() - self.own_s)
        return max(0.0, others_s / ((time.monotonic() - self.began_s) * len(_own_cores())))


def _own_cores() -> list[int]:
    return psutil.Process().cpu_affinity() if psutil.LINUX else list(range(os.cpu_count() or 1))


def _busy_s() -> float:
    """Return the seconds in which these cores worked, or were taken away by a hypervisor."""
    cores = psutil.cpu_times(percpu=True)
    return sum(sum(cores[n][:3]) + getattr(cores[n], "steal", 0.0) for n in _own_cores())


def _own_s() -> float:
    return sum(os.times()[:4])


# Own runs as evidence.

_OWN_KIND = "own-runs"
# Parts of `expected` that a trace shows by themselves.
_TRACED = {"matmuls": "matmul", "attention": "attention", "exposed tensor": "exposed_tensor"}


class OwnScore(Value):
    """What own runs teach, for each kind of chip, type and trainer; and runs that teach nothing."""

    learned: tuple[OwnConstants, ...]
    digests: tuple[str, ...]  # of each, which names it for `orch plan --profile`
    left_out: tuple[SkippedRow, ...]


def score_own(storage: str | Path = RUNS) -> OwnScore:
    """Learn from all own runs in a storage that were measured on chips, and keep what they teach.
    A rehearsal teaches nothing of chips.
    """
    where = folder(storage)
    groups, left_out = defaultdict[tuple[str, str, str], list[Measured]](list), []
    for run in list_runs(where)[0]:
        try:
            measured = _measured(Journal(where / run.run))
        except (JournalUnreadable, SpecError) as error:
            left_out.append(SkippedRow(id=run.run, reason=str(error)))
            continue
        plan = measured[1]
        groups[plan.chip, plan.precision.compute, plan.trainer].append(measured)
    learned = tuple(learn(sorted(runs, key=lambda run: run[0])) for runs in groups.values())
    for own in learned:
        _keep(_OWN_KIND, own)
    digests = tuple(map(codec.digest, learned))
    return OwnScore(learned=learned, digests=digests, left_out=tuple(left_out))


def own_run_row(run: str, storage: str | Path = RUNS) -> str:
    """Return a run as a CSV file of one row, in the format of published runs."""
    journal = find_run(folder(storage), run)
    report, plan = make_report(journal), journal.current_plan(journal.run())
    machine = _this_machine()
    return csv_text([own_row(report, plan, f"{machine.cores} cores of {machine.processor}")])


def find_own(prefix: str) -> OwnConstants | None:
    """Return the constants whose digest begins with a prefix, if exactly one does."""
    found = [own for digest, own in _kept(_OWN_KIND, OwnConstants) if digest.startswith(prefix)]
    return found[0] if len(found) == 1 and found[0].schema == OWN_SCHEMA else None


def _measured(journal: Journal) -> Measured:
    """Return what a run teaches; an error says why it teaches nothing."""
    plugins.require("prove")
    measure_traces(journal)
    report: Report = make_report(journal)
    plan: Plan = journal.current_plan(journal.run())
    if report.rehearsal:
        raise SpecError(f"a rehearsal of {plan.chip}: it ran on this machine's CPU")
    if report.measured is None:
        raise SpecError("no step was measured after warm-up")
    if not plan.ledger_describes_trainer or plan.stage or plan.chip_profile:
        raise SpecError("its plan has stages, a chip profile, or a trainer without a ledger")
    if not plan.forecast.expected_time:
        raise SpecError(f"no run on {plan.chip} is published: publish this one (orch score --row)")
    traced = dict[str, float]()
    for line in report.profile.lines if report.profile else ():
        if kind := _TRACED.get(line.part):
            traced[kind] = traced.get(kind, 0.0) + line.measured_s
    return report.run, plan, report.measured.step_s.median, traced
