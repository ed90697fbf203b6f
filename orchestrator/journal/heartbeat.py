"""Heartbeats of an attempt's ranks: one small file each, its writer, and a monitor for all. A
heartbeat says when its rank was alive, how many steps it has done and which error ended it. The
monitor uses only its own clock: an unchanged heartbeat counts as silence.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Self

import msgspec
import psutil

from orchestrator.errors import JournalUnreadable, JournalUnwritable, ProgramFailed, Superseded
from orchestrator.journal import boundary, events, files, liveness
from orchestrator.journal.liveness import DriverHeartbeat
from orchestrator.values import codec
from orchestrator.values.codec import Value
from orchestrator.values.run import ProcessIdentity, SavedCheckpoint
from orchestrator.values.slowdowns import HostCheck, Slowdown

# Thirty missing heartbeats: a storage that fails over is silent for less.
RENEWAL_LIMIT_S = 60.0


class ClaimWatch:
    """Watches one claim, for one of its attempts; for any attempt where that is None."""

    def __init__(
        self,
        run: Path,
        claim: int,
        attempt: int | None = None,
        *,
        limit_s: float = RENEWAL_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        paths = files.RunPaths(run)
        self._events, self._heartbeat = paths.events, paths.driver_heartbeat(claim)
        self._claim, self._attempt, self._next = claim, attempt, claim + 1
        self._limit_s, self._clock = limit_s, clock
        self._last: DriverHeartbeat | None = None
        self._renewed_s = clock()
        self.saved: tuple[SavedCheckpoint, ...] = ()  # by this attempt, as recorded
        self.traced = range(0)  # steps that this attempt is to trace, as recorded last

    def lapse(self) -> str | None:
        """Return why the claim or the attempt counts no more; None while it does."""
        attempt = self._attempt
        while (event := self._read_next()) is not None:
            number, self._next = self._next, self._next + 1
            if isinstance(event, events.Claimed):
                return f"claim {self._claim} is superseded by claim {number}"
            if isinstance(event, events.AttemptStarted) and event.attempt > (attempt or inf):
                return f"attempt {event.attempt} has started"
            if isinstance(event, events.AttemptEnded) and event.attempt == attempt:
                return f"attempt {event.attempt} has ended"
            if isinstance(event, events.CheckpointSaved) and event.checkpoint.attempt == attempt:
                self.saved = (*self.saved, event.checkpoint)
            if isinstance(event, events.TraceAsked) and event.attempt == attempt:
                self.traced = range(event.first_step, event.end_step)
        now_s, heartbeat = self._clock(), self._last
        with suppress(JournalUnreadable):  # the storage does not answer: no renewal, and no end
            if (heartbeat := liveness.read(self._heartbeat)) is None:
                return f"claim {self._claim} was withdrawn"
        if heartbeat != self._last:
            self._last, self._renewed_s = heartbeat, now_s
        silent_s = now_s - self._renewed_s
        if silent_s <= self._limit_s:
            return None
        return f"the driver has not renewed claim {self._claim} for {silent_s:.0f} s"

    def _read_next(self) -> events.AnyEvent | str | None:
        """Return the next event, or what is wrong with it; None until it is written."""
        try:
            content = events.read_one(self._events, self._next)
            return events.decode_event(content[self._next]) if content else None
        except (JournalUnreadable, msgspec.DecodeError) as error:
            return str(error)


_MAX_ERROR_BYTES, _SHORT_ERROR = 16_384, 1000
_USAGE_EVERY_S = 10.0
# Processes need this long to start, compile and restore, however short the hang limit is.
_STARTUP_LIMIT_S = 600.0


class _HostUsage(Value):
    """What a host was busy with: shares of its cores and memory, bytes since its start."""

    at_s: float
    cpu: float
    memory: float
    memory_bytes: float
    received_bytes: float
    sent_bytes: float


class Heartbeat(Value):
    rank: int
    slice_name: str
    process: ProcessIdentity
    at_s: float
    steps: int = 0  # of its main thread
    saved: SavedCheckpoint | None = None  # the newest that it knows to be whole
    slowdowns: tuple[Slowdown, ...] = ()  # the newest, of the rank that watches the steps
    host_check: HostCheck | None = None
    usage: _HostUsage | None = None  # every few seconds
    ended: bool = False  # it sends no other
    error: str | None = None  # what ended it
    error_repeats: bool = False  # every attempt would end so

    @property
    def place(self) -> str:
        return f"{self.process.host}, slice {self.slice_name}"

    @property
    def location(self) -> str:
        return f"process {self.process.pid} on {self.place}"


def read_heartbeats(run: Path, attempt: int) -> dict[int, Heartbeat]:
    """Return an attempt's heartbeats by rank, without those that cannot be read at the moment."""
    try:
        names = files.names(folder := files.RunPaths(run).heartbeats(attempt))
    except JournalUnreadable:
        return {}
    found = [read_heartbeat(folder / name) for name in names if not name.startswith(".")]
    return {heartbeat.rank: heartbeat for heartbeat in found if heartbeat}


def read_heartbeat(path: Path) -> Heartbeat | None:
    try:
        return codec.from_json(files.read(path, boundary.MAX_RECORD_BYTES), Heartbeat)
    except (FileNotFoundError, JournalUnreadable, msgspec.DecodeError):
        return None


class HeartbeatWriter:
    """Writes the heartbeats of one rank during a `with` block, and the error that ends it. Once its
    claim or its attempt counts no more, the last heartbeat says why and `give_up` is called. Where
    that is so from the start, `Superseded` keeps the block from running.
    """

    def __init__(
        self,
        run: Path,
        attempt: int,
        rank: int,
        slice_name: str,
        interval_s: float,
        watch: ClaimWatch,
        give_up: Callable[[], None],
    ) -> None:
        self._path, self._watch = files.RunPaths(run).heartbeat(attempt, rank), watch
        self._interval_s, self._give_up, self._ended = interval_s, give_up, threading.Event()
        self._lock, self._written = threading.Lock(), threading.Event()
        self._usage: _HostUsage | None = None
        self._steps = 0  # counted in every step, so not in the value itself
        psutil.cpu_percent()  # what the next call counts from
        self._heartbeat = Heartbeat(
            rank=rank, slice_name=slice_name, process=liveness.this_process(), at_s=time.time()
        )

    def count_step(self) -> None:
        self._steps += 1

    def start_again(self) -> None:
        """No step is done while another stage is compiled, as at a start."""
        self._steps = 0
        self._write()

    def report_seen(
        self, slowdowns: tuple[Slowdown, ...] | None = None, check: HostCheck | None = None
    ) -> None:
        """Report what slows the steps, or the check of the hosts, with the next heartbeat."""
        before = self._heartbeat
        self._heartbeat = replace(
            before,
            slowdowns=before.slowdowns if slowdowns is None else slowdowns,
            host_check=check or before.host_check,
        )

    def report_saved(self, saved: SavedCheckpoint) -> None:
        """Report a whole checkpoint at once: it counts when the driver has recorded it."""
        self._heartbeat = replace(self._heartbeat, saved=saved)
        self._write()

    def __enter__(self) -> Self:
        self._write()
        # Only now: whoever ends the attempt reads the heartbeats after it has written so.
        if self._gave_up():
            raise Superseded(self._heartbeat.error)
        threading.Thread(target=self._repeat, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Write the last heartbeat; after an error, only once the others have written theirs: a
        rank that dies because of this one then dies visibly later. A full disk delays it.
        """
        text = self._heartbeat.error
        if error is not None:  # its first line tells it from other errors; its notes come after
            first = f"{type(error).__name__}: {error}".strip().removesuffix(":")
            lines = "\n".join([first, *getattr(error, "__notes__", [])])
            text = lines.encode()[:_MAX_ERROR_BYTES].decode(errors="ignore")
        repeats = isinstance(error, ProgramFailed)
        self._heartbeat = replace(self._heartbeat, ended=True, error=text, error_repeats=repeats)
        self._written.clear()
        self._ended.set()
        self._write()
        if text:
            time.sleep(2 * self._interval_s)

    def _repeat(self) -> None:
        while not self._ended.wait(self._interval_s):
            if self._gave_up():
                return
            if self._usage is None or time.time() - self._usage.at_s >= _USAGE_EVERY_S:
                memory, network = psutil.virtual_memory(), psutil.net_io_counters()
                self._usage = _HostUsage(
                    at_s=time.time(),
                    cpu=psutil.cpu_percent() / 100,  # since the last call
                    memory=memory.percent / 100,
                    memory_bytes=float(memory.used),
                    received_bytes=float(network.bytes_recv),
                    sent_bytes=float(network.bytes_sent),
                )
            self._write()
        while not self._written.wait(self._interval_s):
            self._write()

    def _gave_up(self) -> bool:
        """Return whether the claim or attempt counts no more; the last heartbeat then says why."""
        lapse = self._watch.lapse()
        if lapse is None:
            return False
        self._heartbeat = replace(self._heartbeat, ended=True, error=f"Superseded: {lapse}")
        self._write()
        self._give_up()
        return True

    def _write(self) -> None:
        with self._lock:
            heartbeat = replace(
                self._heartbeat, at_s=time.time(), steps=self._steps, usage=self._usage
            )
            try:
                # On a full disk it must say what ended it in the block that its file has.
                error = (heartbeat.error or "")[:_SHORT_ERROR] or None
                short = replace(heartbeat, slowdowns=(), host_check=None, usage=None, error=error)
                contents = map(msgspec.json.encode, (heartbeat, short))
                files.replace_on_full_disk(self._path, *contents)
            except JournalUnwritable:
                return  # the next heartbeat may succeed
            self._written.set()


class _RankStatus(msgspec.Struct, frozen=True):
    heartbeat: Heartbeat
    unchanged_since_s: float
    no_step_since_s: float


class HeartbeatMonitor:
    """Watches the heartbeats of one attempt, by a clock that the caller reads."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self.ranks: dict[int, _RankStatus] = {}

    def update(self, heartbeats: dict[int, Heartbeat], now_s: float) -> None:
        for rank, heartbeat in heartbeats.items():
            before = self.ranks.get(rank)
            if before and before.heartbeat == heartbeat:
                continue
            same_step = before and before.heartbeat.steps == heartbeat.steps
            step_s = before.no_step_since_s if before and same_step else now_s
            self.ranks[rank] = _RankStatus(heartbeat, now_s, step_s)

    def has_error(self) -> bool:
        return any(rank.heartbeat.error is not None for rank in self.ranks.values())

    def done_since_s(self, ranks: int) -> float | None:
        ended = [rank for rank in self.ranks.values() if rank.heartbeat.ended]
        if len(ended) < ranks or self.has_error():
            return None
        return max(rank.unchanged_since_s for rank in ended)

    def silent_ranks(self, since_s: float) -> list[Heartbeat]:
        return [rank.heartbeat for rank in self._running() if rank.unchanged_since_s <= since_s]

    def first_dead(self, silent_since_s: float) -> Heartbeat | None:
        """Return the rank that died first, because of which the others die: the one with the oldest
        last heartbeat, among those with an error or silent since then and not known to be alive.
        """
        heartbeats = [rank.heartbeat for rank in self.ranks.values()]
        dead = [heartbeat for heartbeat in heartbeats if heartbeat.error is not None]
        silent = self.silent_ranks(silent_since_s)
        dead += [heartbeat for heartbeat in silent if not liveness.is_alive(heartbeat.process)]
        return min(dead, key=lambda heartbeat: (heartbeat.at_s, heartbeat.rank), default=None)

    def find_hang(self, limit_s: float, now_s: float) -> tuple[str, int | None] | None:
        """Return what made no progress within the limit, and the rank to blame if it is known."""
        running = self._running()
        ages = [(rank.unchanged_since_s, rank.heartbeat.rank) for rank in running]
        oldest_s, oldest = min(ages, default=(now_s, None))
        silent_s, silence = now_s - oldest_s, ""
        if oldest is not None:
            where = self.ranks[oldest].heartbeat.location
            silence = f"rank {oldest} has sent no heartbeat for {silent_s:.0f} s ({where})"
        if silent_s > limit_s:
            return silence, oldest
        stepped_s = [rank.no_step_since_s for rank in self.ranks.values()]
        no_step_s = now_s - max(stepped_s, default=self._started_s)
        started = any(rank.heartbeat.steps for rank in self.ranks.values())
        if no_step_s <= (limit_s if started else max(limit_s, _STARTUP_LIMIT_S)):
            return None
        if not self.ranks:
            return f"no process has started for {no_step_s:.0f} s", None
        detail = f"no step has finished for {no_step_s:.0f} s"
        if silent_s > limit_s / 2:  # the others wait for it and send heartbeats
            return f"{detail}; {silence}", oldest
        # A rank that is behind all others is the likely cause.
        behind = sorted((rank.heartbeat for rank in running), key=lambda beat: beat.steps)[:2]
        if len(behind) < 2 or behind[0].steps == behind[1].steps:
            return detail, None
        slowest = behind[0]
        where = f"rank {slowest.rank} is behind all others ({slowest.location})"
        return f"{detail}; {where}", slowest.rank

    def _running(self) -> list[_RankStatus]:
        return [rank for rank in self.ranks.values() if not rank.heartbeat.ended]
