"""Runs on emulated slices, of one host and of two, meet fault after fault, and lose nothing.

    python -m tests.chaos.launch_campaign [--faults N] [--seed N] [--folder DIR]

One fault of five strikes the run on slices of two hosts. Each strikes when the run has come a few
steps farther than ever before, not at a time of the clock. After the last one a run goes on to its
end, and every step that it took is compared with those of a run that nothing disturbed: to the bit
where the shape is the same.
"""

import argparse
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchestrator import journal
from orchestrator.journal import RunRequest
from orchestrator.launch.ray import process_tree
from orchestrator.plan.planner import make_plan
from orchestrator.render.screen_parts import Table, screen
from orchestrator.types.spec import Pods
from tests.chaos.faults import Emulated, driven_on, losses, small_spec

SPARES = 1
ONE_HOST, TWO_HOSTS = ("v5e", "1x1"), ("v5p", "2x2x2")  # chip and topology
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


def kill_supervisor(run: Emulated, _attempt: int, _rank: int) -> None:
    """The owner of the cluster dies, and the cluster with it."""
    run.cluster.supervisor.kill()


def processes(run: Emulated, word: str) -> list[int]:
    """The processes of the run's cluster with that word in their command."""
    planned = []
    for pid in process_tree.marked(run.cluster.mark):
        with suppress(psutil.Error):
            if word in " ".join(psutil.Process(pid).cmdline()):
                planned.append(pid)
    return planned


FAULTS = (
    Fault(name="rank killed", inject=kill_rank, weight=8),
    Fault(name="rank stopped", inject=stop_rank, weight=3),
    Fault(name="host lost", inject=lose_host, weight=3),
    Fault(name="attempt process killed", inject=kill_attempt, weight=2, rank=False),
    Fault(name="controller killed", inject=kill_controller, weight=2, rank=False),
    Fault(name="driver killed", inject=kill_driver, weight=2, ends=True, rank=False),
    Fault(name="supervisor killed", inject=kill_supervisor, weight=1, ends=True, rank=False),
)


@dataclass(frozen=True, kw_only=True)
class FaultResult:
    """A fault, and how the run recovered."""

    fault: Fault
    reason: str
    named: bool
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

    def to_the_end(self) -> None:
        """One cluster after another, until the faults are spent and the run has ended."""
        how: tuple[str, ...] = ()
        while self.recorded.run().ended_at_s is None:
            with driven_on(self.recorded, *how, spares=SPARES) as run:
                self._on_one_cluster(run)
            assert process_tree.marked(run.cluster.mark) == [], "something is left of a cluster"
            assert not run.cluster.folder.exists()
            how = ("--resume",)

    def _on_one_cluster(self, run: Emulated) -> None:
        """Inject faults until the cluster does not survive one, or all is done."""
        before = len(run.run().attempts)
        while True:
            run.until_newest(before + 1, 1)
            if self.pending:
                self._note_recovery(run)
            if len(self.results) >= self.faults:
                run.to_the_end()
                return
            farthest = max(one.steps_done for one in run.run().attempts)
            ahead = farthest + self.chance.randint(*AHEAD)
            before = len(run.until_newest(before + 1, ahead).attempts)
            if self._inject(run).ends:
                return

    def _inject(self, run: Emulated) -> Fault:
        now = run.run()
        attempt = now.attempts[-1]
        fault = self.chance.choices(FAULTS, [one.weight for one in FAULTS])[0]
        rank = self.chance.randrange(self.recorded.plan(attempt.plan_digest).hosts)
        if fault.inject is lose_host and len(run.whole_slices()) == 1:
            fault = FAULTS[0]  # nothing would be left to go on with
        self.pending = (fault, attempt.number, rank, attempt.steps_done)
        self.began_s = time.monotonic()
        fault.inject(run, attempt.number, rank)
        return fault

    def _note_recovery(self, run: Emulated) -> None:
        assert self.pending
        fault, number, rank, done = self.pending
        attempts = run.run().attempts
        ended, after = attempts[number - 1], attempts[-1]
        self.pending = None
        self.results.append(
            FaultResult(
                fault=fault,
                reason=str(ended.reason),
                named=not fault.rank or ended.first_dead_rank == rank,
                redone=max(ended.steps_done, done) - after.restored_steps,
                recovered_s=time.monotonic() - self.began_s,
            )
        )
        one = self.results[-1]
        named = "" if one.named else f", but rank {ended.first_dead_rank} was named, not {rank}"
        print(
            f"{len(self.results):4}  {fault.name:18} step {done:4}  {one.reason:10}"
            f" {after.pods} pods, {one.redone} steps redone, {one.recovered_s:.0f} s{named}",
            flush=True,
        )


def table(results: list[FaultResult]) -> str:
    """How often the run recovered from each fault, and what that cost."""
    rows = [("FAULT", "SURVIVED", "RANK NAMED", "STEPS REDONE", "SECONDS TO RECOVER")]
    for fault in (*FAULTS, None):
        ones = [one for one in results if fault is None or one.fault is fault]
        if not ones:
            continue
        seconds = [one.recovered_s for one in ones]
        named = [one.named for one in ones if one.fault.rank]
        rows.append(
            (
                fault.name if fault else "all",
                str(len(ones)),
                f"{sum(named)} of {len(named)}" if named else "-",
                f"{sum(one.redone for one in ones)}",
                f"{statistics.median(seconds):.0f} median, {max(seconds):.0f} most",
            )
        )
    return screen([Table(rows=rows, columns="<>>>>")])


def check_same_losses(disturbed: journal.Journal, undisturbed: journal.Journal) -> str:
    """Every step against the same one of a run that nothing disturbed; raises where one differs."""
    mine, theirs = losses(disturbed), losses(undisturbed)
    assert len(mine) == len(theirs)
    same = sum(one == other for one, other in zip(mine, theirs, strict=True))
    for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        assert math.isclose(one, other, rel_tol=1e-2), f"step {index}: {one} against {other}"
    worst = max(abs(one - other) / other for one, other in zip(mine, theirs, strict=True))
    return f"{len(mine)} steps, {same} to the bit, the others within {worst:.1e}"


def main() -> int:
    """Run the campaign and print its table; an exception where it lost anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="orch-chaos-"))
    on_two_hosts = options.faults // 5
    results: list[FaultResult] = []
    try:
        for shape, faults in (
            (ONE_HOST, options.faults - on_two_hosts),
            (TWO_HOSTS, on_two_hosts),
        ):
            print(f"on slices of {' '.join(shape)}", flush=True)
            print(campaign(folder / shape[0], shape, faults, options.seed, results), flush=True)
    finally:
        print(f"\n{table(results)}\n")
    print("nothing lost")
    return 0


def campaign(
    folder: Path, shape: tuple[str, str], faults: int, seed: int, results: list[FaultResult]
) -> str:
    """Inject faults into one run, and compare it with an undisturbed one; the result in words."""
    chip, topology = shape
    spec = small_spec(Pods(min=1, max=2), chip=chip, topology=topology, hang_limit_s=HANG_LIMIT_S)
    steps = faults * (AHEAD[1] + 1) + 10
    opened = RunRequest(spec=spec, plan=make_plan(spec), steps=steps, rehearsal=True)
    began_s = time.monotonic()
    faulty = Campaign(
        journal.create_run(folder, opened, "faulty").journal,
        len(results) + faults,
        random.Random(seed),
        results,
    )
    faulty.to_the_end()
    whole = journal.create_run(folder, opened, "whole").journal
    with driven_on(whole) as run:
        run.to_the_end()
    ended = faulty.recorded.run()
    assert ended.state == "succeeded", (ended.state, ended.detail)
    took_s = time.monotonic() - began_s
    compared = check_same_losses(faulty.recorded, whole)
    return f"{len(ended.attempts)} attempts in {took_s:,.0f} s; {compared}"


if __name__ == "__main__":
    sys.exit(main())
