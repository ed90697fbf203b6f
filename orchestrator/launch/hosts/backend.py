"""The backend of plain processes: emulated hosts here, or hosts that joined a folder elsewhere."""

import os
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import formatting, storage
from orchestrator.errors import Superseded
from orchestrator.journal.run_journal import Journal
from orchestrator.launch import backend
from orchestrator.launch.backend import OnState, Preflight, PreflightRequest
from orchestrator.launch.hosts import meeting as meetings
from orchestrator.launch.hosts.host_process import start_program
from orchestrator.values.plan import Plan

_POLL_S = 0.1
_STOP_LIMIT_S = 10.0
_END_LIMIT_S = 10.0
_ANSWER_LIMIT_S = 600.0  # nodes of a cluster may still be starting
# A host shows itself every second; after this long without a sign it is suspect, then gone.
_SUSPECT_S, _GONE_S = 3.0, 10.0
_TAKEN = "another driver has taken the hosts"
_ON_BUCKETS = 6  # times as long: there a host shows itself every five seconds, and requests stall


class _HostWatch:
    """The hosts of a meeting. Only a change of its state proves that a host is not long gone."""

    def __init__(self, meeting: meetings.Meeting) -> None:
        self._meeting = meeting
        self._states: dict[meetings.HostName, meetings.HostState] = {}
        self._changed_s: dict[meetings.HostName, float] = {}  # by this process's clock
        self._proven: set[meetings.HostName] = set()
        times = _ON_BUCKETS if storage.is_copy(meeting.folder) else 1
        self._suspect_s, self._gone_s = times * _SUSPECT_S, times * _GONE_S

    def look(self) -> dict[meetings.HostName, meetings.HostState]:
        """The hosts that are not gone. One whose file is old counts once its state changes."""
        now = time.monotonic()
        for state in self._meeting.hosts():
            before = self._states.get(state.host)
            if before is None or before.beat != state.beat:
                self._states[state.host], self._changed_s[state.host] = state, now
                self._proven |= {state.host} if before else set()
        here = (host for host in self._states if now - self._changed_s[host] < self._gone_s)
        return {host: self._states[host] for host in here if host in self._proven}

    @property
    def knows(self) -> bool:
        """Whether every host has shown whether it is still there."""
        silent_since = time.monotonic() - self._gone_s
        unproven = self._states.keys() - self._proven
        return all(self._changed_s[host] < silent_since for host in unproven)

    def is_suspect(self, host: meetings.HostName) -> bool:
        return time.monotonic() - self._changed_s[host] > self._suspect_s


class _HostsAttempt(AbstractContextManager["_HostsAttempt"]):
    """An attempt at a run. Leaving the `with` ends every process of it."""

    def __init__(self, folder: Path, spec: backend.AttemptSpec) -> None:
        self._meeting, self._spec = meetings.Meeting(folder), spec
        self._watch = _HostWatch(self._meeting)
        self._order: meetings.Order | None = None
        self._shown: tuple[backend.Slice, ...] | None = None
        self._refused: str | None = None
        journal = Journal(storage.folder(spec.run))
        submission = journal.state().submitted.submission
        self._kind = journal.plan(submission.plan_digest).slice_kind
        # An order of this claim that has no number yet, and gives nobody anything to do.
        self._idle = meetings.Order(number=0, run=spec.run, run_id=submission.id, claim=spec.claim)

    def __exit__(self, *error: object) -> None:
        """Order all hosts to stop, unless another driver has them by now, and wait for them."""
        if self._order is None or self._is_superseded():
            return
        end = self._give(self._idle, after=self._order)
        deadline = time.monotonic() + _STOP_LIMIT_S
        while end and time.monotonic() < deadline:
            if all(state.order >= end.number for state in self._watch.look().values()):
                return
            time.sleep(_POLL_S)

    def next_event(self, timeout_s: float) -> backend.AttemptEvent | None:
        """Changed slices before the start; afterwards the end of the ranks."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._refused is not None:
                return backend.AttemptEvent(ended=True, error=self._refused)
            event = None
            if self._order is not None:
                event = self._end(self._order)
            elif (seen := self.slices()) != self._shown and self._watch.knows:
                event, self._shown = backend.AttemptEvent(slices=seen), seen
            if event or time.monotonic() >= deadline:
                return event
            time.sleep(_POLL_S)

    def start(self, args: backend.WorkerArgs, slices: Sequence[str]) -> None:
        """Order a rank on each host; the next event tells of a rival order or a lost host."""
        hosts = self._watch.look()
        ranks: list[meetings.HostName] = []
        for chosen in slices:
            names = [name for name in hosts if name.slice_name == chosen]
            names.sort(key=lambda name: name.index)
            if not names or len(names) < hosts[names[0]].size:
                self._refused = f"slice {chosen} lost a host before its ranks were started"
                return
            ranks += names
        first, last = hosts[ranks[0]], self._meeting.order()
        if last and last.run_id == self._idle.run_id and last.claim > self._spec.claim:
            raise Superseded(f"claim {last.claim} of the run has given the hosts an order")
        order = replace(self._idle, worker=self._spec.worker, args=args, ranks=tuple(ranks))
        where, port = first.address, first.free_port
        order = replace(order, coordinator=f"{where}:{port}", coordinator_host=where)
        self._order = self._give(order, after=last)
        self._refused = None if self._order else _TAKEN

    def _give(self, order: meetings.Order, after: meetings.Order | None) -> meetings.Order | None:
        """Give an order under the next free number; None where another came after `after`."""
        while True:
            numbered = replace(order, number=self._meeting.next_number)
            try:
                self._meeting.give(numbered)
            except FileExistsError:
                newest = self._meeting.order()
                # The hosts of an earlier claim of this run are still this driver's.
                taken = (newest is not None and newest != after) and (
                    newest.run_id != order.run_id or newest.claim >= order.claim
                )
                if taken or self._meeting.next_number == numbered.number:
                    return None
            else:
                return numbered

    def slices(self) -> tuple[backend.Slice, ...]:
        """The slices of the run's kind as they are now. One is free that no other run uses."""
        by_slice: dict[str, list[meetings.HostState]] = {}
        for state in self._watch.look().values():
            if state.kind == self._kind:
                by_slice.setdefault(state.host.slice_name, []).append(state)
        return tuple(
            backend.Slice(
                name=name,
                hosts=len(hosts),
                size=hosts[0].size,
                free=all(state.run in (None, self._spec.run) for state in hosts),
                settled=not any(self._watch.is_suspect(state.host) for state in hosts),
            )
            for name, hosts in sorted(by_slice.items())
        )

    def _end(self, order: meetings.Order) -> backend.AttemptEvent | None:
        """The end of the attempt, once all ranks have done their work or one cannot any more."""
        if self._is_superseded():
            return backend.AttemptEvent(ended=True, error=_TAKEN)
        hosts, done = self._watch.look(), 0
        for rank, name in enumerate(order.ranks):
            where, how = str(name), "is gone with its host"
            if state := hosts.get(name):
                if state.order != order.number or not state.code:
                    done += state.order == order.number and state.code == 0
                    continue
                where, how = f"{name} at {state.address}", backend.describe_exit(state.code)
            dead = backend.DeadRank(rank=rank, host=where, slice_name=name.slice_name, how=how)
            return backend.AttemptEvent(ended=True, error=dead.error, dead=(dead,))
        return backend.AttemptEvent(ended=True) if done == len(order.ranks) else None

    def _is_superseded(self) -> bool:
        newest = self._meeting.order()
        return newest is not None and self._order is not None and newest != self._order


class HostsBackend:
    """Starts, watches and stops plain processes on hosts that meet in a folder."""

    @contextmanager
    def emulate(self, plan: Plan, command: str) -> Iterator["_EmulatedHosts"]:
        """Emulate the hosts of the plan's slices on this machine, and run a command with them."""
        with tempfile.TemporaryDirectory(prefix="orch-hosts-") as folder:
            started = [_start_host(plan, Path(folder), number) for number in range(plan.hosts)]
            driver = start_program("--driver", folder, str(plan.hosts), *shlex.split(command))
            try:
                yield _EmulatedHosts(meetings.Meeting(Path(folder)), driver)
            finally:
                end([driver, *started])

    def connect(self, address: str) -> "_MeetingClient":
        return _MeetingClient(storage.folder(address))

    def attempt(self, spec: backend.AttemptSpec) -> _HostsAttempt:
        return _HostsAttempt(Path(os.environ[meetings.VARIABLE]), spec)


def _start_host(plan: Plan, folder: Path, number: int) -> "subprocess.Popen[bytes]":
    size = plan.hosts_per_slice
    slice_name, host, devices = f"slice-{number // size}", number % size, plan.devices_per_host
    words = f"--slice {slice_name} --host {host} --hosts {size} --emulate {devices} --kind".split()
    return start_program(str(folder), *words, plan.slice_kind)


def end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ask processes to end, which ends what they started; kill those that do not."""
    for process in processes:
        with suppress(ProcessLookupError):
            process.terminate()
    deadline = time.monotonic() + _END_LIMIT_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass
class _EmulatedHosts:
    """Emulated hosts that run one command; `up` of them were there at the last look."""

    meeting: meetings.Meeting
    driver: "subprocess.Popen[bytes]"
    up: int = -1

    def next_event(self, timeout_s: float) -> backend.ClusterEvent | None:
        """That more hosts are up, or that the command has ended."""
        deadline = time.monotonic() + timeout_s
        while (code := self.driver.poll()) is None:
            up = len(self.meeting.hosts())
            if up != self.up:
                self.up = up
                return backend.ClusterEvent(nodes=up)
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)
        error = f"the driver {backend.describe_exit(code)}" if code else None
        job = "FAILED" if code else "SUCCEEDED"
        return backend.ClusterEvent(nodes=self.up, job=job, error=error)


class _MeetingClient:
    """The hosts of a meeting, from the machine that submits. The driver runs on that machine."""

    def __init__(self, folder: Path) -> None:
        if not storage.is_copy(folder) and not folder.is_dir():
            raise backend.ClusterUnusable(f"{folder}: is not a meeting folder of hosts")
        self.folder, self._meeting = folder.absolute(), meetings.Meeting(folder)
        self._drivers: dict[str, subprocess.Popen[bytes]] = {}

    def preflight(
        self, plan: Plan, request: PreflightRequest, archive: bytes | None, on_state: OnState
    ) -> Preflight:
        """Ask every host, and wait until all that are there have answered."""
        self._check_installed(archive)
        name, secrets, file = uuid.uuid4().hex, request.secrets, request.file
        question = meetings.Question(id=name, secrets=secrets, file=file)
        self._meeting.ask(question)
        watch, deadline = _HostWatch(self._meeting), time.monotonic() + _ANSWER_LIMIT_S
        while True:
            hosts = list(watch.look().values())
            answered = sum(state.answer_to(question) is not None for state in hosts)
            limit = formatting.elapsed(_ANSWER_LIMIT_S)
            on_state(f"{answered} of {plan.hosts} hosts answered; they have {limit}")
            if plan.hosts <= answered == len(hosts) or time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        return Preflight(request=request, report=meetings.report(hosts, question, plan.slice_kind))

    def start(self, words: Sequence[str], archive: bytes | None, name: str | None = None) -> str:
        """Start `python WORDS` on this machine, in a session of its own."""
        self._check_installed(archive)
        job = name or uuid.uuid4().hex
        null, env = subprocess.DEVNULL, {**os.environ, meetings.VARIABLE: str(self.folder)}
        self._drivers[job] = subprocess.Popen(
            [sys.executable, *words], stdin=null, stdout=null, env=env, start_new_session=True
        )
        return job

    def _check_installed(self, archive: bytes | None) -> None:
        if archive is not None:
            raise self._unusable("its hosts run their installed code: --code installed")

    def _unusable(self, why: str) -> backend.ClusterUnusable:
        return backend.ClusterUnusable(f"{storage.address(self.folder)}: {why}")

    def state(self, job: str) -> str:
        if job not in self._drivers:
            raise self._unusable(f"no driver of {job} was started here")
        code = self._drivers[job].poll()
        return "RUNNING" if code is None else "FAILED" if code else "SUCCEEDED"

    def why(self, job: str) -> str:
        return f"its driver {backend.describe_exit(self._drivers[job].wait())}"

    def live_jobs(self) -> Sequence[str]:
        return [job for job in self._drivers if self.state(job) == "RUNNING"]

    def end(self, job: str) -> None:
        """Kill a driver. The next order ends what it started on the hosts."""
        self._drivers[job].kill()
