"""An attempt while its workers run: how it ends, why, and which rank died first."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from orchestrator import errors
from orchestrator.journal import liveness
from orchestrator.journal.heartbeat import Heartbeat, HeartbeatMonitor, read_heartbeats
from orchestrator.journal.ownership import Writer
from orchestrator.launch.backend import AttemptEvent, AttemptHandle, DeadRank, Slice, WorkerArgs
from orchestrator.values.codec import Value
from orchestrator.values.goodput import poll_interval_s, settling_s
from orchestrator.values.run import AttemptReason


class Clock(Value):
    """The clock of a driver, real or moved by a simulation: seconds that grow, a way to wait."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


_READ_TRACE_BEATS = 3  # after so many, each rank has read an event
# The process that carries out an attempt may be stopped when its ranks end.
_DONE_LIMIT_S = 30.0

ReadHeartbeats = Callable[[Path, int], dict[int, Heartbeat]]


class AttemptEnd(Value):
    """How an attempt ended. An error `repeats` if every attempt would end with it."""

    reason: AttemptReason
    error: str | None = None
    repeats: bool = False
    first_dead_rank: int | None = None


@dataclass
class Monitor:
    """One attempt while its workers run."""

    writer: Writer
    attempt: AttemptHandle
    args: WorkerArgs
    slices: Sequence[str]
    hang_limit_s: float
    most_pods: int = 0
    clock: Clock = field(default_factory=Clock)
    read: ReadHeartbeats = read_heartbeats

    def __post_init__(self) -> None:
        self.heartbeats = HeartbeatMonitor(self.clock.now_s())
        self.hosts = self.writer.journal.plan(self.args.plan_digest).hosts
        self.new_save = False
        self.stopping = False
        self.poll_s = poll_interval_s(self.args.heartbeat_s)

    def wait_for_end(self) -> AttemptEnd:
        while True:
            event = self.attempt.next_event(self.poll_s)
            now_s = self.read_heartbeats()
            # All ranks may have done their work a while ago, and the backend does not say so.
            done_s = self.heartbeats.done_since_s(self.hosts)
            done = done_s is not None and now_s - done_s > _DONE_LIMIT_S
            if (event and event.ended and event.error is None) or done:
                cancelled = self.writer.run().cancel_requested_at_s is not None
                return AttemptEnd(reason="cancelled" if cancelled else "finished")
            if (event and event.ended) or self.heartbeats.has_error():
                return self._failure(event, now_s)
            if hang := self.heartbeats.find_hang(self.hang_limit_s, now_s):
                detail, rank = hang
                return AttemptEnd(reason="hang", error=detail, first_dead_rank=rank)
            if self._must_stop():
                return AttemptEnd(reason="cancelled")
            self._pass_on_trace_request()
            if self.new_save and self._can_grow():
                return AttemptEnd(reason="resized")

    def read_heartbeats(self) -> float:
        """Take in the newest heartbeats, and record the checkpoint that they report; the time."""
        now_s = self.clock.now_s()
        beats = self.read(self.writer.journal.path, self.args.attempt)
        self.heartbeats.update(beats, now_s)
        self.new_save = False
        for saved in (beat.saved for beat in beats.values() if beat.saved):
            if (saved.claim, saved.attempt) == (self.writer.number, self.args.attempt):
                recorded = self.writer.record_checkpoint(saved.step, saved.sha256)
                self.new_save = self.new_save or recorded
        # A run whose disk is full goes on: the next look records what was seen.
        with suppress(errors.JournalUnwritable):
            for beat in beats.values():
                if (check := beat.host_check) and check.attempt == self.args.attempt:
                    named = [(each, beats.get(each.rank)) for each in check.slow]
                    slow = tuple(
                        replace(each, slice_name=at.slice_name, host=at.process.host)
                        if at
                        else each
                        for each, at in named
                    )
                    if all(at for _, at in named):  # their names are known
                        self.writer.record_host_check(replace(check, slow=slow))
                for seen in beat.slowdowns:
                    at = beats.get(-1 if seen.rank is None else seen.rank)
                    self.writer.record_slowdown(replace(seen, host=at.place) if at else seen)
        return now_s

    def _can_grow(self) -> bool:
        """Whether a run that lost pods would get all of them, now that hardly a step is unsaved."""
        if len(self.slices) >= self.most_pods or (slices := self.attempt.slices()) is None:
            return False
        usable = [shown for shown in slices if shown.whole and shown.settled]
        mine = [shown.free or shown.name in self.slices for shown in usable]
        return sum(mine) >= self.most_pods

    def _pass_on_trace_request(self) -> None:
        """Choose the steps of a trace that somebody asked for: the next ones that begin only when
        every rank has read the event.
        """
        if (asked := self.writer.trace_request) is None:
            return
        number, request = asked
        run = self.writer.run()
        if run.recent is None:  # no step says yet how long one takes
            return
        known_s = _READ_TRACE_BEATS * self.args.heartbeat_s + self.poll_s
        first = run.steps_done + ceil(known_s / run.recent.step_s) + 1
        first = min(first, run.steps - 1)
        self.writer.record_trace(number, range(first, min(first + request.steps, run.steps)))

    def _must_stop(self) -> bool:
        """Whether a cancelled attempt must end now, not after a last checkpoint of its ranks."""
        cancel = self.writer.heartbeat()
        if cancel is None:
            return False
        if cancel.at_once or self.writer.run().state == "starting":
            return True
        if not self.stopping:
            self.writer.record_stopping(cancel.reason)
            self.stopping = True
        return False

    def _failure(self, event: AttemptEvent | None, seen_s: float) -> AttemptEnd:
        """Wait until it is clear which rank died first, and which slices have lost a host."""
        # The first rank that ended before its first heartbeat: before it joined the others, so not
        # because of them. None where one that joined has told an error before.
        dead = event.dead if event and not self.heartbeats.has_error() else ()
        unseen = next((rank for rank in dead if rank.rank not in self.heartbeats.ranks), None)
        if event and event.error:
            print(event.error, file=sys.stderr, flush=True)
        until_s = seen_s + settling_s(self.args.heartbeat_s)
        # It is not clear while a rank has been silent since then, and is not known to be gone.
        while self.clock.now_s() < until_s and any(
            not liveness.is_gone(beat.process) for beat in self.heartbeats.silent_ranks(seen_s)
        ):
            self.clock.sleep(min(self.poll_s, self.args.heartbeat_s))
            self.read_heartbeats()
        first_dead = self.heartbeats.first_dead(seen_s)
        error = event.error if event else None
        return explain_failure(first_dead, error, self.slices, self.attempt.slices(), unseen)


def explain_failure(
    first_dead: Heartbeat | None,
    backend_error: str | None,
    used: Sequence[str],
    slices: Sequence[Slice] | None,
    unseen: DeadRank | None = None,
) -> AttemptEnd:
    """Why an attempt failed. A lost host is a preemption, whatever is reported. A rank that died
    without an error lacks a step to compare; an `unseen` one ended before its first heartbeat.
    """
    rank = unseen.rank if unseen else first_dead.rank if first_dead else None
    left, lost = {shown.name: shown for shown in slices or () if shown.hosts}, []
    for name in used:
        if name not in left:
            lost.append(f"slice {name} is gone")
        elif not (shown := left[name]).whole:
            lost.append(f"slice {name} has {shown.hosts} of {shown.size} hosts left")
    if lost and slices is not None:  # otherwise nobody can say
        return AttemptEnd(reason="preemption", error="; ".join(lost), first_dead_rank=rank)
    if unseen:
        died = f"{unseen.error}, before its first heartbeat"
        return AttemptEnd(reason="failure", error=died, first_dead_rank=rank)
    error = first_dead.error if first_dead else backend_error
    repeats = first_dead.error_repeats if first_dead else False
    return AttemptEnd(reason="failure", error=error, repeats=repeats, first_dead_rank=rank)
