"""Launch room: every process that a private cluster started, found by a mark, and their end.

Whatever is started inherits the environment of who started it, so a mark in it finds raylets,
agents and workers alike, also those whose parents are dead.
"""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK = "ORCH_CLUSTER"
PROC = Path("/proc")
LIMIT_S = 20.0
POLL_S = 0.05


def marked(mark: str) -> list[int]:
    """The processes that carry a mark, those that ended and wait for their parent left out."""
    needle = f"{MARK}={mark}".encode()
    return [pid for pid in _pids() if needle in _environment(pid)]


def end_all(mark: str, *spared: int) -> None:
    """Kill every process that carries a mark, until none is left but those that are spared."""
    deadline = time.monotonic() + LIMIT_S
    while left := [pid for pid in marked(mark) if pid not in spared]:
        if time.monotonic() > deadline:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def remove(folder: Path) -> None:
    """Remove a cluster's folder, token and sockets included."""
    shutil.rmtree(folder, ignore_errors=True)


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    """What a process was started with; nothing where it has ended or belongs to somebody else."""
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
