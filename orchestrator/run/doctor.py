"""Check what this machine can do, and the files of a run; give advice for the rest."""

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
from orchestrator.errors import JournalUnreadable, OrchError
from orchestrator.formatting import GIB, ago
from orchestrator.journal import events, files, ownership
from orchestrator.journal.listing import find_run
from orchestrator.journal.run_journal import Journal, read_value
from orchestrator.journal.run_state import RunState
from orchestrator.journal.steps import read_table, summarize_steps, written_steps
from orchestrator.launch.backend import ClusterUnusable, find_backend
from orchestrator.planning.planner import make_plan, plan_on
from orchestrator.planning.rehearsal import rehearse
from orchestrator.run.cluster import refusal_note
from orchestrator.run.progress import RUNS
from orchestrator.storage.addresses import folder, is_address
from orchestrator.tracking.destinations import destination
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.run import FileFinding, FileKind, Finding, HealthReport, RunHealth
from orchestrator.values.spec import TrackingOptions

_DEVICES_LIMIT_S = 120
# The program that imports JAX, in a process of its own: it may hang, or take an accelerator.
_DEVICES = """
import json, jax
devices = jax.devices()
first = devices[0]
print(json.dumps({"count": len(devices), "platform": first.platform, "kind": first.device_kind}))
"""
_CONNECT_LIMIT_S = 5
_PORTS = {"http": 80, "https": 443}
_OLDEST_PYTHON = (3, 11)
_PROOF_MEMORY_BYTES = 4 * GIB  # of the largest specs, with the rest of the machine
_RUN_DISK_BYTES = 2 * GIB  # a rehearsal's checkpoints and logs, and Ray's files


def doctor(storage: str | Path = RUNS, *, address: str | None = None) -> HealthReport:
    """Return what this machine can do, and what to do about what it cannot."""
    place = folder(storage)
    checks = [
        *_software(), _devices(), _compiler(), memory(),
        _disk("runs", place, "run.storage of the spec"),
        _disk("temporary", Path(tempfile.gettempdir()), "TMPDIR"),
        *_local_services(place),
    ]  # fmt: skip
    named = address or os.environ.get("RAY_ADDRESS")
    if named:
        checks.append(_cluster(named))
    with suppress(OSError):  # what a cluster refused last, until one refuses nothing
        note = refusal_note()
        refuser, said = note.read_text(encoding="utf-8").split("\n", 1)
        if named in (None, refuser):
            advice = "orch submit SPEC --dry-run asks it again"
            when = ago(time.time() - note.stat().st_mtime)
            checks.append(_limited("refusal", f"{said} ({when})", advice))
    return HealthReport(findings=tuple(checks))


def _good(name: str, detail: str) -> Finding:
    return Finding(name=name, health="good", detail=detail)


def _limited(name: str, detail: str, advice: str) -> Finding:
    return Finding(name=name, health="limited", detail=detail, advice=advice)


def _broken(name: str, detail: str, advice: str) -> Finding:
    return Finding(name=name, health="broken", detail=detail, advice=advice)


def _software() -> Iterator[Finding]:
    """Yield the Python, the extras (orch plans, explains and scores without any), the versions."""
    detail = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info >= _OLDEST_PYTHON:
        yield _good("python", detail)
    else:
        advice = "Python 3.11 or newer: make clean setup PYTHON=python3.12"
        yield _broken("python", detail, advice)
    absent = [name for name in plugins.PACKAGES if plugins.missing(name)]
    installed = [name for name in plugins.PACKAGES if name not in absent]
    detail = f"installed: {', '.join(installed) or 'none'}"
    absent = [name for name in absent if name != "gpu"]  # only for proofs of plans for GPUs
    if absent:
        names = ",".join(absent)
        yield _limited("extras", f"{detail}; missing: {names}", plugins.install_command(names))
    else:
        yield _good("extras", detail)
    pinned = plugins.pinned()
    versions = {name: _installed_version(name) for name in pinned}
    differ = [
        f"{name} {version}, not {pinned[name]}"
        for name, version in versions.items()
        if version not in (None, pinned[name])
    ]
    present = [f"{name} {version}" for name, version in versions.items() if version]
    if differ:
        yield _broken("packages", "; ".join(differ), "install the locked versions: make setup")
    else:
        yield _good("packages", ", ".join(present) or "none with an exact version")


def _installed_version(name: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _devices() -> Finding:
    if plugins.missing("prove"):
        return _limited("devices", "JAX is not installed", plugins.install_command("prove"))
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-c", _DEVICES],
            capture_output=True, text=True, timeout=_DEVICES_LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        detail = f"JAX found none in {_DEVICES_LIMIT_S} s"
        return _broken("devices", detail, "another process may be using them")
    if child.returncode:
        lines = child.stderr.strip().splitlines() or ["JAX ended without a message"]
        return _broken("devices", lines[-1], "JAX_PLATFORMS=cpu leaves accelerators alone")
    answer = json.loads(child.stdout.splitlines()[-1])
    if answer["platform"] == "cpu":
        return _good("devices", "CPU only: rehearsals run here; real runs need a cluster")
    return _good("devices", f"{answer['count']} x {answer['kind']} ({answer['platform']})")


def _compiler() -> Finding:
    version = _installed_version("libtpu")
    if version is None and (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        return _limited("TPU compiler", "libtpu is not installed", plugins.install_command("prove"))
    if version is None:
        detail = f"no libtpu for {platform.system()} {platform.machine()}"
        return _limited("TPU compiler", detail, "prove on Linux x86-64, or orch submit --no-prove")
    return _good("TPU compiler", f"libtpu {version} proves plans here, without a TPU")


def memory() -> Finding:
    available = psutil.virtual_memory().available  # without swapping
    detail = f"{available / GIB:.1f} GiB available, {os.cpu_count()} cores"
    if available < _PROOF_MEMORY_BYTES:
        advice = f"a proof takes up to {_PROOF_MEMORY_BYTES // GIB} GiB: end other programs first"
        return _limited("memory", detail, advice)
    return _good("memory", detail)


def _disk(name: str, place: Path, setting: str) -> Finding:
    """Check free space and the right to write, in a folder or its nearest existing parent."""
    parents = (place.absolute(), *place.absolute().parents)
    existing = next(path for path in parents if path.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / GIB:.1f} GiB free at {place.absolute()}"
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return _broken(name, f"{existing}: {error.strerror}", f"set a writable folder: {setting}")
    if free < _RUN_DISK_BYTES:
        advice = f"a run needs about {_RUN_DISK_BYTES // GIB} GiB: set another folder: {setting}"
        return _limited(name, detail, advice)
    return _good(name, detail)


def _local_services(storage: Path) -> Iterator[Finding]:
    """Yield what rehearsals need of the system, and where MLflow stores runs."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=_CONNECT_LIMIT_S).close()
        yield _good("ports", "127.0.0.1 accepts connections")
    except OSError as error:
        yield _broken("ports", f"127.0.0.1: {error}", "rehearsals need the loopback interface")
    if Path("/proc/self/environ").exists():
        yield _good("processes", "/proc shows which belong to a run")
    else:
        advice = "rehearse on Linux; plans, proofs and real runs do not need it"
        yield _limited("processes", f"no /proc on {platform.system()}", advice)
    where = destination(TrackingOptions(), storage, os.environ)
    parts = urlsplit(where.uri)
    if parts.scheme not in _PORTS:
        yield _good("MLflow", f"recorded in {where.label}")
        return
    try:  # a server must accept a connection
        server_place = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        socket.create_connection(server_place, timeout=_CONNECT_LIMIT_S).close()
        yield _good("MLflow", f"{where.uri} answers")
    except OSError as error:
        detail = f"nothing answers at {where.uri}: {error.strerror or error}"
        yield _broken("MLflow", detail, "runs go on without it; orch sync records them later")


def _cluster(address: str) -> Finding:
    try:
        is_folder = is_address(address) or Path(address).is_dir()  # in which hosts meet
        find_backend("hosts" if is_folder else "ray").connect(address)
    except ClusterUnusable as error:
        return _broken("cluster", str(error), "docs/launch.md says how to reach one")
    return _good("cluster", f"{address} answers; orch submit SPEC --dry-run asks for slices")


# What is wrong with the files of a run, what of it can be repaired, and repairing that.


def doctor_run(run: str, storage: str | Path = RUNS, *, repairs: bool = False) -> RunHealth:
    """Return what is wrong with a run's files; with `repairs`, after what can be repaired was."""
    journal = find_run(folder(storage), run)
    found = list(_findings(journal))
    repaired = [finding for finding in found if finding.repairable and repairs]
    for finding in repaired:
        if finding.kind == "event":
            if journal.state().damage:  # one repair is for all events
                ownership.repair_events(journal)
        elif (content := _remade(journal, journal.state(), finding.file)) is not None:
            ownership.replace_file(journal, finding.file, content)
    if repairs:
        found = list(_findings(journal))
    return RunHealth(run=journal.key, findings=tuple(found), repaired=tuple(repaired))


def _fault(kind: FileKind, file: str, what: str, advice: str, **found: bool) -> FileFinding:
    effects = {"stops": False, "repairable": False} | found
    return FileFinding(kind=kind, file=file, what=what, advice=advice, **effects)


def _findings(journal: Journal) -> Iterator[FileFinding]:
    state, paths = journal.state(), journal.paths
    put_back = "put back a copy of it: it cannot be made again"
    for fault in state.damage:
        advice = "the run goes on from the events that are left; what this one said is lost"
        yield _fault("event", fault.file, fault.what, advice, stops=True, repairable=True)
    # Check the spec, the plans and the documents, whose sums an event has.
    for name, sha256 in journal.sums(state).items():
        if (what := _difference(paths.root / name, sha256)) is None:
            continue
        document = name.startswith("documents/")
        repairable = not document and _remade(journal, state, name) is not None
        kind: FileKind = "plan" if name.startswith("plans/") else "spec"
        advice = "it is made again from the spec" if repairable else put_back
        yield _fault(
            "document" if document else kind, name, what, advice,
            stops=not document, repairable=repairable,
        )  # fmt: skip
    for attempt in state.attempts:
        if attempt.written and attempt.written == written_steps(journal.path, attempt.number):
            summary, _ = summarize_steps(journal.path, attempt)
            if summary.steps_done >= (attempt.saved_steps or 0):
                continue
        table, problems = read_table(journal.path, attempt)
        done = int(table.index[-1]) + 1 if len(table) else 0
        lost = attempt.written.lines - len(table) if attempt.written else 0
        if len(table) and not attempt.written:
            lost = done - int(table.index[0]) - len(np.unique(table.index))
        lost = max(lost, (attempt.saved_steps or 0) - done)
        if problems or lost > 0:
            what = problems[0].what if problems else f"ends after step {done:,}"
            advice = f"reports leave out {lost:,} steps of attempt {attempt.number}"
            yield _fault("steps", paths.name_of(paths.steps(attempt.number)), what, advice)
    yield from _checkpoints_and_proofs(journal, state)


def _checkpoints_and_proofs(journal: Journal, state: RunState) -> Iterator[FileFinding]:
    paths = journal.paths
    # The newest checkpoint: without it the run goes on from an earlier one, if there is.
    for save in state.saves[-1:]:
        if what := _difference(paths.checkpoint_sums(save), save.sha256):
            advice = "put it back: else a resume goes on from an earlier one that is left, or not"
            advice += " at all, and the spec is to be submitted anew"
            stops = not any(journal.has_checkpoint(earlier) for earlier in state.saves)
            name = paths.name_of(paths.checkpoint(save))
            yield _fault("checkpoint", name, f"its sums: {what}", advice, stops=stops)
    for name in files.names(paths.proofs):
        path = paths.proofs / name
        try:
            read_value(path, Proof)
        except JournalUnreadable as error:
            advice = "remove it, and prove the spec again: orch prove SPEC"
            yield _fault("proof", paths.name_of(path), error.why, advice)


def _difference(path: Path, sha256: str) -> str | None:
    try:
        content = files.read(path)
    except FileNotFoundError:
        return "is missing"
    except JournalUnreadable as error:
        return error.why
    return None if events.digest(content) == sha256 else "was changed after it was written"


def _remade(journal: Journal, state: RunState, name: str) -> bytes | None:
    """Return a plan as this version of orch makes it, if it is the same to the byte."""
    sha256 = journal.sums(state)[name]
    with suppress(OrchError):
        for plan in _plans(journal, state):
            content = codec.to_pretty_json(plan).encode()
            if events.digest(content) == sha256:
                return content
    return None


def _plans(journal: Journal, state: RunState) -> Iterator[Plan]:
    """Yield the plans that a run may have: of its spec, its rehearsal, and on other pods."""
    spec, submission = journal.spec(), state.submitted.submission
    plan = make_plan(spec)
    yield plan
    if submission.rehearsal:
        yield rehearse(spec, plan, steps=submission.steps).plan
    first = journal.plan(submission.plan_digest)
    for pods in {attempt.pods for attempt in state.attempts}:
        yield plan_on(spec, first, pods)
