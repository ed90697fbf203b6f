"""A named cluster: the first look at what it has for a run, and the run's job."""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from orchestrator.errors import OrchError
from orchestrator.journal import files
from orchestrator.journal.listing import shared_marker
from orchestrator.journal.ownership import RunRequest
from orchestrator.journal.run_journal import Journal
from orchestrator.launch.backend import (
    ClusterClient,
    ClusterUnusable,
    PreflightRequest,
    find_backend,
)
from orchestrator.launch.provenance import ARCHIVE
from orchestrator.run.progress import Notice, Progress, Stage, TaskEnded, interruptible
from orchestrator.storage.addresses import address
from orchestrator.tracking import destinations
from orchestrator.values.plan import Plan
from orchestrator.values.run import Run
from orchestrator.values.spec import Spec

_MOST_CODE_BYTES = 1 << 30
SUBMITTED = 1  # the event that every run begins with


def named_cluster(spec: Spec, option: str | None) -> tuple[str, str] | None:
    """Return the address of a cluster and what names it: an option, the environment or the spec."""
    written = spec.cluster.address
    names = {
        "--address": option,
        "RAY_ADDRESS": os.environ.get("RAY_ADDRESS"),
        "cluster.address": None if written == "auto" else written,
    }
    return next(((name, origin) for origin, name in names.items() if name), None)


def archive_of(journal: Journal) -> bytes | None:
    """Return the code that a run was submitted with; None where the cluster has it."""
    with suppress(FileNotFoundError):
        return files.read(journal.paths.documents / ARCHIVE, _MOST_CODE_BYTES)
    return None


def check_cluster(
    run: RunRequest,
    named: str,
    storage: Path,
    progress: Progress,
    runs: Sequence[tuple[Plan, int]] = (),  # all that it is asked for, where that is more
) -> tuple[ClusterClient, Notice]:
    """Connect to a cluster and see what it has; raise an error when it cannot serve the run."""
    storage = storage.absolute()
    with _task(progress, "connecting"):
        jobs = find_backend(run.spec.cluster.backend).connect(named)
    with shared_marker(storage) as mark:
        request = PreflightRequest(
            pods=run.plan.pods, kind=run.plan.slice_kind, versions=run.environment,
            secrets=run.spec.run.secrets, file=address(mark),
        )  # fmt: skip
        with _task(progress, "asking it for slices, versions, storage and secrets") as tick:
            preflight = jobs.preflight(run.plan, request, run.documents.get(ARCHIVE), tick)
    note = refusal_note()
    if preflight.faults:
        said = f"{named} cannot run {run.plan.name}: {'; '.join(preflight.faults)}"
        with suppress(OSError):  # orch doctor repeats it
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{named}\n{said}", encoding="utf-8")
        faults = (f"  {fault}" for fault in preflight.faults)
        next_command = shlex.join(["orch", "doctor", "--address", named])
        raise OrchError("\n".join([f"{named} cannot run this", *faults]), next_command=next_command)
    note.unlink(missing_ok=True)
    return jobs, Notice(
        "cluster ready", address=named, slices=preflight.slices,
        hosts=len(preflight.report.hosts), versions=run.environment, storage=address(storage),
        runs=tuple(runs) or ((run.plan, run.steps),),
    )  # fmt: skip


@contextmanager
def _task(progress: Progress, stage: str) -> Iterator[Callable[[str], None]]:
    def tick(state: str) -> None:
        progress(Stage(task="cluster", stage=stage, state=state.lower()))

    tick("")
    try:
        with interruptible("the cluster was looked at", "nothing was submitted"):
            yield tick
    finally:
        progress(TaskEnded(task="cluster"))


def refusal_note() -> Path:
    """Return the file with the last refusal of a cluster: its address, and why in one line."""
    return platformdirs.user_cache_path("orch") / "refusal.txt"


def start_driver(jobs: ClusterClient, journal: Journal, progress: Progress, *how: str) -> str:
    """Start the driver of a run as a job, whose id names the run and how often it was driven."""
    run, state = journal.run(), journal.state()
    job = job_name(run, state.last)
    choice = destinations.passed_on(journal)
    recorded = ("--recorded-in", choice) if choice else ()
    words = ("-P", "-m", "orchestrator.drive", address(journal.path.absolute()), *how, *recorded)
    try:
        jobs.start(words, archive_of(journal), job)
    except ClusterUnusable as refusal:
        try:
            jobs.state(job)  # it may be there, and only its answer was lost
        except ClusterUnusable:
            raise refusal from None
    progress(Notice("job started", run=run, job=job))
    return job


def job_name(run: Run, event: int) -> str:
    return f"{run.run}-{run.id[:8]}-{event}"


def end_earlier_jobs(jobs: ClusterClient, run: Run, claim: int) -> None:
    """End the jobs of a run whose drivers had this claim or an earlier one: a stopped process holds
    its slices without seeing that. A job that somebody has just started goes on.
    """
    earlier = {job_name(run, event) for event in range(claim)}
    with suppress(ClusterUnusable):  # then they end by themselves, if they are not stopped
        for job in earlier.intersection(jobs.live_jobs()):
            jobs.end(job)
