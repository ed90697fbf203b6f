"""A run on a named cluster, from the first look at the cluster to the run's job."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator import tracking
from orchestrator.errors import OrchError
from orchestrator.journal import files
from orchestrator.journal.listing import shared_marker
from orchestrator.journal.ownership import RunRequest, create_run
from orchestrator.journal.run_journal import Journal
from orchestrator.launch.backend import ClusterClient, ClusterUnusable, RunNeeds, find_backend
from orchestrator.launch.provenance import ARCHIVE
from orchestrator.run.next_commands import run_command
from orchestrator.run.progress import (
    ClusterReady,
    JobStarted,
    Progress,
    Stage,
    TaskEnded,
    interruptible,
)
from orchestrator.run.requests import Provenance
from orchestrator.storage.addresses import address, folder
from orchestrator.tracking import destinations
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.run import Run, StateReason
from orchestrator.values.spec import Spec

MOST_CODE_BYTES = 1 << 30
SUBMITTED = 1  # the event that every run begins with
TASK = "cluster"


@dataclass(frozen=True, kw_only=True)
class ClusterLaunch:
    """What is to run, where, and of what it is made. `archive` is the code that travels; None where
    the cluster has it.
    """

    spec: Spec
    plan: Plan
    steps: int
    versions: Mapping[str, str]
    archive: bytes | None
    address: str
    storage: Path


def archive_of(journal: Journal) -> bytes | None:
    """The code that a run was submitted with; None where none travelled."""
    path = journal.paths.documents / ARCHIVE
    try:
        return files.read(path, MOST_CODE_BYTES)
    except FileNotFoundError:
        return None


def steps_of(spec: Spec, plan: Plan, requested: int | None) -> int:
    """The steps of the whole run: as requested, or as the spec says, or as its tokens need."""
    return requested or spec.run.steps or plan.total_steps


def check_cluster(
    launch: ClusterLaunch, progress: Progress, runs: Sequence[tuple[Plan, int]] = ()
) -> tuple[ClusterClient, ClusterReady]:
    """Connect to the cluster and see what it has; an error when it cannot serve the run.

    `runs` are all that is asked of it, where that is more than this run.
    """
    with _task(progress, "connecting"):
        jobs = find_backend(launch.spec.cluster.backend).connect(launch.address)
    with shared_marker(launch.storage) as mark:
        needs = RunNeeds(
            plan=launch.plan,
            versions=launch.versions,
            secrets=launch.spec.run.secrets,
            marker=address(mark),
        )
        with _task(progress, "asking it for slices, versions, storage and secrets") as tick:
            preflight = jobs.preflight(needs, launch.archive, tick)
    if preflight.faults:
        faults = (f"  {fault}" for fault in preflight.faults)
        raise OrchError("\n".join([f"{launch.address} cannot run this", *faults]))
    return jobs, ClusterReady(
        address=launch.address,
        slices=preflight.slices,
        hosts=len(preflight.report.hosts),
        versions=launch.versions,
        storage=address(launch.storage),
        runs=tuple(runs) or ((launch.plan, launch.steps),),
    )


@contextmanager
def _task(progress: Progress, stage: str) -> Iterator[Callable[[str], None]]:
    """Report a stage of the look at the cluster, with the state of its job."""

    def tick(state: str) -> None:
        progress(Stage(task=TASK, stage=stage, state=state.lower()))

    tick("")
    try:
        with interruptible("the cluster was looked at", "nothing was submitted"):
            yield tick
    finally:
        progress(TaskEnded(task=TASK))


def start_run(
    launch: ClusterLaunch,
    jobs: ClusterClient,
    provenance: Provenance,
    proofs: Sequence[Proof],
    key: str | None,
    progress: Progress,
) -> tuple[Journal, str]:
    """Make the run's journal and start its job; the journal records when that fails.

    The run's key is the one given, or made from the plan.
    """
    if launch.archive is not None:
        provenance = provenance.with_document(ARCHIVE, launch.archive)
    request = RunRequest(
        spec=launch.spec, plan=launch.plan, steps=launch.steps, **provenance.fields
    )
    where = tracking.destination(launch.spec.tracking, launch.storage, os.environ)
    writer = create_run(launch.storage, request, key)
    journal = writer.journal
    tracking.begin(journal, where)
    tracking.in_background([journal])
    for proof in proofs:
        writer.save_proof(proof)
    status = run_command("status", journal.key, folder(launch.spec.run.storage))
    try:
        with interruptible("the run's job was submitted", "it may have begun", status):
            return journal, start_driver(launch, jobs, journal, progress)
    except ClusterUnusable as error:
        writer.end_run("failed", StateReason(code="error", detail=str(error)))
        raise


def start_driver(
    launch: ClusterLaunch,
    jobs: ClusterClient,
    journal: Journal,
    progress: Progress,
    *how: str,
) -> str:
    """Start the driver of a run as a job, whose id names the run and how often it was driven."""
    run, state = journal.run(), journal.state()
    job = job_name(run, state.last)
    choice = destinations.passed_on(journal)
    recorded = ("--recorded-in", choice) if choice else ()
    words = ("-m", "orchestrator.drive", address(journal.path.absolute()), *how, *recorded)
    try:
        jobs.start(words, launch.archive, job)
    except ClusterUnusable:
        if not _has_job(jobs, job):
            raise
    progress(JobStarted(run=run, job=job))
    return job


def job_name(run: Run, event: int) -> str:
    """What the job is called that drives a run from an event of its journal on."""
    return f"{run.run}-{run.id[:8]}-{event}"


def end_earlier_jobs(jobs: ClusterClient, run: Run, claim: int) -> None:
    """End the jobs of a run whose drivers had this claim, or one before it.

    A process that is stopped does not see that its claim is superseded, and holds its slices. A job
    that somebody else has just started goes on: it was started after that claim.
    """
    earlier = {job_name(run, event) for event in range(claim)}
    with suppress(ClusterUnusable):  # then they end by themselves, if they are not stopped
        for job in earlier.intersection(jobs.live_jobs()):
            jobs.end(job)


def _has_job(jobs: ClusterClient, job: str) -> bool:
    """Whether a job is there in spite of an error: its answer may have been lost."""
    try:
        jobs.state(job)
    except ClusterUnusable:
        return False
    return True
