"""The worker: what each process of an attempt does, from the trainer to the journal."""

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

from orchestrator.drive.run_saves import RunSaves
from orchestrator.errors import JournalUnreadable
from orchestrator.journal import ClaimWatch, Journal, StepLog, boundary
from orchestrator.journal.counted_steps import counted_steps
from orchestrator.journal.heartbeat import HeartbeatWriter
from orchestrator.journal.step_table import read_table
from orchestrator.launch import provenance
from orchestrator.launch.backend import WorkerArgs
from orchestrator.storage import copies, folder, is_copy
from orchestrator.storage.ship import pipe_to
from orchestrator.types.plan import Plan
from orchestrator.types.run import Step

if TYPE_CHECKING:
    from trainers.data.batch_source import DataProgress


PRINT_EVERY_S = 10.0


def work(args: WorkerArgs, rank: int) -> None:
    """Train this process's part of the plan, with heartbeats. Rank 0 writes the steps."""
    path = folder(args.run)
    redirect_output(Journal(path).paths.rank_log(args.attempt, rank))
    slice_name = os.environ.get("TPU_NAME") or socket.gethostname()
    watch = ClaimWatch(path, args.claim, args.attempt)
    with HeartbeatWriter(
        path, args.attempt, rank, slice_name, args.heartbeat_s, watch, give_up=lambda: os._exit(1)
    ) as beats:
        try:
            _train(args, rank, beats, RunSaves(args, beats, watch))
        except BaseException:
            traceback.print_exc()
            raise


def _train(args: WorkerArgs, rank: int, beats: HeartbeatWriter, saves: RunSaves) -> None:
    from trainers.loop import Assignment, train  # noqa: PLC0415  the driver itself needs no JAX
    from trainers.multihost import join_processes  # noqa: PLC0415

    join_processes()

    journal = Journal(folder(args.run))
    spec, state, plan = journal.spec(), journal.state(), journal.plan(args.plan_digest)
    submission, settled = state.submitted.submission, state.settled_requests
    if not submission.rehearsal:  # a rehearsal runs in the installation that submitted it
        provenance.check_versions(submission.environment)

    def stop() -> bool:
        beats.count_step()
        return rank == 0 and journal.cancel_request(settled) is not None

    print(f"attempt {args.attempt}, rank {rank}: trainer {plan.trainer}, plan {plan.digest[:8]}")
    with ExitStack() as stack:
        emit: Callable[[Step], None] = _drop
        if rank == 0:
            log = stack.enter_context(StepLog(journal.path, args.attempt))
            emit = printed(log.append)
            if is_copy(journal.path):  # a checkpoint counts no steps that only this process has
                saves.before_report = log.sync
        assignment = Assignment(
            directory=journal.path,
            steps=journal.run().steps,
            emit=emit,
            checkpoint=spec.run.checkpoint,
            stop=stop,
            next_stage=saves.begin_stage,
            profile_steps=range(*submission.profile) if submission.profile else range(0),
            folder=Path(submission.folder),
            peak_flops_per_s=_peak_flops_per_s(plan),
            data_progress=_data_progress(journal, submission.plan_digest),
            saves=saves,
            evaluation=spec.run.evaluation,
            progressed=beats.count_step,
        )
        try:
            train(plan, assignment)
        finally:
            copies.upload(journal.path / "profile")


def _data_progress(journal: Journal, first_plan_digest: str) -> "DataProgress":
    from trainers.data.batch_source import DataProgress  # noqa: PLC0415

    return DataProgress(
        original=journal.plan(first_plan_digest),
        sequences_between=lambda start, stop: sequences_taken(journal, start, stop),
    )


def sequences_taken(journal: Journal, start: int, stop: int) -> int:
    """The sequences that these steps of a stage of the run took, whatever their batches were."""
    run, steps = journal.run(), stop - start
    plans = [journal.plan(one.plan_digest).stage_of(start) for one in run.attempts]
    batches = {plan.batch.sequences for plan in plans}
    if len(batches) == 1:
        return steps * batches.pop()
    counted = counted_steps({one.number: read_table(journal.path, one)[0] for one in run.attempts})
    known = (counted.index >= start) & (counted.index < stop)
    if known.sum() < steps:
        missing = f"{steps - known.sum()} of the steps from {start} to {stop} are not in it"
        raise JournalUnreadable(journal.path, f"which data comes next is unknown: {missing}")
    return int(counted.tokens[known].sum()) // plans[0].batch.length


def _peak_flops_per_s(plan: Plan) -> float | None:
    """The peak of one device by the forecast; None when the forecast is for other devices."""
    on_chips = "tpu" in os.environ.get("JAX_PLATFORMS", "")  # JaxTrainer sets it on TPU hosts
    return plan.forecast.peak_flops_per_s if on_chips or plan.chip_profile else None


def printed(
    emit: Callable[[Step], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[Step], None]:
    """Print steps into the log of the rank: the first ones, then one now and then."""
    printed_at_s = clock() - PRINT_EVERY_S

    def emit_and_print(step: Step) -> None:
        nonlocal printed_at_s
        emit(step)
        if step.startup or clock() - printed_at_s >= PRINT_EVERY_S:
            printed_at_s = clock()
            print(f"step {step.index + 1}: {step.step_s:.3g} s, loss {step.loss:.4f}", flush=True)
        if evaluation := step.own_evaluation:
            print(f"step {step.index + 1}: held-out loss {evaluation.loss:.4f}", flush=True)

    return emit_and_print


def _drop(_: Step) -> None:
    """Every rank measures its steps, and only one writes them."""


def redirect_output(path: Path) -> None:
    """Append all that this process prints from now on to a log of the run."""
    with appending_to(path) as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def appending_to(path: Path) -> IO[bytes]:
    """A log of the run, open for appending; one of a bucket is written by a process of its own."""
    return os.fdopen(pipe_to(path), "wb", 0) if is_copy(path) else boundary.appending_to(path)
