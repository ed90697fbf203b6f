"""Command line room: a run on a named cluster, from the first look at it to its job."""

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import click

from orchestrator import journal, tracking
from orchestrator.cli.origin import Origin
from orchestrator.cli.running import next_about
from orchestrator.cli.terminal import is_live, say
from orchestrator.errors import OrchError, SpecError
from orchestrator.launch import preflight, provenance
from orchestrator.launch.ray import preflight_job, slices
from orchestrator.launch.ray.job_client import ClusterUnusable, RayJobs
from orchestrator.lifecycle.events import interruptible
from orchestrator.render import launch_screen as render
from orchestrator.types import codec
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.run import Run, StateReason
from orchestrator.types.spec import Spec

SUBMITTED = 1  # the event that every run begins with
PYTHON = "python"  # the cluster's own, as its PATH has it


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is to be run, where, and of what it is made. `archive` is the code that travels; None
    where the cluster has it.
    """

    spec: Spec
    plan: Plan
    steps: int
    versions: Mapping[str, str]
    archive: bytes | None
    address: str
    storage: Path


def archive_of(recorded: journal.Journal) -> bytes | None:
    """The code that a run was submitted with; None where none travelled."""
    path = recorded.paths.documents / provenance.ARCHIVE
    return path.read_bytes() if path.is_file() else None


def steps_of(spec: Spec, plan: Plan, asked: int | None) -> int:
    """The steps of the whole run: as asked, or as the spec says, or as its tokens need."""
    return asked or spec.run.steps or ceil(plan.tokens / plan.batch.tokens)


def looked(launch: Launch, asks: str = "") -> tuple[RayJobs, str]:
    """Connect to the cluster; what it has for the run, in words. An error when it cannot serve.

    `asks` are the words for what is asked, where that is more than the run.
    """
    with waiting("connecting"):
        jobs = RayJobs(launch.address)
    with journal.shared_marker(launch.storage) as mark:
        wanted = wish(launch, str(mark))
        job = start(launch, jobs, "-m", preflight_job.__name__, codec.to_json(wanted).decode())
        with waiting("asking it for slices, versions, storage and secrets") as ticking:
            found = preflight_job.parse_report(answered(jobs, job, ticking))
    if faults := preflight.faults(wanted, found):
        raise OrchError(render.cluster_problems(launch.address, faults))
    return jobs, render.cluster_screen(
        launch.address,
        preflight.describe_slices(wanted, found),
        render.hosts(len(found.hosts), launch.versions),
        str(launch.storage),
        asks or render.cost_of_run(launch.plan, launch.steps),
    )


def answered(jobs: RayJobs, job: str, ticking: Callable[[str], None]) -> str:
    """What a job has written; it does not outlive the wait for it."""
    try:
        return jobs.finished(job, ticking)
    except KeyboardInterrupt:
        with suppress(ClusterUnusable):
            jobs.stop(job)
        raise


def wish(launch: Launch, mark: str) -> preflight.PreflightRequest:
    """What the run wants of the cluster."""
    plan = launch.plan
    return preflight.PreflightRequest(
        pods=plan.pods,
        chip=plan.chip,
        topology=plan.topology,
        pod_type=slices.pod_type(plan),
        accelerator=slices.accelerator_type(plan),
        versions=launch.versions,
        secrets=launch.spec.run.secrets,
        file=mark,
    )


def start(launch: Launch, jobs: RayJobs, *words: str, name: str | None = None) -> str:
    """Start a Python of the cluster in the run's code; the id of the job."""
    command = shlex.join([PYTHON, *words])
    if launch.archive is None:
        return jobs.submit(command, None, name)
    with tempfile.TemporaryDirectory(prefix="orch-") as folder:
        path = Path(folder) / provenance.ARCHIVE
        path.write_bytes(launch.archive)
        return jobs.submit(command, path, name)


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Say on the standard error stream what takes a while, with its seconds on a terminal."""
    began, live = time.monotonic(), is_live(sys.stderr)
    if not live:
        click.echo(f"cluster: {what}", err=True)

    def tick(state: str) -> None:
        if live:
            text = f"cluster: {what}: {state.lower()} ({time.monotonic() - began:.0f} s)"
            click.echo(f"\r\033[K{text}", err=True, nl=False)

    tick("begun")
    try:
        with interruptible("the cluster was looked at", "nothing was submitted"):
            yield tick
    finally:
        if live:
            click.echo("\r\033[K", err=True, nl=False)


def check_askable() -> None:
    """Chips are taken only when a person says so, or has said so."""
    if not sys.stdin.isatty():
        raise SpecError("a run on a named cluster needs --yes where nobody can be asked")


def ask(launch: Launch) -> None:
    """Go on only when a person says so."""
    click.confirm(f"Run {launch.plan.name} on {launch.address}?", abort=True, err=True)


def submitted(
    launch: Launch, jobs: RayJobs, origin: Origin, proof: Proof | None, key: str | None
) -> tuple[journal.Journal, str]:
    """Make the run's journal, and start its job; the journal tells it when that fails.

    Its key is the one given, or made from the plan.
    """
    if launch.archive is not None:
        origin = replace(origin, documents={**origin.documents, provenance.ARCHIVE: launch.archive})
    opened = journal.RunRequest(
        spec=launch.spec, plan=launch.plan, steps=launch.steps, **origin.fields
    )
    where = tracking.destination(launch.spec.tracking, launch.storage, os.environ)
    writer = journal.create_run(launch.storage, opened, key)
    tracking.begin(writer.journal, where)
    tracking.in_background([writer.journal])
    if proof:
        writer.save_proof(proof)
    status = next_about("status", writer.journal.key, launch.storage)
    try:
        with interruptible("the run's job was submitted", "it may have begun", status):
            job = driven(launch, jobs, writer.journal)
    except ClusterUnusable as error:
        writer.end_run("failed", StateReason(code="error", detail=str(error)))
        raise
    return writer.journal, job


def driven(launch: Launch, jobs: RayJobs, recorded: journal.Journal, *how: str) -> str:
    """Start the driver of a run as a job, whose id tells the run and how often it was driven."""
    run, story = recorded.run(), recorded.state()
    job = job_name(run, story.last)
    words = ("-m", "orchestrator.drive", str(recorded.path.absolute()), *how)
    try:
        start(launch, jobs, *words, name=job)
    except ClusterUnusable:
        if not taken(jobs, job):
            raise
    say("\n", render.submitted_screen(run, job), "\n")
    return job


def job_name(run: Run, event: int) -> str:
    """What the job is called that drives a run from an event of its journal on."""
    return f"{run.run}-{run.id[:8]}-{event}"


def taken(jobs: RayJobs, job: str) -> bool:
    """Whether a job is there in spite of an error: its answer may have been lost."""
    try:
        jobs.state(job)
    except ClusterUnusable:
        return False
    return True
