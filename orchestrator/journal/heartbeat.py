"""Journal room: the signs of life of an attempt's ranks, one small file each. Knows `files` alone.

A rank's pulse says when it was alive, how far its main thread had come, and, last of all, of which
error it died. Who reads judges by its own clock: a pulse that does not change is silence.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from orchestrator.errors import JournalUnwritable
from orchestrator.journal import files, liveness
from orchestrator.journal.run_paths import RunPaths
from orchestrator.types.run import ProcessIdentity

MOST_ERROR_BYTES = 16_384
# Ranks share a file system: all of them together write no more pulses a second than this.
MOST_BEATS_PER_S = 400
FASTEST_S = 0.25
# Processes come up, compile and restore in so long, however soon a step that hangs is to be found.
START_LIMIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """What a rank said last. `marks` counts what its main thread has passed: it grows with every
    step. `ended` is its last sign, `error` what it died of.
    """

    rank: int
    slice_name: str
    process: ProcessIdentity
    at_s: float
    marks: int = 0
    ended: bool = False
    error: str | None = None


def beat_s(ranks: int, hang_limit_s: float) -> float:
    """How often each rank of an attempt gives a sign."""
    return min(max(FASTEST_S, ranks / MOST_BEATS_PER_S), hang_limit_s / 4)


class HeartbeatWriter:
    """Gives the signs of one rank for as long as a `with` lasts; of an error its last word.

    When a later attempt has begun, nobody drives this one any more: `give_up` is called.
    """

    def __init__(
        self,
        run: Path,
        attempt: int,
        rank: int,
        slice_name: str,
        every_s: float,
        give_up: Callable[[], None],
    ) -> None:
        places = RunPaths(run)
        self._path, self._later = places.pulse(attempt, rank), places.attempt(attempt + 1)
        self._every_s, self._give_up, self._ended = every_s, give_up, threading.Event()
        self._lock = threading.Lock()
        self._pulse = Heartbeat(
            rank=rank, slice_name=slice_name, process=liveness.this_process(), at_s=time.time()
        )

    def mark(self) -> None:
        """The main thread has come one step farther."""
        self._pulse = replace(self._pulse, marks=self._pulse.marks + 1)

    def __enter__(self) -> Self:
        self._write()
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave a last sign; with an error, stay until the others were seen alive after it: whoever
        dies of this end then dies later.
        """
        self._ended.set()
        word = last_word(error) if error is not None else None
        self._pulse = replace(self._pulse, ended=True, error=word)
        self._write()
        if word:
            time.sleep(2 * self._every_s)

    def _beat(self) -> None:
        while not self._ended.wait(self._every_s):
            if self._later.exists():
                self._give_up()
            self._write()

    def _write(self) -> None:
        with self._lock:
            pulse = replace(self._pulse, at_s=time.time())
            try:
                files.replace(self._path, msgspec.json.encode(pulse))
            except JournalUnwritable:
                return  # a disk that comes back is a sign again


def last_word(error: BaseException) -> str:
    """What tells one error from another, in the first line; what was noted on it below."""
    text = f"{type(error).__name__}: {error}".strip().removesuffix(":")
    notes = getattr(error, "__notes__", [])
    return "\n".join([text, *notes]).encode()[:MOST_ERROR_BYTES].decode(errors="ignore")


def read(run: Path, attempt: int) -> dict[int, Heartbeat]:
    """The pulses of an attempt by rank. One that is just being written is left out."""
    found: dict[int, Heartbeat] = {}
    folder = RunPaths(run).pulses(attempt)
    for path in folder.glob("[!.]*"):
        try:
            pulse = msgspec.json.decode(path.read_bytes(), type=Heartbeat)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue
        found[pulse.rank] = pulse
    return found


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A pulse, and since when nothing of it has changed by the reader's clock."""

    pulse: Heartbeat
    since_s: float
    marked_s: float


class HeartbeatMonitor:
    """Watches the pulses of one attempt, each call at a later `now_s` of the same clock."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self.seen: dict[int, Seen] = {}

    def look(self, pulses: dict[int, Heartbeat], now_s: float) -> None:
        """Take in what the ranks say now."""
        for rank, pulse in pulses.items():
            before = self.seen.get(rank)
            if before is None:
                self.seen[rank] = Seen(pulse=pulse, since_s=now_s, marked_s=now_s)
            elif before.pulse != pulse:
                moved = before.pulse.marks != pulse.marks
                marked_s = now_s if moved else before.marked_s
                self.seen[rank] = Seen(pulse=pulse, since_s=now_s, marked_s=marked_s)

    def died(self) -> bool:
        """Whether any rank has said its last word."""
        return any(one.pulse.error is not None for one in self.seen.values())

    def silent(self, since_s: float) -> list[Heartbeat]:
        """The ranks that have not ended, and have given no sign since that time."""
        going = [one for one in self.seen.values() if not one.pulse.ended]
        return [one.pulse for one in going if one.since_s <= since_s]

    def first_dead(self, silent_since_s: float) -> Heartbeat | None:
        """The rank that died first: of those with a last word, and those silent since that time,
        the one whose last sign is the oldest. The others die of the first. A process that is seen
        to live is only slow.
        """
        dead = [one.pulse for one in self.seen.values() if one.pulse.error is not None]
        dead += [one for one in self.silent(silent_since_s) if not liveness.is_alive(one.process)]
        return min(dead, key=lambda pulse: (pulse.at_s, pulse.rank), default=None)

    def hung(self, limit_s: float, now_s: float) -> tuple[str, int | None] | None:
        """What hangs, in words, and the rank that does; None while all goes on."""
        going = [one for one in self.seen.values() if not one.pulse.ended]
        quiet = min(going, key=lambda one: (one.since_s, one.pulse.rank), default=None)
        quiet_s = now_s - quiet.since_s if quiet else 0.0
        if quiet and quiet_s > limit_s:
            return _silence(quiet.pulse, quiet_s), quiet.pulse.rank
        newest_s = max((one.marked_s for one in self.seen.values()), default=self._began_s)
        began = any(one.pulse.marks for one in self.seen.values())
        if now_s - newest_s <= (limit_s if began else max(limit_s, START_LIMIT_S)):
            return None
        if not self.seen:
            return f"no process has come up for {now_s - newest_s:.0f} s", None
        told = f"no step was done for {now_s - newest_s:.0f} s"
        if quiet and quiet_s > limit_s / 2:  # the others wait for it, and beat while they do
            return f"{told}; {_silence(quiet.pulse, quiet_s)}", quiet.pulse.rank
        behind = sorted(going, key=lambda one: one.pulse.marks)
        if len(behind) > 1 and behind[0].pulse.marks < behind[1].pulse.marks:
            rank = behind[0].pulse.rank
            return f"{told}; rank {rank} is behind all others ({where(behind[0].pulse)})", rank
        return told, None


def _silence(pulse: Heartbeat, lasts_s: float) -> str:
    return f"rank {pulse.rank} has given no sign for {lasts_s:.0f} s ({where(pulse)})"


def where(pulse: Heartbeat) -> str:
    """The process of a rank, as people find it."""
    return f"process {pulse.process.pid} on {pulse.process.host}, slice {pulse.slice_name}"
