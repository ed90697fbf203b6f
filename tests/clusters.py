"""What tests see of a cluster from outside: its processes, and the sockets they listen on."""

import time
from collections.abc import Callable
from contextlib import suppress

import psutil


def eventually(holds: Callable[[], object], limit_s: float) -> None:
    """Wait until something holds; fail when it does not in time."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.2)


def child_of(pid: int) -> int | None:
    """The first child of a process."""
    return next((child.pid for child in psutil.Process(pid).children()), None)


def descendants(pid: int) -> set[int]:
    """The children of a process, and theirs."""
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def variable(pid: int, name: str) -> str | None:
    """A variable that a process was started with; None when it has ended."""
    with suppress(psutil.Error):
        return psutil.Process(pid).environ().get(name)
    return None


def listening(pids: list[int]) -> set[tuple[str, int]]:
    """The addresses and ports on which processes listen."""
    found = set()
    for pid in pids:
        with suppress(psutil.Error):
            for connection in psutil.Process(pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add((connection.laddr.ip, connection.laddr.port))
    return found
