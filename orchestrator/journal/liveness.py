"""The identity of processes, and whether a process still exists."""

import os
import socket
import time
from pathlib import Path

import psutil

from orchestrator.types.run import ProcessIdentity

PROC = Path("/proc")
ENDED = frozenset({psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})
# The boot time that the system reports moves by up to a second when its clock is adjusted.
CLOCK_TOLERANCE_S = 2.0


def this_process() -> ProcessIdentity:
    """The calling process."""
    pid = os.getpid()
    return ProcessIdentity(
        host=socket.gethostname(),
        pid=pid,
        machine=this_machine(),
        started_s=_started_s(psutil.Process(pid)),
    )


def this_machine() -> str | None:
    """This boot of this machine, as seen by processes that share its process numbers.

    Containers on one machine share the boot but not the numbers: the pid namespace tells them
    apart, which psutil does not report.
    """
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {(PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return None


def is_known(process: ProcessIdentity) -> bool:
    """Whether this machine is that of the process, and so knows whether it exists."""
    return process.machine is not None and process.machine == this_machine()


def uptime_s() -> float:
    """Seconds since this machine started, but for those asleep. Processes on it may compare them:
    adjusting the clock changes none.
    """
    return time.monotonic()


def is_gone(process: ProcessIdentity) -> bool:
    """Whether the process is known to have ended; False where this machine cannot know."""
    if not is_known(process):
        return False
    try:
        current = psutil.Process(process.pid)
        reused = abs(_started_s(current) - process.started_s) > CLOCK_TOLERANCE_S
        return reused or current.status() in ENDED
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False  # it belongs to another user: it exists


def is_alive(process: ProcessIdentity) -> bool:
    """Whether the process is known to exist; False where this machine cannot know."""
    return is_known(process) and not is_gone(process)


def _started_s(process: psutil.Process) -> float:
    """Seconds from boot to the start of a process; adjusting the clock does not change it."""
    return round(process.create_time() - psutil.boot_time(), 2)
