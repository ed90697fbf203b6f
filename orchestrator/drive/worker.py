"""The worker: what each process of an attempt does, from the trainer to the journal."""

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import CheckpointFailed, JournalUnreadable
from orchestrator.goodput.slowdowns import SlowdownWatch, host_check
from orchestrator.journal import boundary
from orchestrator.journal.heartbeat import RENEWAL_LIMIT_S, ClaimWatch, HeartbeatWriter
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.steps import StepLog, counted_steps, read_table
from orchestrator.launch import provenance
from orchestrator.launch.backend import WorkerArgs
from orchestrator.storage import copies
from orchestrator.storage.addresses import folder, is_copy
from orchestrator.storage.segments import pipe_to
from orchestrator.values.plan import Plan
from orchestrator.values.profile import traced_ranks
from orchestrator.values.run import SavedCheckpoint, Step, checkpoint_folder
from orchestrator.values.slowdowns import Slowdown

_SETTLE_LIMIT_S = 5.0
POLL_S = 0.05
_ASKED_EVERY_S = 0.2


class _RunSaves:
    """The checkpoints of a run, for its trainer: reports whole ones, sees which are recorded."""

    def __init__(self, args: WorkerArgs, beats: HeartbeatWriter, watch: ClaimWatch) -> None:
        self._args, self._beats, self._watch = args, beats, watch
        self._reported: SavedCheckpoint | None = None
        self.before_report: Callable[[], None] = lambda: None
        self.after_report: Callable[[], None] = lambda: None

    def recorded(self) -> Sequence[SavedCheckpoint]:
        return (*self._args.saves, *self._watch.saved)

    def folder(self, step: int) -> str:
        return checkpoint_folder(self._args.claim, self._args.attempt, step)

    def report(self, step: int, sha256: str) -> None:
        self.before_report()
        self._reported = SavedCheckpoint(
            claim=self._args.claim, attempt=self._args.attempt, step=step, sha256=sha256
        )
        self._beats.report_saved(self._reported)
        self.after_report()

    def begin_stage(self, step: int) -> None:
        """Wait until the checkpoint of so many steps counts: every rank begins a stage with it."""
        self._beats.start_again()
        deadline = time.monotonic() + RENEWAL_LIMIT_S
        while all(saved.step != step for saved in self.recorded()):
            if time.monotonic() > deadline:
                raise CheckpointFailed(f"the driver has not recorded the checkpoint of step {step}")
            time.sleep(POLL_S)

    def settle(self) -> None:
        deadline = time.monotonic() + _SETTLE_LIMIT_S
        while self._reported and self._reported not in self._watch.saved:
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_S)


_PRINT_EVERY_S = 10.0


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
            _train(args, rank, beats, watch)
        except BaseException:
            traceback.print_exc()
            raise


def _train(args: WorkerArgs, rank: int, beats: HeartbeatWriter, watch: ClaimWatch) -> None:
    from orchestrator.proving.jax_private_api import program_text  # noqa: PLC0415
    from trainers.data.batches import DataProgress  # noqa: PLC0415
    from trainers.loop import Assignment, train  # noqa: PLC0415  the driver itself needs no JAX
    from trainers.multihost import join_processes  # noqa: PLC0415

    join_processes()

    journal = Journal(folder(args.run))
    spec, state, plan = journal.spec(), journal.state(), journal.plan(args.plan_digest)
    saves = _RunSaves(args, beats, watch)
    submission, settled = state.submitted.submission, state.settled_requests
    if not submission.rehearsal:  # a rehearsal runs in the installation that submitted it
        provenance.check_versions(submission.environment)

    asked = _cancel_asked(journal, settled)

    def stop() -> bool:
        beats.count_step()
        return rank == 0 and asked()

    if submission.profile:
        watch.traced = range(*submission.profile)
    is_traced = rank in traced_ranks(plan)

    def traced() -> range:
        return watch.traced if is_traced else range(0)

    if spec.run.preflight or args.checks_only:
        from trainers.host_check import time_hosts  # noqa: PLC0415  as above

        print(f"attempt {args.attempt}, rank {rank}: this host is timed", flush=True)
        began_s = time.monotonic()
        taken = time_hosts(plan)
        if rank == 0:
            check = host_check(args.attempt, taken, time.monotonic() - began_s)
            beats.report_seen(check=check)
            print(check.text, flush=True)
        if args.checks_only:
            return
    print(f"attempt {args.attempt}, rank {rank}: trainer {plan.trainer}, plan {plan.digest[:8]}")
    with ExitStack() as stack:
        emit: Callable[[Step], None] = _drop
        if rank == 0:
            log = stack.enter_context(StepLog(journal.path, args.attempt))
            blocking_s = plan.forecast.goodput.inputs.save.blocking_s.high
            emulated = submission.rehearsal
            slow = SlowdownWatch(args.attempt, emulated=emulated, save_s=blocking_s)
            saves.after_report = slow.saved
            emit = stack.enter_context(_watched(_printed(log.append), slow, beats, traced))
            if is_copy(journal.path):  # a checkpoint counts no steps that only this process has
                saves.before_report = log.sync
        assignment = Assignment(
            directory=journal.path,
            steps=journal.run().steps,
            emit=emit,
            checkpoint=spec.run.checkpoint,
            stop=stop,
            next_stage=saves.begin_stage,
            traced=traced,
            trace_kept=copies.upload,
            program_text=program_text,
            folder=Path(submission.folder),
            peak_flops_per_s=_peak_flops_per_s(plan),
            data_progress=DataProgress(
                original=journal.plan(submission.plan_digest),
                sequences_between=lambda start, stop: _sequences_taken(journal, start, stop),
            ),
            saves=saves,
            evaluation=spec.run.evaluation,
            progressed=beats.count_step,
        )
        train(plan, assignment)


def _cancel_asked(journal: Journal, settled: int) -> Callable[[], bool]:
    """Whether somebody asks to stop: a matter of files, so not looked at in every short step."""
    looked_s = -_ASKED_EVERY_S

    def asked() -> bool:
        nonlocal looked_s
        if (now_s := time.monotonic()) - looked_s < _ASKED_EVERY_S:
            return False
        looked_s = now_s
        return journal.requested(settled)[0] is not None

    return asked


def _sequences_taken(journal: Journal, start: int, stop: int) -> int:
    """The sequences that these steps of a stage of the run took, whatever their batches were."""
    run, steps = journal.run(), stop - start
    plans = [journal.plan(attempt.plan_digest).stage_of(start) for attempt in run.attempts]
    batches = {plan.batch.sequences for plan in plans}
    if len(batches) == 1:
        return steps * batches.pop()
    tables = {attempt.number: read_table(journal.path, attempt)[0] for attempt in run.attempts}
    counted = counted_steps(tables)
    known = (counted.index >= start) & (counted.index < stop)
    if known.sum() < steps:
        missing = f"{steps - known.sum()} of the steps from {start} to {stop} are not in it"
        raise JournalUnreadable(journal.path, f"which data comes next is unknown: {missing}")
    return int(counted.tokens[known].sum()) // plans[0].batch.length


def _peak_flops_per_s(plan: Plan) -> float | None:
    """The peak of one device by the forecast; None when the forecast is for other devices."""
    platforms = os.environ.get("JAX_PLATFORMS", "")  # JaxTrainer sets it on TPU hosts
    on_chips = "tpu" in platforms or "cuda" in platforms
    return plan.forecast.peak_flops_per_s if on_chips or plan.chip_profile else None


def _printed(
    emit: Callable[[Step], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[Step], None]:
    """Print steps into the log of the rank: the first ones, then one now and then."""
    printed_at_s = clock() - _PRINT_EVERY_S

    def emit_and_print(step: Step) -> None:
        nonlocal printed_at_s
        emit(step)
        if step.startup or clock() - printed_at_s >= _PRINT_EVERY_S:
            printed_at_s = clock()
            print(f"step {step.index + 1}: {step.step_s:.3g} s, loss {step.loss:.4f}", flush=True)
        if evaluation := step.own_evaluation:
            print(f"step {step.index + 1}: held-out loss {evaluation.loss:.4f}", flush=True)

    return emit_and_print


# With up to so many hosts the steps keep all that is gathered; with more, as much per step.
_KEPT_HOSTS = 16


@contextmanager
def _watched(
    emit: Callable[[Step], None],
    watch: SlowdownWatch,
    beats: HeartbeatWriter,
    traced: Callable[[], range],
) -> Iterator[Callable[[Step], None]]:
    """Look for what slows the steps, except those of a trace, and report it with heartbeats."""
    gathers, last, told = 0, 0, dict[int, Slowdown]()

    def report() -> None:
        nonlocal told
        if watch.told != told:
            told = dict(watch.told)
            beats.report_seen(tuple(told.values()))

    def emit_and_watch(step: Step) -> None:
        nonlocal gathers, last
        own = traced()  # a trace takes time before its first step and after its last one
        if not own or not own.start <= step.index <= own.stop:
            watch.add(step)
        last = step.index
        report()
        if step.hosts:
            gathers += 1
            if gathers % -(-len(step.hosts.stopped) // _KEPT_HOSTS):
                step = replace(step, hosts=None)
        emit(step)

    try:
        yield emit_and_watch
    finally:
        watch.end(last)
        report()


def _drop(_: Step) -> None:
    """Every rank measures its steps, and only one writes them."""


def redirect_output(path: Path) -> None:
    """Append all that this process prints from now on to a log of the run."""
    # A log of the run, open for appending; one of a bucket is written by a process of its own.
    with os.fdopen(pipe_to(path), "wb", 0) if is_copy(path) else boundary.appending_to(path) as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
