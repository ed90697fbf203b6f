"""A backend that starts plain processes on this machine: a second one beside Ray, for tests.

    python -m tests.process_backend SPEC ARGS RANK    # one worker

Its slices are names, and each of their hosts is a process, which holds its slice for as long as it
lives. Tests take slices away with `lost`.
"""

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from orchestrator.journal.run_journal import Journal
from orchestrator.launch.backend import (
    AttemptEvent,
    AttemptSpec,
    ClusterClient,
    ClusterEvent,
    ClusterUnusable,
    DeadRank,
    Slice,
    WorkerArgs,
    describe_exit,
)
from orchestrator.launch.hosts.host_process import _work_or_exit
from orchestrator.processes import emulated_devices, free_port
from orchestrator.storage.addresses import folder
from orchestrator.values import codec
from orchestrator.values.plan import Plan

ROOT = Path(__file__).parent.parent
POLL_S = 0.02


@dataclass
class ProcessBackend:
    """Runs attempts as processes of this machine. `lost` slices are gone for good.

    The first attempts end with `refusals` before they begin.
    """

    lost: set[str] = field(default_factory=set)
    refusals: list[AttemptEvent] = field(default_factory=list)

    @contextmanager
    def emulate(self, plan: Plan, command: str) -> Iterator["ProcessCluster"]:
        """Run the command here: this machine is the cluster."""
        process = subprocess.Popen(shlex.split(command))
        try:
            yield ProcessCluster(process, plan.hosts)
        finally:
            process.kill()
            process.wait()

    def connect(self, address: str) -> ClusterClient:
        """Other machines are out of reach."""
        raise ClusterUnusable(f"{address}: plain processes run on this machine alone")

    def attempt(self, spec: AttemptSpec) -> "ProcessAttempt":
        """Prepare an attempt."""
        return ProcessAttempt(spec, self.lost, self.refusals.pop(0) if self.refusals else None)


@dataclass
class ProcessCluster:
    """This machine, running one command."""

    process: subprocess.Popen[bytes]
    hosts: int

    def next_event(self, timeout_s: float) -> ClusterEvent | None:
        """That the command has ended, if it has."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        error = f"the driver ended with {code}" if code else None
        return ClusterEvent(nodes=self.hosts, job="FAILED" if code else "SUCCEEDED", error=error)


class ProcessAttempt:
    """The processes of one attempt, rank by rank."""

    def __init__(self, spec: AttemptSpec, lost: set[str], refusal: AttemptEvent | None) -> None:
        self._spec, self._lost, self._refusal = spec, lost, refusal
        self.workers: list[tuple[str, subprocess.Popen[bytes]]] = []
        journal = Journal(folder(spec.run))
        self._plan = journal.plan(journal.state().submitted.submission.plan_digest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _, process in self.workers:
            process.kill()
            process.wait()

    def next_event(self, timeout_s: float) -> AttemptEvent | None:
        """The slices until they are taken, later the end of the workers."""
        if self._refusal:
            return self._refusal
        if not self.workers:
            time.sleep(POLL_S)
            return AttemptEvent(slices=self.slices())
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self._kill_lost()
            codes = [process.poll() for _, process in self.workers]
            for rank, code in enumerate(codes):
                if code:
                    return death(rank, self.workers[rank][0], code)
            if codes and all(code == 0 for code in codes):
                return AttemptEvent(ended=True)
            time.sleep(POLL_S)
        return None

    def start(self, args: WorkerArgs, slices: Sequence[str]) -> None:
        """Start one process for each host of the slices."""
        hosts = self._plan.hosts_per_slice
        environment = emulated_devices(os.environ, self._plan.devices_per_host)
        command = [
            sys.executable,
            "-m",
            "tests.process_backend",
            codec.to_json(self._spec).decode(),
        ]
        ranks = [name for name in slices for _ in range(hosts)]
        if len(ranks) > 1:  # JAX joins them here; a worker without JAX needs no such thing
            environment |= {"COORDINATOR": f"127.0.0.1:{free_port()}", "PROCESSES": str(len(ranks))}
        for rank, name in enumerate(ranks):
            process = subprocess.Popen(
                [*command, codec.to_json(args).decode(), str(rank)],
                cwd=ROOT,
                env=environment | {"TPU_NAME": name},
            )
            self.workers.append((name, process))

    def slices(self) -> tuple[Slice, ...]:
        """The slices of the run's plan that are not lost."""
        size = self._plan.hosts_per_slice
        names = [f"pod-{pod}" for pod in range(self._plan.pods)]
        return tuple(
            Slice(name=name, hosts=size, size=size, free=is_free(self._spec, name))
            for name in names
            if name not in self._lost
        )

    def _kill_lost(self) -> None:
        for name, process in self.workers:
            if name in self._lost and process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)


def death(rank: int, slice_name: str, code: int) -> AttemptEvent:
    """The end of an attempt by that of a rank."""
    dead = DeadRank(rank=rank, host="this machine", slice_name=slice_name, how=describe_exit(code))
    return AttemptEvent(ended=True, error=dead.error, dead=(dead,))


def holders(spec: AttemptSpec, name: str) -> IO[bytes]:
    """The file that the processes on a slice have locked."""
    locks = folder(spec.run).parent / ".slices"
    locks.mkdir(exist_ok=True)
    return (locks / name).open("ab")


def is_free(spec: AttemptSpec, name: str) -> bool:
    """Whether no process is on a slice."""
    with holders(spec, name) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def main(spec: str, args: str, rank: str) -> None:
    """Be one worker."""
    held = holders(codec.from_json(spec.encode(), AttemptSpec), os.environ["TPU_NAME"])
    fcntl.flock(held, fcntl.LOCK_SH)
    worker = codec.from_json(spec.encode(), AttemptSpec).worker
    _work_or_exit(worker, codec.from_json(args.encode(), WorkerArgs), int(rank))


if __name__ == "__main__":
    main(*sys.argv[1:])
