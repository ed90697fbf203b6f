"""What tests see of a cluster from outside: its processes and the sockets they listen on."""

import re
import time
from collections.abc import Callable
from pathlib import Path

PROC = Path("/proc")
LISTENING = "0A"  # as /proc/net/tcp says it


def eventually(holds: Callable[[], object], limit_s: float) -> None:
    """Wait until something holds; fail when it does not in time."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.2)


def child_of(pid: int) -> int | None:
    """A process whose parent is the one given."""
    for entry in PROC.iterdir():
        if entry.name.isdigit() and parent(entry) == pid:
            return int(entry.name)
    return None


def descendants(pid: int) -> set[int]:
    """The processes that one started, and those that they started."""
    children = {
        int(one.name) for one in PROC.iterdir() if one.name.isdigit() and parent(one) == pid
    }
    return children.union(*(descendants(child) for child in children))


def parent(entry: Path) -> int | None:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def variable(pid: int, name: str) -> str | None:
    """A variable that a process was started with."""
    try:
        environment = (PROC / str(pid) / "environ").read_bytes().decode()
    except OSError:  # it has ended
        return None
    for text in environment.split("\0"):
        if text.startswith(f"{name}="):
            return text.partition("=")[2]
    return None


def listening(pids: list[int]) -> set[tuple[str, int]]:
    """The addresses, as the kernel writes them, and ports on which processes listen."""
    mine = {inode for pid in pids for inode in sockets(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in mine:
                address, _, port = fields[1].partition(":")
                found.add((address, int(port, 16)))
    return found


def sockets(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open."""
    found = set()
    try:
        for entry in (PROC / str(pid) / "fd").iterdir():
            if match := re.fullmatch(r"socket:\[(\d+)\]", str(entry.readlink())):
                found.add(match[1])
    except OSError:
        return found  # it has just ended
    return found
