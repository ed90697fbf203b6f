"""The checks, a function each, in the order in which a run needs what they look at."""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from orchestrator import extras
from orchestrator.errors import install_command
from orchestrator.formatting import GIB
from orchestrator.types.health import Finding
from orchestrator.types.tracking import Destination

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
    absent = [name for name in extras.PACKAGES if extras.missing(name)]
    installed = [name for name in extras.PACKAGES if name not in absent]
    detail = f"installed: {', '.join(installed) or 'none'}"
    if absent:
        names = ",".join(absent)
        return limited("extras", f"{detail}; missing: {names}", install_command(names))
    return good("extras", detail)


def packages() -> Finding:
    """Whether the packages with an exact version have it."""
    pinned = extras.pinned()
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
    if extras.missing("prove"):
        return limited("devices", "JAX is not installed", install_command("prove"))
    command = [sys.executable, "-m", "orchestrator.doctor.child"]
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
