"""Doctor room: what is looked at, each thing by a function of its own."""

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.types.health import Finding
from orchestrator.types.tracking import Destination

GIB = 2**30
LIMIT_S = 120
REACH_LIMIT_S = 5
PORTS = {"http": 80, "https": 443}
WANTED_PYTHON = (3, 11)
PROOF_MEMORY_BYTES = 4 * GIB  # of the largest specs, with what the rest of a machine takes
RUN_DISK_BYTES = 2 * GIB  # a rehearsal's checkpoints and logs, Ray's files
PINNED = re.compile(r"^([\w.-]+)(?:\[[^]]*\])?==([\w.]+)$")


def of_machine(storage: Path) -> tuple[Finding, ...]:
    """Everything about this machine, for runs kept under that folder."""
    return (
        python(),
        packages(),
        devices(),
        compiler(),
        memory(),
        disk("runs", storage),
        disk("temporary", Path(tempfile.gettempdir())),
        loopback(),
        processes(),
    )


def good(name: str, found: str) -> Finding:
    return Finding(name=name, health="good", found=found)


def limited(name: str, found: str, advice: str) -> Finding:
    return Finding(name=name, health="limited", found=found, advice=advice)


def broken(name: str, found: str, advice: str) -> Finding:
    return Finding(name=name, health="broken", found=found, advice=advice)


def python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < WANTED_PYTHON:
        return broken("python", found, "Python 3.11 or newer: make clean setup PYTHON=python3.12")
    return good("python", found)


def packages() -> Finding:
    """Those that orch pins exactly, because it leans on how they behave."""
    pinned = [match for line in metadata.requires("orch") or () if (match := PINNED.match(line))]
    differ = [
        f"{name} {there or 'missing'}, not {wanted}"
        for name, wanted in (match.groups() for match in pinned)
        if (there := installed(name)) != wanted
    ]
    if differ:
        return broken("packages", "; ".join(differ), "install what the lock says: make setup")
    named = ", ".join(f"{match[1]} {match[2]}" for match in pinned)
    return good("packages", named)


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def devices() -> Finding:
    """What JAX sees, asked in a process of its own: it may take an accelerator, or hang."""
    command = [sys.executable, "-m", "orchestrator.doctor.child"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return broken("devices", f"JAX found none in {LIMIT_S} s", "is another process using them?")
    if told.returncode:
        said = told.stderr.strip().splitlines() or ["JAX ended without a word"]
        return broken("devices", said[-1], "JAX_PLATFORMS=cpu leaves accelerators alone")
    there = json.loads(told.stdout.splitlines()[-1])
    if there["platform"] == "cpu":
        return good("devices", "the CPU alone: rehearsals run here, chips are a named cluster's")
    return good("devices", f"{there['count']} x {there['kind']} ({there['platform']})")


def compiler() -> Finding:
    version = installed("libtpu")
    if version is None:
        found = f"no libtpu for {platform.system()} {platform.machine()}"
        return limited("TPU compiler", found, "prove on Linux x86-64, or orch submit --no-prove")
    return good("TPU compiler", f"libtpu {version}: plans can be proven here, without a TPU")


def memory() -> Finding:
    available = available_bytes()
    if available is None:
        return good("memory", "unknown: this system does not tell")
    found = f"{available / GIB:.1f} GiB available, {os.cpu_count()} cores"
    if available < PROOF_MEMORY_BYTES:
        advice = f"a proof takes up to {PROOF_MEMORY_BYTES // GIB} GiB: end other programs first"
        return limited("memory", found, advice)
    return good("memory", found)


def available_bytes() -> int | None:
    """Memory that can be had without swapping, as Linux tells it."""
    try:
        told = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", told, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def disk(name: str, folder: Path) -> Finding:
    """Room and the right to write, where the folder is or would be made."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    found = f"{shutil.disk_usage(there).free / GIB:.1f} GiB free at {folder.absolute()}"
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return broken(name, f"{there}: {error.strerror}", f"a folder to write in: {settable(name)}")
    if shutil.disk_usage(there).free < RUN_DISK_BYTES:
        wants = f"a run wants some {RUN_DISK_BYTES // GIB} GiB"
        return limited(name, found, f"{wants}: {settable(name)}")
    return good(name, found)


def settable(name: str) -> str:
    return {"runs": "run.storage of the spec", "temporary": "TMPDIR"}[name]


def loopback() -> Finding:
    """Private clusters listen on loopback alone."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return broken("ports", f"127.0.0.1: {error}", "rehearsals need the loopback interface")
    return good("ports", "127.0.0.1 can be listened on")


def processes() -> Finding:
    if Path("/proc/self/environ").exists():
        return good("processes", "/proc tells which are a run's own")
    advice = "rehearse on Linux; plans, proofs and named clusters need it not"
    return limited("processes", f"no /proc on {platform.system()}", advice)


def store(where: Destination) -> Finding:
    """Where MLflow keeps runs; a server is knocked at."""
    parts = urlsplit(where.uri)
    if parts.scheme not in PORTS:
        return good("MLflow", f"recorded in {where.label}")
    try:
        place = (parts.hostname or "", parts.port or PORTS[parts.scheme])
        socket.create_connection(place, timeout=REACH_LIMIT_S).close()
    except OSError as error:
        found = f"nothing answers at {where.uri}: {error.strerror or error}"
        return broken("MLflow", found, "runs go on without it; orch sync records them later")
    return good("MLflow", f"{where.uri} answers")
