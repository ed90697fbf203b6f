"""Describes this machine as far as its speed goes. Without JAX, so that a lookup takes no time."""

import os
import platform
from importlib import metadata
from pathlib import Path

from orchestrator.types.chip_profile import Machine

GIB = 2**30
PACKAGES = ("jax", "jaxlib")


def this_machine(platform_name: str = "cpu", device_kind: str = "cpu") -> Machine:
    """This machine with devices of that kind; CPU devices can be emulated on any machine."""
    return Machine(
        platform=platform_name,
        device_kind=device_kind,
        processor=processor(),
        cores=cores(),
        memory_bytes=memory_bytes(),
        versions={package: metadata.version(package) for package in PACKAGES},
    )


def processor() -> str:
    """The model name: one architecture has fast and slow processors."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """In whole GiB: what the kernel reserves differs from boot to boot."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total // GIB * GIB
