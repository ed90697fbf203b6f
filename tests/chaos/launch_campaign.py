"""The part of the campaign on emulated slices with Ray, of one host and of two.

Each fault strikes when the run has come a few steps farther than ever before, not at a time of the
clock. After the last one the run goes on to its end, and every step that it took is compared with
those of a run that nothing disturbed: to the bit where the shape is the same.
"""

import functools
import math
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from orchestrator import journal
from orchestrator.journal.ownership import RunRequest
from orchestrator.launch.ray import attempt_process
from orchestrator.planning.planner import make_plan
from orchestrator.values.spec import Pods
from tests.chaos.drawn import EPISODE
from tests.chaos.fault_record import FaultRecord
from tests.chaos.faults import Emulated, driven_on, is_on, losses, small_spec

SPARES = 1
SHAPES = ("v5e", "1x1"), ("v5p", "2x2x2")  # chip and topology: slices of one host, and of two
AHEAD = (2, 6)  # steps beyond the farthest before a fault strikes
HANG_LIMIT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that is injected into a run. `ends` says that its cluster or its driver does not
    survive it; `rank` that the faulty rank must be named.
    """

    name: str
    inject: Callable[[Emulated, int, int], None]
    weight: int
    ends: bool = False
    rank: bool = True


def kill_rank(run: Emulated, attempt: int, rank: int) -> None:
    """A process dies without a word."""
    run.signal_rank(attempt, rank, signal.SIGKILL)


def stop_rank(run: Emulated, attempt: int, rank: int) -> None:
    """A process hangs."""
    run.signal_rank(attempt, rank, signal.SIGSTOP)


def lose_host(run: Emulated, attempt: int, rank: int) -> None:
    """The host of a process is gone, and its slice is whole no more."""
    run.lose_host(*run.host_of(attempt, rank))


def kill_attempt(run: Emulated, _attempt: int, _rank: int) -> None:
    """The process that carries out the attempt dies."""
    for pid in processes(run, "orchestrator.launch.ray.attempt"):
        os.kill(pid, signal.SIGKILL)


def kill_controller(run: Emulated, _attempt: int, _rank: int) -> None:
    """Ray Train's own controller dies."""
    for pid in processes(run, "ray::TrainController"):
        os.kill(pid, signal.SIGKILL)


def kill_driver(run: Emulated, _attempt: int, _rank: int) -> None:
    """The driver of the run dies."""
    driver = run.run().driver
    assert driver
    os.kill(driver.pid, signal.SIGKILL)


def stop_driver(run: Emulated, _attempt: int, _rank: int) -> None:
    """The driver of the run hangs: after ten seconds its run counts as lost."""
    driver = run.run().driver
    assert driver
    os.kill(driver.pid, signal.SIGSTOP)


def kill_rank_and_driver(run: Emulated, attempt: int, rank: int) -> None:
    """A process and the driver die at once."""
    kill_rank(run, attempt, rank)
    kill_driver(run, attempt, rank)


def kill_supervisor(run: Emulated, _attempt: int, _rank: int) -> None:
    """The owner of the cluster dies, and the cluster with it."""
    run.cluster.process.kill()


def stop_raylet(run: Emulated, attempt: int, rank: int) -> None:
    """The raylet of a host hangs, and its ranks train on. The cluster takes a minute to notice."""
    host = run.host_of(attempt, rank)
    for pid in processes(run, "raylet/raylet"):
        if is_on(pid, *host):
            os.kill(pid, signal.SIGSTOP)


def processes(run: Emulated, word: str) -> list[int]:
    """The processes of the run's cluster with that word in their command."""
    planned = []
    for pid in attempt_process.marked(run.cluster.mark):
        with suppress(psutil.Error):
            if word in " ".join(psutil.Process(pid).cmdline()):
                planned.append(pid)
    return planned


FAULTS = (
    Fault(name="rank killed", inject=kill_rank, weight=8),
    Fault(name="rank stopped", inject=stop_rank, weight=3),
    Fault(name="host lost", inject=lose_host, weight=3),
    Fault(name="raylet stopped", inject=stop_raylet, weight=2, rank=False),
    Fault(name="attempt process killed", inject=kill_attempt, weight=2, rank=False),
    Fault(name="controller killed", inject=kill_controller, weight=2, rank=False),
    Fault(name="driver killed", inject=kill_driver, weight=2, ends=True, rank=False),
    Fault(name="driver stopped", inject=stop_driver, weight=2, ends=True, rank=False),
    Fault(name="two at once", inject=kill_rank_and_driver, weight=2, ends=True, rank=False),
    Fault(name="supervisor killed", inject=kill_supervisor, weight=1, ends=True, rank=False),
)


@dataclass(frozen=True, kw_only=True)
class FaultResult:
    """A fault, and how the run recovered."""

    fault: Fault
    reason: str
    named: bool | None
    redone: int
    recovered_s: float


@dataclass
class Campaign:
    """One run, with faults until all campaigns together have injected `faults`."""

    recorded: journal.Journal
    faults: int
    chance: random.Random
    results: list[FaultResult]
    began_s: float = 0.0
    pending: tuple[Fault, int, int, int] | None = None
    host: tuple[str, int] = ("", 0)  # that of the rank that was struck last

    def to_the_end(self) -> list[str]:
        """One cluster after another, until the faults are spent and the run has ended; what is left
        of the clusters.
        """
        how: tuple[str, ...] = ()
        left: list[str] = []
        while self.recorded.run().ended_at_s is None:
            with driven_on(self.recorded, *how, spares=SPARES) as run:
                self._on_one_cluster(run)
            left += [f"process {pid}" for pid in attempt_process.marked(run.cluster.mark)]
            left += [str(run.cluster.folder)] if run.cluster.folder.exists() else []
            how = ("--resume",)
        return left

    def _on_one_cluster(self, run: Emulated) -> None:
        """Inject faults until the cluster does not survive one, or all is done."""
        before = len(run.run().attempts)
        while True:
            run.until_next_or_end(before + 1)
            if self.pending:
                self._note_recovery(run)
            if len(self.results) >= self.faults or run.run().ended_at_s is not None:
                run.to_the_end()
                return
            farthest = max(attempt.steps_done for attempt in run.run().attempts)
            ahead = farthest + self.chance.randint(*AHEAD)
            before = len(run.until_newest(before + 1, ahead).attempts)
            if self._inject(run).ends:
                return

    def _inject(self, run: Emulated) -> Fault:
        now = run.run()
        attempt = now.attempts[-1]
        fault = self.chance.choices(FAULTS, [fault.weight for fault in FAULTS])[0]
        rank = self.chance.randrange(self.recorded.plan(attempt.plan_digest).hosts)
        if fault.inject in (lose_host, stop_raylet) and len(run.whole_slices()) == 1:
            fault = FAULTS[0]  # nothing would be left to go on with
        self.pending = (fault, attempt.number, rank, attempt.steps_done)
        self.began_s = time.monotonic()
        self.host = run.host_of(attempt.number, rank)
        fault.inject(run, attempt.number, rank)
        return fault

    def _note_recovery(self, run: Emulated) -> None:
        assert self.pending
        fault, number, rank, done = self.pending
        attempts = run.run().attempts
        ended, after = attempts[number - 1], attempts[-1]
        if fault.inject is stop_raylet:
            run.lose_host(*self.host)  # nobody lets it go on, and its slice counts no more
        self.pending = None
        outran = after.number == ended.number  # it had done its steps before the fault was noticed
        self.results.append(
            FaultResult(
                fault=fault,
                reason=str(ended.reason),
                named=None if outran or not fault.rank else ended.first_dead_rank == rank,
                redone=0 if outran else max(ended.steps_done, done) - after.restored_steps,
                recovered_s=time.monotonic() - self.began_s,
            )
        )


def compare_losses(disturbed: journal.Journal, theirs: list[float]) -> bool | None:
    """Whether every step is the undisturbed run's to the bit; raises where one differs by much.

    None where the run went on with fewer pods meanwhile: sums then have another order.
    """
    mine = losses(disturbed)
    assert len(mine) == len(theirs)
    for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        assert math.isclose(one, other, rel_tol=1e-2), f"step {index}: {one} against {other}"
    shapes = {attempt.pods for attempt in disturbed.run().attempts}
    return mine == theirs if len(shapes) == 1 else None


def request_of(shape: tuple[str, str]) -> RunRequest:
    """A run on slices of a shape."""
    chip, topology = shape
    spec = small_spec(Pods(min=1, max=2), chip=chip, topology=topology, hang_limit_s=HANG_LIMIT_S)
    steps = EPISODE * (AHEAD[1] + 1) + 10
    return RunRequest(spec=spec, plan=make_plan(spec), steps=steps, rehearsal=True)


@functools.cache
def undisturbed_losses(shape: tuple[str, str]) -> list[float]:
    """The losses of a run that nothing disturbs."""
    with TemporaryDirectory(prefix="orch-chaos-", ignore_cleanup_errors=True) as folder:
        whole = journal.create_run(Path(folder), request_of(shape), "whole").journal
        with driven_on(whole) as run:
            run.to_the_end()
        return losses(whole)


def episode(folder: Path, indices: list[int], seed: int, commit: str) -> list[FaultRecord]:
    """The records of some faults on one run, and whether it equals an undisturbed one."""
    chance = random.Random(f"{seed}-{indices[0]}")
    shape = SHAPES[indices[0] // EPISODE % 2]
    created = journal.create_run(folder, request_of(shape), "it").journal
    faulty = Campaign(created, len(indices), chance, [])
    survived, detail, left, identical = True, "", list[str](), None
    try:
        left = faulty.to_the_end()
        ended = created.run()
        survived, detail = ended.state == "succeeded", str(ended.detail or "")
        identical = compare_losses(created, undisturbed_losses(shape))
    except AssertionError as error:
        survived, detail = False, str(error)
    last = len(faulty.results) - 1
    return [
        FaultRecord(
            index=index,
            seed=seed,
            backend="ray",
            name=one.fault.name,
            phase="step",
            struck=f"{one.fault.name} on {' '.join(shape)}",
            survived=survived or number < last,
            identical=identical,
            named=one.named,
            lost_s=round(one.recovered_s, 1),
            redone=one.redone,
            left_over=left if number == last else [],
            at=time.strftime("%Y-%m-%d", time.gmtime()),
            commit=commit,
            detail=detail if number == last else "",
        )
        for number, (index, one) in enumerate(zip(indices, faulty.results, strict=False))
    ]
