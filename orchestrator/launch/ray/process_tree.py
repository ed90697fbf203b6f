"""Finds every process that a private cluster started, by a mark, and ends them.

A process inherits the environment of whoever started it, so a mark in it finds raylets, agents and
workers alike, also those whose parents are dead.
"""

import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "ORCH_CLUSTER"
LIMIT_S = 20.0
POLL_S = 0.05


def marked(mark: str) -> list[int]:
    """The processes that carry a mark. Zombies do not count."""
    return [process.pid for process in _marked(mark)]


def runs(mark: str, command: str) -> bool:
    """Whether a process that carries a mark was started with this command."""
    words = shlex.split(command)
    return any(_words(process) == words for process in _marked(mark))


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def end_all(mark: str, *spared: int) -> None:
    """Kill every process that carries a mark, until only the spared ones are left."""
    deadline = time.monotonic() + LIMIT_S
    while left := [process for process in _marked(mark) if process.pid not in spared]:
        if time.monotonic() > deadline:
            return
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(POLL_S)


def remove(folder: Path) -> None:
    """Remove a cluster's folder with its token and sockets."""
    shutil.rmtree(folder, ignore_errors=True)


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or belongs to somebody else
            if process.environ().get(MARK) == mark:
                yield process
