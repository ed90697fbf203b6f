"""The checks, a function each, in the order in which a run needs what they look at."""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil

from orchestrator import plugins
from orchestrator.errors import JournalUnreadable, OrchError, install_command
from orchestrator.formatting import GIB
from orchestrator.journal import events, files, ownership
from orchestrator.journal.run_journal import Clock, Journal
from orchestrator.journal.run_state import RunState
from orchestrator.journal.steps import read_table
from orchestrator.launch.backend import ClusterUnusable, find_backend
from orchestrator.planning.planner import make_plan, plan_on
from orchestrator.planning.rehearsal import rehearse
from orchestrator.tracking.protocol import destination
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.run import (
    Attempt,
    Destination,
    FileFinding,
    Finding,
    HealthReport,
    RunHealth,
)
from orchestrator.values.run_options import TrackingOptions

DEVICES_LIMIT_S = 120
CONNECT_LIMIT_S = 5
PORTS = {"http": 80, "https": 443}
OLDEST_PYTHON = (3, 11)
COMPILER_PLATFORM = ("Linux", "x86_64")
PROOF_MEMORY_BYTES = 4 * GIB  # of the largest specs, with the rest of the machine
RUN_DISK_BYTES = 2 * GIB  # a rehearsal's checkpoints and logs, and Ray's files
FOLDER_SETTINGS = {"runs": "run.storage of the spec", "temporary": "TMPDIR"}


def of_machine(storage: Path) -> tuple[Finding, ...]:
    """Everything about this machine, for runs in that folder."""
    return (
        python(),
        optional_parts(),
        packages(),
        devices(),
        compiler(),
        memory(),
        disk("runs", storage),
        disk("temporary", Path(tempfile.gettempdir())),
        loopback(),
        processes(),
    )


def good(name: str, detail: str) -> Finding:
    return Finding(name=name, health="good", detail=detail)


def limited(name: str, detail: str, advice: str) -> Finding:
    return Finding(name=name, health="limited", detail=detail, advice=advice)


def broken(name: str, detail: str, advice: str) -> Finding:
    return Finding(name=name, health="broken", detail=detail, advice=advice)


def python() -> Finding:
    detail = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return broken("python", detail, "Python 3.11 or newer: make clean setup PYTHON=python3.12")
    return good("python", detail)


def optional_parts() -> Finding:
    """Which extras are installed; without any, orch plans, explains and scores."""
    absent = [name for name in plugins.PACKAGES if plugins.missing(name)]
    installed = [name for name in plugins.PACKAGES if name not in absent]
    detail = f"installed: {', '.join(installed) or 'none'}"
    if absent:
        names = ",".join(absent)
        return limited("extras", f"{detail}; missing: {names}", install_command(names))
    return good("extras", detail)


def packages() -> Finding:
    """Whether the packages with an exact version have it."""
    pinned = plugins.pinned()
    versions = {name: installed_version(name) for name in pinned}
    differ = [
        f"{name} {version}, not {pinned[name]}"
        for name, version in versions.items()
        if version not in (None, pinned[name])
    ]
    if differ:
        return broken("packages", "; ".join(differ), "install the locked versions: make setup")
    present = [f"{name} {version}" for name, version in versions.items() if version]
    return good("packages", ", ".join(present) or "none with an exact version")


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def devices() -> Finding:
    """What JAX finds, in a process of its own: it may hang, or take an accelerator."""
    if plugins.missing("prove"):
        return limited("devices", "JAX is not installed", install_command("prove"))
    command = [sys.executable, "-m", "orchestrator.run.doctor_child"]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=DEVICES_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        detail = f"JAX found none in {DEVICES_LIMIT_S} s"
        return broken("devices", detail, "another process may be using them")
    if child.returncode:
        lines = child.stderr.strip().splitlines() or ["JAX ended without a message"]
        return broken("devices", lines[-1], "JAX_PLATFORMS=cpu leaves accelerators alone")
    answer = json.loads(child.stdout.splitlines()[-1])
    if answer["platform"] == "cpu":
        return good("devices", "CPU only: rehearsals run here; real runs need a cluster")
    return good("devices", f"{answer['count']} x {answer['kind']} ({answer['platform']})")


def compiler() -> Finding:
    version = installed_version("libtpu")
    if version is None and (platform.system(), platform.machine()) == COMPILER_PLATFORM:
        return limited("TPU compiler", "libtpu is not installed", install_command("prove"))
    if version is None:
        detail = f"no libtpu for {platform.system()} {platform.machine()}"
        return limited("TPU compiler", detail, "prove on Linux x86-64, or orch submit --no-prove")
    return good("TPU compiler", f"libtpu {version} proves plans here, without a TPU")


def memory() -> Finding:
    available = available_bytes()
    detail = f"{available / GIB:.1f} GiB available, {os.cpu_count()} cores"
    if available < PROOF_MEMORY_BYTES:
        advice = f"a proof takes up to {PROOF_MEMORY_BYTES // GIB} GiB: end other programs first"
        return limited("memory", detail, advice)
    return good("memory", detail)


def available_bytes() -> int:
    """Memory that a program gets without swapping."""
    return int(psutil.virtual_memory().available)


def disk(name: str, folder: Path) -> Finding:
    """Free space and the right to write, in the folder or in its nearest existing parent."""
    parents = (folder.absolute(), *folder.absolute().parents)
    existing = next(path for path in parents if path.exists())
    free = shutil.disk_usage(existing).free
    detail, setting = f"{free / GIB:.1f} GiB free at {folder.absolute()}", FOLDER_SETTINGS[name]
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return broken(name, f"{existing}: {error.strerror}", f"set a writable folder: {setting}")
    if free < RUN_DISK_BYTES:
        advice = f"a run needs about {RUN_DISK_BYTES // GIB} GiB: set another folder: {setting}"
        return limited(name, detail, advice)
    return good(name, detail)


def loopback() -> Finding:
    """Rehearsals listen on loopback alone."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=CONNECT_LIMIT_S).close()
    except OSError as error:
        return broken("ports", f"127.0.0.1: {error}", "rehearsals need the loopback interface")
    return good("ports", "127.0.0.1 accepts connections")


def processes() -> Finding:
    if Path("/proc/self/environ").exists():
        return good("processes", "/proc shows which belong to a run")
    advice = "rehearse on Linux; plans, proofs and real runs do not need it"
    return limited("processes", f"no /proc on {platform.system()}", advice)


def store(where: Destination) -> Finding:
    """Where MLflow stores runs; a server must accept a connection."""
    parts = urlsplit(where.uri)
    if parts.scheme not in PORTS:
        return good("MLflow", f"recorded in {where.label}")
    try:
        address = (parts.hostname or "", parts.port or PORTS[parts.scheme])
        socket.create_connection(address, timeout=CONNECT_LIMIT_S).close()
    except OSError as error:
        detail = f"nothing answers at {where.uri}: {error.strerror or error}"
        return broken("MLflow", detail, "runs go on without it; orch sync records them later")
    return good("MLflow", f"{where.uri} answers")


# The health of this machine, of the place where runs are tracked, and of a named cluster.


def health(storage: Path, address: str | None) -> HealthReport:
    """What this machine can do; each thing that it cannot has advice."""
    named = address or os.environ.get("RAY_ADDRESS")
    clusters = (cluster_health(named),) if named else ()
    tracking = store(destination(TrackingOptions(), storage, os.environ))
    return HealthReport(findings=(*of_machine(storage), tracking, *clusters))


def cluster_health(address: str) -> Finding:
    """Whether a named cluster lets us in."""
    try:
        find_backend("ray").connect(address)
    except ClusterUnusable as error:
        return broken("cluster", str(error), "docs/launch.md says how to reach one")
    return good("cluster", f"{address} answers; orch submit SPEC --dry-run asks for slices")


# What is wrong with the files of a run, what of it can be repaired, and repairing that.


PUT_BACK = "put back a copy of it: it cannot be made again"


def run_health(journal: Journal, *, repairs: bool = False, clock: Clock = time.time) -> RunHealth:
    """The state of a run's files; with `repairs`, after what can be repaired was."""
    found = list(_findings(journal))
    repaired: list[FileFinding] = []
    if repairs:
        repaired = [one for one in found if one.repairable]
        for one in repaired:
            _repair(journal, one, clock)
        found = list(_findings(journal))
    return RunHealth(run=journal.key, findings=tuple(found), repaired=tuple(repaired))


def _findings(journal: Journal) -> Iterator[FileFinding]:
    state = journal.state()
    yield from _events(state)
    yield from _written_once(journal, state)
    for attempt in state.attempts:
        yield from _steps(journal, attempt)
    yield from _checkpoints(journal, state)
    yield from _proofs(journal)


def _repair(journal: Journal, found: FileFinding, clock: Clock) -> None:
    if found.kind == "event":
        if journal.state().damage:  # one repair is for all events
            ownership.repair_events(journal, clock)
    elif (content := _remade(journal, journal.state(), found.file)) is not None:
        ownership.replace_file(journal, found.file, content, clock)


# --- events


def _events(state: RunState) -> Iterator[FileFinding]:
    for fault in state.damage:
        yield FileFinding(
            kind="event",
            file=fault.file,
            what=fault.what,
            stops=True,
            repairable=True,
            advice="the run goes on from the events that are left; what this one said is lost",
        )


# --- files that an event has the sum of


def _written_once(journal: Journal, state: RunState) -> Iterator[FileFinding]:
    """The spec, the plans and the documents."""
    for name, sha256 in journal.sums(state).items():
        if (what := _difference(journal.paths.root / name, sha256)) is None:
            continue
        document = name.startswith("documents/")
        repairable = not document and _remade(journal, state, name) is not None
        yield FileFinding(
            kind="document" if document else "plan" if name.startswith("plans/") else "spec",
            file=name,
            what=what,
            stops=not document,
            repairable=repairable,
            advice="it is made again from the spec" if repairable else PUT_BACK,
        )


def _difference(path: Path, sha256: str) -> str | None:
    """How a file differs from what was written, if it does."""
    try:
        content = files.read(path)
    except FileNotFoundError:
        return "is missing"
    except JournalUnreadable as error:
        return error.why
    return None if events.digest(content) == sha256 else "was changed after it was written"


def _remade(journal: Journal, state: RunState, name: str) -> bytes | None:
    """A plan as this version of orch makes it from the spec, if it is the same to the byte."""
    sha256 = journal.sums(state)[name]
    with suppress(OrchError):
        for plan in _plans(journal, state):
            content = codec.to_pretty_json(plan).encode()
            if events.digest(content) == sha256:
                return content
    return None


def _plans(journal: Journal, state: RunState) -> Iterator[Plan]:
    """The plans that a run may have: of its spec, its rehearsal, and on other numbers of pods."""
    spec, submission = journal.spec(), state.submitted.submission
    plan = make_plan(spec)
    yield plan
    if submission.rehearsal:
        yield rehearse(spec, plan, steps=submission.steps).plan
    first = journal.plan(submission.plan_digest)
    for pods in {one.pods for one in state.attempts}:
        yield plan_on(spec, first, pods)


# --- steps, checkpoints, proofs


def _steps(journal: Journal, attempt: Attempt) -> Iterator[FileFinding]:
    table, problems = read_table(journal.path, attempt)
    name = journal.paths.name_of(journal.paths.steps(attempt.number))
    lost = attempt.written.lines - len(table) if attempt.written else 0
    first = int(table.index[0]) if len(table) else 0
    if len(table) and not attempt.written:
        lost = int(table.index[-1]) + 1 - first - len(np.unique(table.index))
    saved = attempt.saved_steps or 0
    done = int(table.index[-1]) + 1 if len(table) else 0
    if not problems and lost <= 0 and (not saved or done >= saved):
        return
    yield FileFinding(
        kind="steps",
        file=name,
        what=problems[0].what if problems else f"ends after step {done:,}",
        stops=False,
        repairable=False,
        advice=f"reports leave out {max(lost, saved - done):,} steps of attempt {attempt.number}",
    )


def _checkpoints(journal: Journal, state: RunState) -> Iterator[FileFinding]:
    """The newest checkpoint: without it the run goes on from an earlier one, if one is left."""
    if not state.saves:
        return
    saved = state.saves[-1]
    folder = journal.paths.checkpoint(saved)
    if what := _difference(journal.paths.checkpoint_sums(saved), saved.sha256):
        yield FileFinding(
            kind="checkpoint",
            file=journal.paths.name_of(folder),
            what=f"its sums: {what}",
            stops=not any(journal.has_checkpoint(one) for one in state.saves),
            repairable=False,
            advice="put it back: else a resume goes on from an earlier one that is left, or not at"
            " all, and the spec is to be submitted anew",
        )


def _proofs(journal: Journal) -> Iterator[FileFinding]:
    for name in files.names(journal.paths.proofs):
        path = journal.paths.proofs / name
        try:
            journal.read_proof(path)
        except JournalUnreadable as error:
            yield FileFinding(
                kind="proof",
                file=journal.paths.name_of(path),
                what=error.why,
                stops=False,
                repairable=False,
                advice="remove it, and prove the spec again: orch prove SPEC",
            )
