"""Resume a run that nothing drives any more, from its last checkpoint."""

from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Interrupted, OrchError, RunHasEnded, RunIsLive, SpecError
from orchestrator.journal.listing import find_run
from orchestrator.journal.ownership import (
    check_checkpoints,
    check_folder_own,
    check_made_by_user,
    check_whole,
    request_cancel,
)
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.study_journal import StudyJournal
from orchestrator.planning.planner import plan_on
from orchestrator.planning.rehearsal import MOST_PODS
from orchestrator.run import cluster, follow, rehearse
from orchestrator.run.next_commands import run_command
from orchestrator.run.progress import Resumed, RunEnded, collected_interrupts
from orchestrator.run.requests import Caller, named_cluster
from orchestrator.values.plan import Plan
from orchestrator.values.run import LIVE, Run
from orchestrator.values.run_options import Proposal, SubmitOptions
from orchestrator.values.study import StudyStatus


@dataclass(frozen=True, kw_only=True)
class ResumeRequest:
    """A run that is to go on with a plan; `arguments` tell its driver so.

    `claim` is the newest one while nothing drove the run.
    """

    journal: Journal
    before: Run
    claim: int
    plan: Plan
    arguments: tuple[str, ...]
    options: SubmitOptions
    caller: Caller


def resume(
    journal: Journal, storage: Path, pods: int | None, options: SubmitOptions, caller: Caller
) -> Run:
    """Resume a run, on so many pods, and follow it; the run as it stands then."""
    check_made_by_user(journal)  # its cluster gets this user's secrets and token
    state = journal.state()  # before the run: what is claimed in between is not lost
    before = journal.run()
    check_resumable(before, storage)
    check_whole(journal, state)  # before a cluster is started for what cannot go on
    check_checkpoints(journal, state)
    request = ResumeRequest(
        journal=journal,
        before=before,
        claim=state.writer,
        plan=plan_of(journal, pods),
        arguments=("--resume", *(("--pods", str(pods)) if pods else ())),
        options=options,
        caller=caller,
    )
    if not before.rehearsal:
        return resume_on_cluster(request)
    if options.address or options.detach:
        raise SpecError(f"{before.run} is a rehearsal: no cluster but its own can resume it")
    return resume_rehearsal(request)


def check_resumable(run: Run, storage: Path) -> None:
    """Say why a run cannot go on, and what can be done about it."""
    if run.state in LIVE:
        cancelling = run_command("cancel", run.run, storage)
        why = f"run {run.run} is {run.state}: something drives it"
        raise RunIsLive(why, next_command=cancelling)
    if run.state == "succeeded":
        why = f"run {run.run} has succeeded: all its {run.steps:,} steps are done"
        raise RunHasEnded(why, next_command=run_command("report", run.run, storage))


def plan_of(journal: Journal, pods: int | None) -> Plan:
    """The plan that the run was submitted with, on as many pods as it is to have now."""
    if pods and pods > MOST_PODS and journal.run().rehearsal:
        raise SpecError(f"--pods {pods}: a rehearsal has at most {MOST_PODS} pods")
    spec, submission = journal.spec(), journal.state().submitted.submission
    plan = journal.plan(submission.plan_digest)
    return plan_on(spec, plan, pods or spec.resources.pods.max)


def resume_rehearsal(request: ResumeRequest) -> Run:
    """Resume a rehearsal on a local cluster."""
    journal, before, progress = request.journal, request.before, request.caller.progress
    progress(Resumed(run=before, plan=request.plan))
    with collected_interrupts() as signals:
        error = rehearse.drive(journal, request.plan, signals, progress, *request.arguments)
    after = journal.run()
    plan, tracked = journal.plan(after.plan_digest), follow.tracked_at_end(journal)
    progress(RunEnded(run=after, plan=plan, tracked=tracked))
    if error and after.attempts == before.attempts:
        raise (Interrupted if signals else OrchError)(error)
    return after


def resume_on_cluster(request: ResumeRequest) -> Run:
    """Resume a run on the cluster that is named now, or that it was submitted to."""
    journal, options, caller = request.journal, request.options, request.caller
    progress = caller.progress
    address = address_of(journal, options.address)
    caller.check_confirmable()
    run, driver_before = request.before, request.claim
    launch = cluster.ClusterLaunch(
        spec=journal.spec(),
        plan=request.plan,
        steps=run.steps - run.steps_done,
        versions=run.environment,
        archive=cluster.archive_of(journal),
        address=address,
        storage=journal.path.absolute().parent,
    )
    jobs, ready = cluster.check_cluster(launch, progress)
    progress(ready)
    caller.check_confirmed(Proposal(name=request.plan.name, runs=1, address=address))
    cluster.end_earlier_jobs(jobs, run, request.claim)
    job = cluster.start_driver(launch, jobs, journal, progress, *request.arguments)
    if options.detach:
        return journal.run()
    return follow.follow_to_end(journal, jobs, job, driver_before, progress)


def address_of(journal: Journal, address: str | None) -> str:
    """The cluster that a run is to go on on."""
    named = named_cluster(journal.spec(), address)
    where = named.address if named else journal.run().environment.get("cluster")
    if where is None:
        raise SpecError(f"{journal.key}: its journal names no cluster: name one with --address")
    return where


# Cancel and remove runs and studies.


@dataclass(frozen=True, kw_only=True)
class CancelResult:
    """A run before and after it was asked to stop."""

    before: Run
    after: Run


def cancel_run(journal: Journal, *, at_once: bool) -> CancelResult:
    """Ask a run to stop. Its driver does so; one that has ended is left alone."""
    before = journal.run()
    if before.ended_at_s is None:
        request_cancel(journal, at_once=at_once)
    return CancelResult(before=before, after=journal.run())


def cancel_study(study: StudyJournal, *, at_once: bool) -> list[CancelResult]:
    """Ask the run of a study that goes on to stop; no other begins then."""
    live = [one.run for one in study.status().runs if one.state in LIVE]
    return [cancel_run(find_run(study.storage, key), at_once=at_once) for key in live]


def removable_run(journal: Journal, storage: Path) -> Run:
    """The run, which is the user's own and which nothing drives; an error otherwise."""
    check_folder_own(journal.path)
    run = journal.run()
    if run.state in LIVE:
        cancelling = run_command("cancel", run.run, storage)
        raise RunIsLive(f"run {run.run} is {run.state}", next_command=cancelling)
    return run


def removable_study(study: StudyJournal, storage: Path) -> StudyStatus:
    """The study, which is the user's own and none of whose runs goes on; an error otherwise."""
    status = study.status()
    check_folder_own(study.path)
    for one in status.runs:
        check_folder_own(study.storage / one.run)
    if status.state == "running":
        cancelling = run_command("cancel", study.key, storage)
        raise RunIsLive(f"study {study.key}: a run of it goes on", next_command=cancelling)
    return status
