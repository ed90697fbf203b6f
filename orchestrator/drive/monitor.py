"""Drive room: one attempt as its driver watches it: how it ends, why, and who died first."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator import journal
from orchestrator.journal import heartbeat, liveness
from orchestrator.journal.heartbeat import Heartbeat, HeartbeatMonitor
from orchestrator.launch.ray.attempt_process import AttemptProcess
from orchestrator.launch.ray.protocol import AttemptEvent, Slice, WorkerArgs
from orchestrator.types.run import AttemptReason

POLL_S = 0.25
# So many beats a rank has to show that it outlived another.
SETTLED_BEATS = 4
SETTLED_S = 3.0


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended."""

    reason: AttemptReason
    error: str | None = None
    first_dead_rank: int | None = None


@dataclass
class Monitor:
    """What is known of an attempt while it goes on."""

    writer: journal.Writer
    crew: AttemptProcess
    share: WorkerArgs
    slices: Sequence[str]
    hang_limit_s: float

    def __post_init__(self) -> None:
        self.monitor = HeartbeatMonitor(time.monotonic())
        self.stopping = False
        self.poll_s = max(POLL_S, self.share.beat_s / 2)  # no oftener than there is news

    def to_the_end(self) -> AttemptEnd:
        """Watch until the attempt has ended, or must be."""
        while True:
            said = self.crew.heard(self.poll_s)
            now_s = self._look()
            if said and said.over and said.error is None:
                return AttemptEnd(reason="cancelled" if self._asked() else "finished")
            if (said and said.over) or self.monitor.has_error():
                return self._failed(said, now_s)
            if hang := self.monitor.find_hang(self.hang_limit_s, now_s):
                return AttemptEnd(reason="hang", error=hang.detail, first_dead_rank=hang.rank)
            if self._must_stop():
                return AttemptEnd(reason="cancelled")

    def _look(self) -> float:
        now_s = time.monotonic()
        self.monitor.update(
            heartbeat.read_heartbeats(self.writer.journal.path, self.share.attempt), now_s
        )
        return now_s

    def _asked(self) -> bool:
        return self.writer.run().cancel_requested_at_s is not None

    def _must_stop(self) -> bool:
        """Heed a wish to stop: at once where it says so, or where no step of the attempt is done
        and nothing would be saved; else its ranks see it too, and stop after a last checkpoint.
        """
        wish = self.writer.heartbeat()
        if wish is None:
            return False
        if wish.at_once or self.writer.run().state == "starting":
            return True
        if not self.stopping:
            self.writer.record_stopping(wish.reason)
            self.stopping = True
        return False

    def _failed(self, said: AttemptEvent | None, seen_s: float) -> AttemptEnd:
        """Wait until it is clear who outlived whom, and which slices have lost a host."""
        if said and said.error:
            print(said.error, file=sys.stderr, flush=True)
        until_s = seen_s + max(SETTLED_S, SETTLED_BEATS * self.share.beat_s)
        while time.monotonic() < until_s and self._unclear(seen_s):
            time.sleep(min(self.poll_s, self.share.beat_s))
            self._look()
        dead = self.monitor.first_dead(seen_s)
        return judged(dead, said.error if said else None, self.slices, self.crew.look())

    def _unclear(self, since_s: float) -> bool:
        """Whether some rank has been silent since, and is not known to be gone."""
        return any(not liveness.is_gone(one.process) for one in self.monitor.silent_ranks(since_s))


def judged(
    dead: Heartbeat | None, told: str | None, taken: Sequence[str], seen: Sequence[Slice] | None
) -> AttemptEnd:
    """Why an attempt failed. A host that is gone is the cluster's doing: a preemption, whatever
    the processes said of it. A rank that died without a word has no error that could be compared.
    """
    rank = dead.rank if dead else None
    if lost := lost_hosts(taken, seen):
        return AttemptEnd(reason="preemption", error=lost, first_dead_rank=rank)
    error = dead.error if dead else told
    return AttemptEnd(reason="failure", error=error, first_dead_rank=rank)


def lost_hosts(taken: Sequence[str], seen: Sequence[Slice] | None) -> str | None:
    """Which of the slices have lost hosts; None while all are there, or nobody can say."""
    if seen is None:
        return None
    left = {one.name: one for one in seen if one.hosts}
    lost = [
        f"slice {name} has {left[name].hosts} of {left[name].of} hosts left"
        if name in left
        else f"slice {name} is gone"
        for name in taken
        if name not in left or not left[name].whole
    ]
    return "; ".join(lost) or None
