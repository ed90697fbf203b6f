"""Points of a run's processes at which a fault can strike exactly, not after some seconds.

A campaign arms a point with a file. The process that comes to it says so, and waits until the
campaign lets it go on, or for ever when the fault ends it.
"""

import functools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.journal import liveness

VARIABLE = "CHAOS_POINTS"  # the folder of the points; nothing happens without it
MACHINE = "CHAOS_MACHINE"  # the machine that a process takes itself to be on
LONGEST_S = 120.0
POLL_S = 0.005


@dataclass(frozen=True)
class Points:
    """The points of one run, in a folder that its processes share."""

    folder: Path

    def arm(self, name: str, who: str) -> None:
        """Let the next process of that kind wait at that point."""
        self._reached.unlink(missing_ok=True)
        partial = self.folder / "armed.partial"
        partial.write_text(f"{name} {who}", encoding="utf-8")
        partial.rename(self._armed)

    def disarm(self) -> None:
        """Let whoever waits go on, and nobody wait any more."""
        self._armed.unlink(missing_ok=True)
        self._reached.unlink(missing_ok=True)

    def reached(self) -> int | None:
        """The process that waits at the armed point."""
        with suppress(FileNotFoundError, ValueError):
            return int(self._reached.read_text(encoding="utf-8"))
        return None

    def pace(self, step_s: float) -> None:
        """Make each step take at least so long; 0 lets steps be as fast as they are."""
        partial = self.folder / "pace.partial"
        partial.write_text(str(step_s), encoding="utf-8")
        partial.rename(self.folder / "pace")

    @property
    def _armed(self) -> Path:
        return self.folder / "armed"

    @property
    def _reached(self) -> Path:
        return self.folder / "reached"

    # --- in the run's processes

    def come_to(self, name: str, who: str) -> None:
        """Wait here if this point is armed for this process, and nobody came before."""
        if self._is_armed(name, who):
            with suppress(FileExistsError), self._reached.open("x", encoding="utf-8") as file:
                file.write(str(os.getpid()))
            deadline = time.monotonic() + LONGEST_S
            while self._is_armed(name, who) and time.monotonic() < deadline:
                time.sleep(POLL_S)

    def slow_down(self) -> None:
        """Spend the time that a step must take."""
        with suppress(FileNotFoundError, ValueError):
            time.sleep(float((self.folder / "pace").read_text(encoding="utf-8")))

    def _is_armed(self, name: str, who: str) -> bool:
        try:
            return self._armed.read_text(encoding="utf-8") == f"{name} {who}"
        except FileNotFoundError:
            return False


def points_of_process() -> Points | None:
    """The points of the campaign that started this process."""
    folder = os.environ.get(VARIABLE)
    return Points(Path(folder)) if folder else None


def pretend_machine() -> None:
    """Be on the machine of that name: whoever is on another knows nothing of this process."""
    if name := os.environ.get(MACHINE):
        liveness._this_machine = lambda: name


def before_and_after(
    owner: Any, name: str, before: Callable[..., object], after: Callable[..., object]
) -> None:
    """Call something before and after a function or method, with its arguments."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def called(*arguments: Any, **named: Any) -> Any:
        before(*arguments, **named)
        result = real(*arguments, **named)
        after(*arguments, **named)
        return result

    setattr(owner, name, called)


def nothing(*_: object, **__: object) -> None:
    """There is no point here."""
