"""What runs inside the job: trainer to journal. The second root, beside the command line.

    python -m orchestrator.drive RUN    # the entrypoint of every run's Ray Job

It takes the run up as its driver, carries its attempts out one after another, and says in the
journal how each ended. Rank 0 writes the steps.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from orchestrator import catalog, journal
from orchestrator.errors import OrchError
from orchestrator.journal import liveness
from orchestrator.launch.attempt import AttemptFailed, Share, carry_out, join_cluster
from orchestrator.plan.time import peak
from orchestrator.stations.plan import Plan
from orchestrator.stations.run import Step

WATCH_S = 0.5


def main(argv: list[str]) -> int:
    """Drive the run in a directory until it has ended."""
    writer = journal.claim(journal.Journal(Path(argv[0])))
    _write_to(writer.journal.places.driver_logs / f"driver-{writer.number}.log")
    try:
        _watch(writer)
        join_cluster(os.environ["RAY_ADDRESS"])
        return _attempts(writer)
    except OrchError as error:
        print(error, file=sys.stderr)
        writer.conclude("failed", why=str(error))
        return error.exit_code


def _attempts(writer: journal.Writer) -> int:
    """Try until the run has ended; the exit code."""
    spec, run = writer.journal.spec(), writer.run()
    plan = writer.journal.plan(run.plan_digest)
    while True:
        slices = tuple(f"slice {number}" for number in range(plan.pods))
        number = writer.begin_attempt(plan, slices)
        share = Share(run=str(writer.journal.path), attempt=number, plan_digest=plan.digest)
        try:
            carry_out(plan, share, work, writer.journal.path / "ray")
        except AttemptFailed as error:
            writer.end_attempt("failure", error=str(error))
        else:
            asked = writer.run().cancel_asked_at_s is not None
            writer.end_attempt("cancelled" if asked else "finished")
        decision = journal.decide_retry(writer.run(), spec.run.retries)
        if not decision.retry:
            return _concluded(writer, decision.why)


def _concluded(writer: journal.Writer, why: str) -> int:
    run = writer.run()
    if run.steps_done >= run.steps:
        writer.conclude("succeeded")
        return 0
    asked = run.cancel_asked_at_s is not None
    writer.conclude("cancelled" if asked else "failed", why=why)
    return 0 if asked else 1


def work(share: Share, rank: int) -> None:
    """What each process of an attempt does: train its part of the plan."""
    from trainers.loop import Assignment, train  # noqa: PLC0415  the driver itself needs no JAX

    recorded = journal.Journal(Path(share.run))
    _write_to(recorded.places.logs(share.attempt) / f"rank-{rank}.log")
    spec, story, plan = recorded.spec(), recorded.story(), recorded.plan(share.plan_digest)
    submission, settled = story.submitted.submission, story.settled_requests
    with ExitStack() as stack:
        emit: Callable[[Step], None] = _nobody
        if rank == 0:
            emit = stack.enter_context(journal.StepLog(recorded.path, share.attempt)).append
        asked = Assignment(
            directory=recorded.path,
            steps=recorded.run().steps,
            emit=emit,
            checkpoint=spec.run.checkpoint,
            stop=lambda: rank == 0 and recorded.cancel_request(settled) is not None,
            profile_steps=range(*submission.profile) if submission.profile else range(0),
            folder=Path(submission.folder),
            peak_flops_per_s=_peak_flops_per_s(plan),
        )
        train(plan, spec.run.trainer, asked)


def _peak_flops_per_s(plan: Plan) -> float | None:
    """Of one device, where the devices are the plan's chips: emulated ones have no such peak."""
    if "tpu" not in os.environ.get("JAX_PLATFORMS", ""):  # JaxTrainer says so on TPU hosts
        return None
    chip = catalog.chip(plan.chip)
    return peak(chip, plan.precision.compute).value / chip.devices


def _nobody(_: Step) -> None:
    """Every rank measures its steps, and one writes them."""


def _watch(writer: journal.Writer) -> None:
    """In the background, give signs of life, and heed what is asked of the run.

    A driver whose run was taken over or removed, and that of a rehearsal whose owner is gone, ends
    at once: its processes go with it, and the journal tells by its silence.
    """
    submission = writer.journal.story().submitted.submission

    def beat() -> bool:
        wish = writer.sign()
        if wish and writer.run().state in ("starting", "running"):
            writer.stopping("somebody asked")
        orphaned = submission.rehearsal and liveness.is_gone(submission.submitter)
        return not orphaned and not (wish and wish.at_once)

    def watch() -> None:
        try:
            while beat():
                time.sleep(WATCH_S)
        except OrchError as error:
            print(error, file=sys.stderr)
        os._exit(1)

    threading.Thread(target=watch, name="watch", daemon=True).start()


def _write_to(path: Path) -> None:
    """From now on, whatever this process says goes to a log of the run."""
    with path.open("ab", buffering=0) as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
