"""A worker without JAX: it counts steps and fails where a test says so."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np

from orchestrator import journal
from orchestrator.goodput.slowdowns import HostSeconds, host_check
from orchestrator.journal.heartbeat import HeartbeatWriter
from orchestrator.launch.backend import WorkerArgs
from orchestrator.values.run import SavedCheckpoint, Startup, Step

WORKER, CHECKER = f"{__name__}:work", f"{__name__}:check"
FAILURES = "failures.json"  # how to fail, by ATTEMPT.RANK.STEP, before the heartbeats at "start"
STEP_S = 0.05
LATE_S = 1.5
SAVE_EVERY = 3


def work(args: WorkerArgs, rank: int) -> None:
    """Do the steps that are left, one after another."""
    run = journal.Journal(Path(args.run))
    failures = json.loads((run.path / FAILURES).read_text())
    if (how := failures.get(f"{args.attempt}.{rank}.start")) == "after the end":
        while run.run().attempts[args.attempt - 1].ended_at_s is None:
            time.sleep(STEP_S)
    else:
        fail(how)
    saved = max((attempt.steps_done for attempt in run.run().attempts), default=0)
    first = max(saved - 1, 0)  # the last step is not saved, as checkpoints are rare
    slice_name = os.environ["TPU_NAME"]
    watch = journal.ClaimWatch(run.path, args.claim, args.attempt)
    with HeartbeatWriter(
        run.path, args.attempt, rank, slice_name, args.heartbeat_s, watch, lambda: os._exit(1)
    ) as beats:
        log = journal.StepLog(run.path, args.attempt) if rank == 0 else None
        for index in range(first, run.run().steps):
            beats.count_step()
            if run.requested(0)[0]:
                return
            fail(failures.get(f"{args.attempt}.{rank}.{index}"))
            if log:
                log.append(step(index, opens=index == first))
            if log and (index + 1) % SAVE_EVERY == 0:
                beats.report_saved(saved_by(args, index + 1))
            time.sleep(STEP_S)


def check(args: WorkerArgs, rank: int) -> None:
    """Report a check in which the second host is slow, or fail at `ATTEMPT.RANK.check`."""
    run = journal.Journal(Path(args.run))
    failures = json.loads((run.path / FAILURES).read_text())
    slice_name, watch = (
        os.environ["TPU_NAME"],
        journal.ClaimWatch(run.path, args.claim, args.attempt),
    )
    with HeartbeatWriter(
        run.path, args.attempt, rank, slice_name, args.heartbeat_s, watch, lambda: os._exit(1)
    ) as beats:
        assert args.checks_only
        fail(failures.get(f"{args.attempt}.{rank}.check"))
        if rank == 0:
            taken = HostSeconds(("matmul",), np.array([[1.0], [2.0]]), emulated=True)
            beats.report_seen(check=host_check(args.attempt, taken, 1.0))
        time.sleep(0.5)


def saved_by(args: WorkerArgs, steps: int) -> SavedCheckpoint:
    """A checkpoint that nobody wrote."""
    return SavedCheckpoint(claim=args.claim, attempt=args.attempt, step=steps, sha256="0" * 64)


def step(index: int, *, opens: bool) -> Step:
    """A step of made-up numbers."""
    startup = Startup(steps_done=index, skipped=(), state_s=0.0, compile_s=0.0)
    return Step(
        index=index,
        step_s=STEP_S,
        data_s=0.0,
        checkpoint_s=0.0,
        tokens=64,
        loss=1.0,
        grad_norm=1.0,
        learning_rate=1e-3,
        startup=startup if opens else None,
    )


def fail(how: str | None) -> None:
    """Stop or kill this process, do nothing for a while, or raise an error with that text."""
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "wait":
        time.sleep(60)
    elif how == "be late":
        time.sleep(LATE_S)
    elif how:
        raise ValueError(how)
