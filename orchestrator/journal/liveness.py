"""Journal room: which process this is, and whether another one still exists. Knows the system."""

import os
import socket
from pathlib import Path

from orchestrator.types.run import ProcessIdentity

PROC = Path("/proc")
ENDED_STATES = frozenset("ZX")  # ended, and not yet waited for by the parent


def this_process() -> ProcessIdentity:
    """Whoever calls."""
    pid = os.getpid()
    stat = _stat(pid)
    return ProcessIdentity(
        host=socket.gethostname(),
        pid=pid,
        machine=this_machine(),
        started=stat[1] if stat else None,
    )


def this_machine() -> str | None:
    """This boot of this machine, as processes see it that can see each other's pids."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {(PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return None


def is_gone(process: ProcessIdentity) -> bool:
    """Whether the process is known not to exist any more; False where this machine cannot know."""
    if process.machine is None or process.machine != this_machine():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it is another user's: it exists
    stat = _stat(process.pid)
    return stat is not None and (stat[0] in ENDED_STATES or stat[1] != process.started)


def is_alive(process: ProcessIdentity) -> bool:
    """Whether the process is known to exist; False where this machine cannot know."""
    here = process.machine is not None and process.machine == this_machine()
    return here and not is_gone(process)


def _stat(pid: int) -> tuple[str, str] | None:
    """State and time of start of a process; None where the system does not say."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # a name in brackets may hold anything
    return fields[0], fields[19]
