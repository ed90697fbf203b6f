"""What every Python process of a copy does first, by its `sitecustomize`.

A changed program may do anything, so it can signal only processes of its own campaign. On request
each process notes the lines that it executes: many are executed by children of a test alone.
"""

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

MARK = "MUTANT_MARK"  # whose process this is
TRACE = "MUTANT_TRACE"  # the folder in which it notes lines
TEST = "MUTANT_TEST"  # the test that started it
real_kill = os.kill


def enter() -> None:
    """Guard this process, and trace it if the campaign wants that."""
    if MARK in os.environ:
        os.kill = kill_own
    if TRACE in os.environ:
        tracer = ChildTracer(Path(os.environ[TRACE]), os.environ.get(TEST, ""))
        threading.settrace(tracer.enter)
        sys.settrace(tracer.enter)


def kill_own(pid: int, number: int, /) -> None:
    """Signal a process of this session, or one that carries the mark, or a child of such."""
    import psutil  # noqa: PLC0415  few processes signal another

    try:
        one = psutil.Process(pid)
        mine = os.getsid(pid) == os.getsid(0)
        if not mine and not any(_is_marked(each) for each in (one, *one.parents())):
            raise ProcessLookupError(pid)
    except psutil.Error:
        raise ProcessLookupError(pid) from None
    real_kill(pid, number)


def _is_marked(process: Any) -> bool:
    import psutil  # noqa: PLC0415

    try:
        return bool(process.environ().get(MARK) == os.environ[MARK])
    except (psutil.Error, OSError):
        return False


class ChildTracer:
    """Appends each line to a file of the process when it is first executed."""

    def __init__(self, folder: Path, test: str) -> None:
        root = folder.parent
        paths = (folder / "paths").read_text(encoding="utf-8").split()
        self._names = {str(root / path): path for path in paths}
        self._seen: set[tuple[str, int]] = set()
        # A descriptor that nobody closes: a file object would warn of it when a test ends.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._target = os.open(folder / f"{os.getpid()}.lines", flags, 0o600)
        os.write(self._target, f"{test}\n".encode())

    def enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """Trace the functions of the wanted files."""
        return self._line if frame.f_code.co_filename in self._names else None

    def _line(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        place = self._names[frame.f_code.co_filename], frame.f_lineno
        if place not in self._seen:
            self._seen.add(place)
            os.write(self._target, f"{place[0]} {place[1]}\n".encode())
        return self._line
