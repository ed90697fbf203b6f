"""Calibrate room: which machine this is, as far as its speed goes. Knows /proc, where there is one.

Without JAX: a profile that is kept is found in no time.
"""

import os
import platform
from importlib import metadata
from pathlib import Path

from orchestrator.calibrate.words import Devices
from orchestrator.types.chip_profile import Machine

GIB = 2**30
PACKAGES = ("jax", "jaxlib")


def emulating() -> Machine:
    """This machine with the CPU devices that any of its processes can emulate."""
    versions = {package: metadata.version(package) for package in PACKAGES}
    return with_devices(Devices(platform="cpu", kind="cpu", count=1, versions=versions))


def with_devices(devices: Devices) -> Machine:
    """This machine with the devices that JAX finds in it."""
    return Machine(
        platform=devices.platform,
        device_kind=devices.kind,
        processor=_processor(),
        cores=_cores(),
        memory_bytes=_memory_bytes(),
        versions=devices.versions,
    )


def _processor() -> str:
    """The processor's own name: of one architecture there are fast and slow ones."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def _cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int:
    """In whole GiB: what the kernel keeps for itself differs from boot to boot."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total // GIB * GIB
