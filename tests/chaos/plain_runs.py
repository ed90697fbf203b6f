"""Runs on plain processes that faults strike: a driver and two ranks that train the toy."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from orchestrator import journal
from orchestrator.journal import files
from orchestrator.journal.ownership import RunRequest
from orchestrator.planning.planner import make_plan
from orchestrator.storage.addresses import address
from orchestrator.values.run import LIVE, Run
from orchestrator.values.spec import Pods, Spec
from tests.chaos import points
from tests.chaos.faults import losses, small_spec
from tests.chaos.points import Points
from tests.conftest import ROOT

STEPS = 300
STEP_S = 0.3
HANG_LIMIT_S = 10.0
LIMIT_S = 900.0  # on a machine that does much other work too
STALL_S = 3.0
END_S = 30.0  # within which what was superseded must be gone
POLL_S = 0.05
MARK = "CHAOS_MARK"


class NotSurvived(AssertionError):
    """The run ended otherwise, or made no progress within the limit."""


def spec() -> Spec:
    """Two slices of one host, a trainer that compiles in a second, a checkpoint each five steps."""
    small = small_spec(Pods(min=2, max=2), hang_limit_s=HANG_LIMIT_S)
    run = replace(small.run, trainer="tests.toy")
    cluster = replace(small.cluster, backend="tests.process_backend:ProcessBackend")
    return replace(small, run=run, cluster=cluster)


@dataclass
class PlainRun:
    """One run, its drivers, and its points."""

    folder: Path
    recorded: journal.Journal
    points: Points
    variables: dict[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    drivers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def driver(self) -> subprocess.Popen[bytes]:
        """The newest driver."""
        return self.drivers[-1]

    def run(self) -> Run:
        """The run as anybody sees it."""
        return self.recorded.run()

    def start_driver(self) -> None:
        """Start a driver, as a cluster does at first and `orch resume` afterwards."""
        how, where = ["--resume"] if self.run().driver else [], address(self.recorded.path)
        command = [sys.executable, "-m", "tests.chaos.plain_driver", where, *how]
        mine = {MARK: self.mark, points.VARIABLE: str(self.points.folder)}
        with (self.folder / f"driver-{len(self.drivers)}.log").open("wb") as log:
            self.drivers.append(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**os.environ, **self.variables, **mine},
                    stdout=log,
                    stderr=log,
                )
            )

    def until(self, holds: Callable[[Run], object], limit_s: float = LIMIT_S) -> Run:
        """Wait until something holds of the run."""
        deadline = time.monotonic() + limit_s
        while not holds(run := self.run()):
            if time.monotonic() > deadline:
                raise NotSurvived(f"not within {limit_s:.0f} s: {described(run)}")
            if run.ended_at_s is not None:
                raise NotSurvived(f"ended: {described(run)}")
            time.sleep(POLL_S)
        return run

    def until_reached(self) -> int:
        """Wait until a process has come to the armed point; its number."""
        deadline = time.monotonic() + LIMIT_S
        while (pid := self.points.reached()) is None:
            if time.monotonic() > deadline:
                raise NotSurvived(f"nobody came to the point: {described(self.run())}")
            time.sleep(POLL_S / 10)
        return pid

    def keep_driven(self) -> None:
        """Do what a person does who looks now and then: resume a run without a driver."""
        run = self.run()
        if run.state == "lost" or (run.driver is None and self.driver.poll() is not None):
            with suppress(subprocess.TimeoutExpired):
                self.driver.wait(0)
            self.start_driver()
            self.until(lambda now: now.state in LIVE and _claims(now) != _claims(run))

    # --- its processes

    def processes(self) -> list[psutil.Process]:
        """Every process of the run. Zombies do not count."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def rank(self, rank: int) -> int:
        """The newest process of a rank."""
        ranks = []
        for process in self.processes():
            with suppress(psutil.Error):
                command = process.cmdline()
                if "tests.process_backend" in command and command[-1] == str(rank):
                    ranks.append((process.create_time(), process.pid))
        if not ranks:
            raise ProcessLookupError(f"there is no rank {rank}")
        return max(ranks)[1]

    def left_over(self) -> list[str]:
        """What is left of a run that has ended: processes, and half-written files."""
        deadline = time.monotonic() + END_S
        while (alive := self.processes()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        found = [f"process {' '.join(process.cmdline()[1:4])}" for process in alive]
        root = self.recorded.path
        found += [str(path.relative_to(root)) for path in root.rglob(f".*{files.PARTIAL}")]
        checkpoints = root / "checkpoints"
        found += [path.name for path in checkpoints.glob("*tmp*")]
        return found

    def end_all(self) -> None:
        """Kill what is left."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        for driver in self.drivers:
            driver.kill()
            driver.wait()


def _claims(run: Run) -> object:
    return run.driver and (run.driver.pid, run.driver.started_s)


def described(run: Run) -> str:
    """A run in one line."""
    ends = [(attempt.reason, attempt.steps_done) for attempt in run.attempts]
    return f"{run.state}: {run.detail}; attempts {ends}"


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Signal processes; those that are gone are left out."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def plain_run(
    folder: Path,
    *,
    pace_s: float = STEP_S,
    steps: int = STEPS,
    storage: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[PlainRun]:
    """A new run without a driver, whose processes have these variables; at the end none of them is
    left.
    """
    chosen = spec()
    request = RunRequest(spec=chosen, plan=make_plan(chosen), steps=steps, rehearsal=True)
    recorded = journal.create_run(storage or folder / "runs", request, "it").journal
    controls = folder / "points"
    controls.mkdir()
    run = PlainRun(folder, recorded, Points(controls), dict(variables or {}))
    run.points.pace(pace_s)
    try:
        yield run
    finally:
        run.end_all()


def undisturbed_losses(folder: Path, steps: int = STEPS) -> list[float]:
    """The losses of a run that nothing disturbs."""
    with plain_run(folder, pace_s=0.0, steps=steps) as run:
        run.start_driver()
        run.until(lambda now: now.ended_at_s is not None)
        ended = run.run()
        if ended.state != "succeeded":
            raise NotSurvived(described(ended))
        return losses(run.recorded)
