"""Runs on emulated slices, and their faults: ranks, hosts, drivers and supervisors die."""

import os
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import journal
from orchestrator.journal import heartbeat
from orchestrator.journal.ownership import RunRequest
from orchestrator.launch.ray import attempt_process
from orchestrator.launch.ray.local_cluster import PrivateCluster, private_cluster
from orchestrator.launch.ray.slices import emulated_hosts
from orchestrator.planning.planner import make_plan
from orchestrator.values.run import Attempt, Run, TimedStep
from orchestrator.values.spec import CheckpointOptions, Pods, RetryLimits, RunOptions, Spec
from tests.clusters import variable
from tests.example_specs import TINY, spec_of

LIMIT_S = 900.0  # on a machine that does other work too
POLL_S = 0.1


def small_spec(
    pods: Pods, *, chip: str = "v5e", topology: str = "1x1", hang_limit_s: float = 40.0
) -> Spec:
    """A spec whose steps take milliseconds, saved every fifth step."""
    spec = spec_of(
        TINY, chip=chip, topology=topology, pods=pods.max, sequences=24, length=64, tolerance=0.0
    )
    options = RunOptions(
        checkpoint=CheckpointOptions(every=5, keep=2),
        hang_limit_s=hang_limit_s,
        retries=RetryLimits(failures=3, preemptions=3),
    )
    return replace(spec, resources=replace(spec.resources, pods=pods), run=options)


@dataclass
class Emulated:
    """A run on a private cluster."""

    recorded: journal.Journal
    cluster: PrivateCluster

    def run(self) -> Run:
        return self.recorded.run()

    def until(self, holds: Callable[[Run], object], limit_s: float = LIMIT_S) -> Run:
        """Wait until something holds of the run; fail when it ends without, or in no time."""
        deadline = time.monotonic() + limit_s
        while not holds(run := self.run()):
            event = self.cluster.next_event(POLL_S)
            assert not (event and event.error), event
            assert run.ended_at_s is None or holds(self.run()), (
                run.state,
                run.detail,
                run.attempts,
            )
            assert time.monotonic() < deadline, (run.state, run.attempts)
        return run

    def until_step(self, attempt: int, steps: int) -> Run:
        """Wait until an attempt has come so far."""
        return self.until(
            lambda run: (
                len(run.attempts) >= attempt and run.attempts[attempt - 1].steps_done >= steps
            )
        )

    def until_newest(self, attempt: int, steps: int) -> Run:
        """Wait until an attempt of that number or a later one has come so far."""
        return self.until(
            lambda run: len(run.attempts) >= attempt and run.attempts[-1].steps_done >= steps
        )

    def until_next_or_end(self, attempt: int) -> Run:
        """Wait until an attempt of that number or a later one has done a step, or there comes none
        because the run has ended.
        """
        return self.until(
            lambda run: (
                run.ended_at_s is not None
                or (len(run.attempts) >= attempt and run.attempts[-1].steps_done >= 1)
            )
        )

    def until_ended(self, attempt: int) -> Attempt:
        """Wait until an attempt has ended."""
        run = self.until(
            lambda run: len(run.attempts) >= attempt and run.attempts[attempt - 1].reason
        )
        return run.attempts[attempt - 1]

    def to_the_end(self) -> Run:
        """Wait until the run has ended."""
        return self.until(lambda run: run.ended_at_s is not None)

    def signal_rank(self, attempt: int, rank: int, number: int) -> None:
        """Send a signal to a rank of an attempt."""
        os.kill(heartbeat.read_heartbeats(self.recorded.path, attempt)[rank].process.pid, number)

    def ranks_on(self, attempt: int, slice_name: str, worker: int = 0) -> list[int]:
        """The ranks of an attempt whose processes run on a host."""
        beating = heartbeat.read_heartbeats(self.recorded.path, attempt)
        return [rank for rank, one in beating.items() if is_on(one.process.pid, slice_name, worker)]

    def host_of(self, attempt: int, rank: int) -> tuple[str, int]:
        """The host of a rank: its slice, and which of the slice's hosts it is."""
        pid = heartbeat.read_heartbeats(self.recorded.path, attempt)[rank].process.pid
        name, worker = read(pid, "TPU_NAME"), read(pid, "TPU_WORKER_ID")
        assert name
        assert worker
        return name, int(worker)

    def whole_slices(self) -> set[str]:
        """The slices of the cluster that have lost no host."""
        hosts = {
            (read(pid, "TPU_NAME"), read(pid, "TPU_WORKER_ID"))
            for pid in attempt_process.marked(self.cluster.mark)
        }
        plan = self.recorded.plan(self.run().plan_digest)
        counted = Counter(name for name, _ in hosts if name)
        return {name for name, count in counted.items() if count == plan.hosts_per_slice}

    def lose_host(self, slice_name: str, worker: int = 0) -> None:
        """Kill a node: its raylet and all its processes, as when a machine is gone."""
        mine = [
            pid
            for pid in attempt_process.marked(self.cluster.mark)
            if is_on(pid, slice_name, worker)
        ]
        assert mine, f"no process stands for {slice_name}"
        for pid in mine:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def is_on(pid: int, slice_name: str, worker: int) -> bool:
    """Whether a process runs on an emulated host."""
    return (read(pid, "TPU_NAME"), read(pid, "TPU_WORKER_ID")) == (slice_name, str(worker))


def read(pid: int, name: str) -> str | None:
    """A variable of a process; None when it has ended."""
    try:
        return variable(pid, name)
    except OSError:
        return None


@contextmanager
def emulated(spec: Spec, storage: Path, *, steps: int, spares: int = 0) -> Iterator[Emulated]:
    """A run that was just started on emulated slices; at the end nothing of it is left."""
    plan = make_plan(spec)
    opened = RunRequest(spec=spec, plan=plan, steps=steps, rehearsal=True)
    recorded = journal.create_run(storage, opened).journal
    with driven_on(recorded, spares=spares) as run:
        yield run


@contextmanager
def driven_on(recorded: journal.Journal, *how: str, spares: int = 0) -> Iterator[Emulated]:
    """A run with a driver of its own, on a cluster of its own."""
    plan = recorded.plan(recorded.state().submitted.submission.plan_digest)
    command = [sys.executable, "-m", "orchestrator.drive", str(recorded.path), *how]
    hosts = emulated_hosts(plan, spares)
    with private_cluster(hosts, plan.devices_per_host, shlex.join(command)) as cluster:
        yield Emulated(recorded, cluster)


def losses(recorded: journal.Journal) -> list[float]:
    """The loss of every step, in order."""
    steps: list[TimedStep] = recorded.steps(recorded.run())
    assert [timed.step.index for timed in steps] == list(range(len(steps)))
    return [timed.step.loss for timed in steps]
