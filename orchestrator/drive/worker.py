"""Drive room: what each process of an attempt does: trainer to journal."""

import os
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from orchestrator import journal
from orchestrator.errors import JournalUnreadable
from orchestrator.journal.heartbeat import HeartbeatWriter
from orchestrator.launch import provenance
from orchestrator.launch.ray.protocol import WorkerArgs
from orchestrator.types.plan import Plan
from orchestrator.types.run import Step


def work(share: WorkerArgs, rank: int) -> None:
    """Train this process's part of the plan, and give signs of life. Rank 0 writes the steps."""
    path = Path(share.run)
    write_to(journal.Journal(path).paths.rank_log(share.attempt, rank))
    slice_name = os.environ.get("TPU_NAME") or socket.gethostname()
    told = (path, share.attempt, rank, slice_name, share.beat_s)
    with HeartbeatWriter(*told, give_up=lambda: os._exit(1)) as beating:
        try:
            _train(share, rank, beating.count_step)
        except BaseException:
            traceback.print_exc()
            raise


def _train(share: WorkerArgs, rank: int, mark: Callable[[], None]) -> None:
    from trainers.data.resume import DataProgress  # noqa: PLC0415  the driver itself needs no JAX
    from trainers.loop import Assignment, train  # noqa: PLC0415

    recorded = journal.Journal(Path(share.run))
    spec, story, plan = recorded.spec(), recorded.state(), recorded.plan(share.plan_digest)
    submission, settled = story.submitted.submission, story.settled_requests
    if not submission.rehearsal:  # that one runs in the very installation it was submitted from
        provenance.check_versions(submission.environment)

    def stop() -> bool:
        mark()
        return rank == 0 and recorded.cancel_request(settled) is not None

    with ExitStack() as stack:
        emit: Callable[[Step], None] = _nobody
        if rank == 0:
            emit = stack.enter_context(journal.StepLog(recorded.path, share.attempt)).append
        asked = Assignment(
            directory=recorded.path,
            steps=recorded.run().steps,
            emit=emit,
            checkpoint=spec.run.checkpoint,
            stop=stop,
            profile_steps=range(*submission.profile) if submission.profile else range(0),
            folder=Path(submission.folder),
            peak_flops_per_s=_peak_flops_per_s(plan),
            data_progress=DataProgress(
                sequences=recorded.plan(submission.plan_digest).batch.sequences,
                sequences_after=lambda steps: sequences_taken(recorded, steps),
            ),
        )
        train(plan, asked)


def sequences_taken(recorded: journal.Journal, steps: int) -> int:
    """How many sequences the first so many steps of a run took, whatever their batches were."""
    run = recorded.run()
    plans = [recorded.plan(one.plan_digest) for one in run.attempts]
    batches = {plan.batch.sequences for plan in plans}
    if len(batches) == 1:
        return steps * batches.pop()
    known = [timed.step for timed in recorded.steps(run) if timed.step.index < steps]
    if len(known) < steps:
        lost = f"{steps - len(known)} of the first {steps} steps are not in it"
        raise JournalUnreadable(f"{recorded.path}: which data comes next is not known: {lost}")
    return sum(step.tokens for step in known) // plans[0].batch.length


def _peak_flops_per_s(plan: Plan) -> float | None:
    """Of one device, as its forecast has it, where the devices are those that it was made for."""
    on_chips = "tpu" in os.environ.get("JAX_PLATFORMS", "")  # JaxTrainer says so on TPU hosts
    return plan.forecast.peak_flops_per_s if on_chips or plan.chip_profile else None


def _nobody(_: Step) -> None:
    """Every rank measures its steps, and one writes them."""


def write_to(path: Path) -> None:
    """From now on, whatever this process says goes to a log of the run."""
    with path.open("ab", buffering=0) as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
