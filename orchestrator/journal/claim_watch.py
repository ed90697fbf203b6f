"""Whether the claim that a process works for still counts: every process of an attempt asks itself.

A driver may be stopped, cut off or superseded, and nobody may come to end its processes. They read
the journal by the names of its files, because a shared file system may list a folder as it was a
minute ago. What they would still save then does not count: see `run_state`.
"""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from orchestrator.errors import JournalUnreadable
from orchestrator.journal import driver_heartbeat, event_log
from orchestrator.journal.driver_heartbeat import DriverHeartbeat
from orchestrator.journal.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    Claimed,
    decode_event,
)
from orchestrator.journal.run_paths import RunPaths
from orchestrator.types.run import SavedCheckpoint

# Thirty missing heartbeats: a storage that fails over is silent for less.
RENEWAL_LIMIT_S = 60.0


class ClaimWatch:
    """Watches one claim, for one of its attempts; for whatever attempt where that is None."""

    def __init__(
        self,
        run: Path,
        claim: int,
        attempt: int | None = None,
        *,
        limit_s: float = RENEWAL_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        paths = RunPaths(run)
        self._events, self._heartbeat = paths.events, paths.driver_heartbeat(claim)
        self._claim, self._attempt, self._next = claim, attempt, claim + 1
        self._limit_s, self._clock = limit_s, clock
        self._last: DriverHeartbeat | None = None
        self._renewed_s = clock()
        self.saved: tuple[SavedCheckpoint, ...] = ()  # by this attempt, as recorded

    def lapse(self) -> str | None:
        """Why nothing more may be done for this claim; None while it counts."""
        return self._successor() or self._silence()

    def _successor(self) -> str | None:
        """The event that ended the claim or the attempt, if one did."""
        while (event := self._read_next()) is not None:
            number, self._next = self._next, self._next + 1
            if isinstance(event, Claimed):
                return f"claim {self._claim} is superseded by claim {number}"
            if isinstance(event, AttemptStarted) and self._is_later(event.attempt):
                return f"attempt {event.attempt} has started"
            if isinstance(event, AttemptEnded) and event.attempt == self._attempt:
                return f"attempt {event.attempt} has ended"
            if isinstance(event, CheckpointSaved) and event.checkpoint.attempt == self._attempt:
                self.saved = (*self.saved, event.checkpoint)
        return None

    def _is_later(self, attempt: int) -> bool:
        return self._attempt is not None and attempt > self._attempt

    def _read_next(self) -> AnyEvent | str | None:
        """The next event, or what is wrong with it; None where there is none yet."""
        try:
            content = event_log.read_one(self._events, self._next)
            return decode_event(content[self._next]) if content else None
        except (JournalUnreadable, msgspec.DecodeError) as error:
            return str(error)

    def _silence(self) -> str | None:
        """That the driver has not renewed its claim for too long, or cannot any more."""
        now_s = self._clock()
        try:
            heartbeat = driver_heartbeat.read(self._heartbeat)
        except JournalUnreadable:
            heartbeat = self._last  # the storage does not answer: no renewal, and no end
        else:
            if heartbeat is None:
                return f"claim {self._claim} was withdrawn"
        if heartbeat != self._last:
            self._last, self._renewed_s = heartbeat, now_s
        silent_s = now_s - self._renewed_s
        if silent_s <= self._limit_s:
            return None
        return f"the driver has not renewed claim {self._claim} for {silent_s:.0f} s"
