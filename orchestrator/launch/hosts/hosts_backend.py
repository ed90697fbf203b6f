"""The backend of plain processes: emulated hosts here, or hosts that joined a folder elsewhere."""

import os
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import storage
from orchestrator.launch.backend import AttemptSpec, ClusterEvent, ClusterUnusable, RunNeeds
from orchestrator.launch.hosts import host_process
from orchestrator.launch.hosts.hosts_attempt import HostsAttempt, Watch
from orchestrator.launch.hosts.meeting import VARIABLE, HostState, Meeting, Question
from orchestrator.launch.preflight import Preflight, PreflightHost, PreflightReport
from orchestrator.types.plan import Plan

POLL_S = 0.1
END_LIMIT_S = 10.0
ANSWER_LIMIT_S = 600.0  # nodes of a cluster may still be starting
DRIVER = "orchestrator.launch.hosts.rehearsal_driver"


class HostsBackend:
    """Starts, watches and stops plain processes on hosts that meet in a folder."""

    @contextmanager
    def emulate(self, plan: Plan, command: str) -> Iterator["EmulatedHosts"]:
        """Emulate the hosts of the plan's slices on this machine, and run a command beside them."""
        with tempfile.TemporaryDirectory(prefix="orch-hosts-") as folder:
            started = [start_host(plan, Path(folder), number) for number in range(plan.hosts)]
            words = [sys.executable, "-m", DRIVER, folder, str(plan.hosts), *shlex.split(command)]
            driver = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
            try:
                yield EmulatedHosts(Meeting(Path(folder)), driver)
            finally:
                end([driver, *started])

    def connect(self, address: str) -> "MeetingClient":
        """The hosts that have joined the folder of that name."""
        return MeetingClient(storage.folder(address))

    def attempt(self, spec: AttemptSpec) -> HostsAttempt:
        """An attempt on the hosts that meet in the folder of this process's environment."""
        return HostsAttempt(Path(os.environ[VARIABLE]), spec)


def start_host(plan: Plan, folder: Path, number: int) -> "subprocess.Popen[bytes]":
    """Start an emulated host of the plan's slices."""
    size = plan.hosts_per_slice
    return subprocess.Popen(
        [
            *(sys.executable, "-m", host_process.__name__, str(folder)),
            *("--slice", f"slice-{number // size}", "--host", str(number % size)),
            *("--hosts", str(size), "--kind", plan.slice_kind),
            *("--emulate", str(plan.devices_per_host)),
        ],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ask processes to end, which ends what they started; kill those that do not."""
    for process in processes:
        with suppress(ProcessLookupError):
            process.terminate()
    deadline = time.monotonic() + END_LIMIT_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass
class EmulatedHosts:
    """Emulated hosts that run one command."""

    meeting: Meeting
    driver: "subprocess.Popen[bytes]"
    up: int = field(default=-1, init=False)

    def next_event(self, timeout_s: float) -> ClusterEvent | None:
        """That more hosts are up, or that the command has ended."""
        deadline = time.monotonic() + timeout_s
        while (code := self.driver.poll()) is None:
            up = len(self.meeting.hosts())
            if up != self.up:
                self.up = up
                return ClusterEvent(nodes=up)
            if time.monotonic() >= deadline:
                return None
            time.sleep(POLL_S)
        error = f"the driver ended with {code}" if code else None
        return ClusterEvent(nodes=self.up, job="FAILED" if code else "SUCCEEDED", error=error)


class MeetingClient:
    """The hosts of a meeting, from the machine that submits. The driver runs on that machine."""

    def __init__(self, folder: Path) -> None:
        if not storage.is_copy(folder) and not folder.is_dir():
            raise ClusterUnusable(f"{folder}: is no folder in which hosts meet")
        self.folder, self._meeting = folder.absolute(), Meeting(folder)
        self._drivers: dict[str, subprocess.Popen[bytes]] = {}

    def preflight(
        self, needs: RunNeeds, archive: bytes | None, on_state: Callable[[str], None]
    ) -> Preflight:
        """Ask every host, and wait until all that are there have answered."""
        check_installed(archive, storage.address(self.folder))
        question = Question(id=uuid.uuid4().hex, secrets=needs.secrets, file=needs.marker)
        self._meeting.ask(question)
        hosts = self._answers(question, needs.plan, on_state)
        report = _report(hosts, question, needs.plan.slice_kind)
        return Preflight(request=needs.preflight_request(), report=report)

    def _answers(
        self, question: Question, plan: Plan, on_state: Callable[[str], None]
    ) -> list[HostState]:
        """The hosts with their answers, as soon as all that the plan needs have answered."""
        watch, deadline = Watch(self._meeting), time.monotonic() + ANSWER_LIMIT_S
        while True:
            hosts = list(watch.look().values())
            answered = sum(one.answer_to(question) is not None for one in hosts)
            on_state(f"{answered} of {plan.hosts} hosts answered")
            if plan.hosts <= answered == len(hosts) or time.monotonic() > deadline:
                return hosts
            time.sleep(POLL_S)

    def start(
        self, arguments: Sequence[str], archive: bytes | None, name: str | None = None
    ) -> str:
        """Start `python ARGUMENTS` on this machine, in a session of its own."""
        check_installed(archive, storage.address(self.folder))
        job = name or uuid.uuid4().hex
        self._drivers[job] = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, VARIABLE: str(self.folder)},
            start_new_session=True,
        )
        return job

    def state(self, job: str) -> str:
        """RUNNING, or how it ended."""
        if job not in self._drivers:
            where = storage.address(self.folder)
            raise ClusterUnusable(f"{where}: no driver of {job} was started here")
        code = self._drivers[job].poll()
        return "RUNNING" if code is None else "FAILED" if code else "SUCCEEDED"

    def why(self, job: str) -> str:
        """That its driver has ended."""
        return f"its driver ended with {self._drivers[job].poll()}"

    def live_jobs(self) -> Sequence[str]:
        """The jobs that were started here."""
        return [job for job in self._drivers if self.state(job) == "RUNNING"]

    def end(self, job: str) -> None:
        """Kill a driver. The next order ends what it started on the hosts."""
        self._drivers[job].kill()


def check_installed(archive: bytes | None, folder: str) -> None:
    """Refuse code that would have to travel."""
    if archive is not None:
        raise ClusterUnusable(f"{folder}: its hosts run their installed code: --code installed")


def _report(hosts: list[HostState], question: Question, kind: str) -> PreflightReport:
    """What the hosts are together: whole slices of a kind, and each host's answer."""
    mine = [one for one in hosts if one.kind == kind]
    heads = {one.host.slice_name: one for one in mine if one.host.index == 0}
    count = Counter(one.host.slice_name for one in mine)
    whole = {name for name, head in heads.items() if count[name] == head.size}
    busy = {one.host.slice_name for one in mine if one.run}
    others = Counter(one.kind for one in hosts if one.kind != kind and one.host.index == 0)
    return PreflightReport(
        present=len(whole),
        free=len(whole - busy),
        others=dict(others),
        hosts=tuple(one.answer_to(question) or PreflightHost(name=str(one.host)) for one in mine),
    )
