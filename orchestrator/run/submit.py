"""Submit a spec, or resume a run: on a named cluster, or as a rehearsal on this machine."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator import errors, tracking
from orchestrator.errors import JournalUnwritable, NotAnswered, OrchError, RunExists, SpecError
from orchestrator.journal import ownership
from orchestrator.journal.files import UNCOMMITTED, check_writable, write_once
from orchestrator.journal.listing import StudyJournal, find_run, is_run, start_trial
from orchestrator.journal.ownership import RunRequest, Writer, create_run
from orchestrator.journal.run_journal import Journal
from orchestrator.launch import provenance
from orchestrator.launch.backend import ClusterClient, ClusterUnusable
from orchestrator.planning.planner import make_plan, plan_on
from orchestrator.planning.rehearsal import MOST_PODS, REHEARSED_STEPS
from orchestrator.planning.rehearsal import rehearse as rehearsal_of
from orchestrator.plugins import require
from orchestrator.reading.load import absent_objects, load, missing_inputs
from orchestrator.run import cluster as clusters
from orchestrator.run import progress as events
from orchestrator.run.calibrate import PROFILE_DOCUMENT, calibrated_plan
from orchestrator.run.cluster import check_cluster, start_driver
from orchestrator.run.follow import drive, follow, watch
from orchestrator.run.progress import RUNS, NotConfirmed, Notice, Progress
from orchestrator.run.proofs import prove_before_run
from orchestrator.run.records import tracked_at_end
from orchestrator.run.specs import with_proof
from orchestrator.storage.addresses import folder, is_copy
from orchestrator.values import codec
from orchestrator.values.codec import TRAINED, Value
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.run import LIVE, ReasonCode, Run, StateReason
from orchestrator.values.spec import Proposal, Spec, SubmitOptions

_OVER = 4  # the exit code for a run that failed or was cancelled
NOBODY_ASKED = "a run on a named cluster needs --yes where nobody can be asked"
_PLACE = "PATH"  # for a person to fill in
_CHECK = "--preflight"  # the driver only times the hosts
# The code of a run, the largest of its objects, is in a bucket by then.
_WRITING_LIMIT_S, _WRITING_POLL_S = 60.0, 0.5

Confirm: TypeAlias = Callable[[Proposal], bool]


class Request(Value):
    path: Path  # of the spec
    spec: Spec
    plan: Plan
    options: SubmitOptions
    cluster: tuple[str, str] | None  # its address and what named it; None: a rehearsal here
    confirm: Confirm | None = None  # asked before anything starts
    progress: Progress = events.silent
    trial: tuple[StudyJournal, int, int] | None = None  # with its number, and the repeat
    jobs: ClusterClient | None = None  # of a trial: from the look at the cluster

    @property
    def storage(self) -> Path:
        return folder(self.spec.run.storage)


def submit(
    path: str | Path,
    overrides: Sequence[str] = (),
    options: SubmitOptions | None = None,
    *,
    confirm: Confirm | None = None,
    progress: Progress | None = None,
) -> Run:
    """Plan and prove a spec, and run it to its end; return the run as it stands then. `confirm`
    gets a `Proposal` first, and says whether to go on: without it nothing is run that takes chips.
    """
    require("run")
    path, options = Path(path), options or SubmitOptions()
    if options.key is not None:
        ownership.check_key(options.key)
    elif options.resume:
        raise SpecError("--resume goes on with the run of a key: give it with --key")
    with events.interruptible("planning"):
        spec = load(path, tuple(overrides))
        plan = make_plan(spec)
    _check_trainable(plan)
    check_storage(spec)
    request = Request(
        path=path, spec=spec, plan=plan, options=options, confirm=confirm,
        cluster=clusters.named_cluster(spec, options.address), progress=progress or events.silent,
    )  # fmt: skip
    run = _run_with_key(request)
    if run is None:
        try:
            return run_once(request)
        except RunExists as exists:  # somebody submitted it at the same time, and was first
            # Wait for the run that they write: a bucket gets a run object by object, and a part of
            # it cannot be read yet.
            deadline = time.monotonic() + _WRITING_LIMIT_S
            while run is None:
                fault: OrchError = exists
                try:
                    run = _run_with_key(request)
                except errors.JournalUnreadable as error:
                    fault = error
                if run is None:
                    if not is_copy(request.storage) or time.monotonic() > deadline:
                        raise fault from None
                    time.sleep(_WRITING_POLL_S)
    if options.resume:
        return _go_on(request, run)
    request.progress(Notice("already submitted", run=run))
    return run


def run_once(request: Request) -> Run:
    """Prove a plan, and run it to its end or detach; `RunExists` when its key is taken."""
    if request.cluster is None:
        return _rehearse(request)
    address, named_by = request.cluster
    options, plan, progress, jobs = request.options, request.plan, request.progress, request.jobs
    refuse_rehearsal_options(options, named_by)
    steps = options.steps or request.spec.run.steps or plan.total_steps
    new = _new_run(request.path, request.spec, plan, steps, options.profile)
    sent = {provenance.ARCHIVE: provenance.archive()} if options.code == "sent" else {}
    new = replace(
        new,
        environment={**new.environment, "cluster": address},
        documents={**new.documents, **sent},  # the code travels with the run
    )
    if request.confirm is None:  # before the cluster is contacted, rather than after
        raise NotAnswered(NOBODY_ASKED)
    progress(Notice("started", name=plan.name, address=address, named_by=named_by, study=None))
    ready = None
    if jobs is None:
        jobs, ready = check_cluster(new, address, request.storage, progress)
    proofs = _proofs(request)
    if proofs and not plan.stages:  # what is promised rests on both witnesses
        new = replace(new, plan=with_proof(plan, proofs[0]))
    if ready:
        progress(ready)
    check_confirmed(request.confirm, Proposal(name=plan.name, runs=1, address=address))
    writer = _create(request, new, proofs)
    journal = writer.journal
    tracking.in_background([journal])
    status = events.run_command("status", journal.key, request.storage)
    try:
        with events.interruptible("the run's job was submitted", "it may have begun", status):
            how = [_CHECK] if options.checks_only else []
            job = start_driver(jobs, journal, progress, *how)
    except ClusterUnusable as error:
        writer.end_run("failed", StateReason(code="error", detail=str(error)))
        raise
    return journal.run() if options.detach else follow_to_end(journal, jobs, job, 0, progress)


@events.interruptible("preparing the rehearsal")
def _rehearse(request: Request) -> Run:
    """Rehearse a plan on a local cluster, which is gone when this returns."""
    options, plan, progress = request.options, request.plan, request.progress
    if options.detach:
        raise SpecError("--detach: no cluster is named, and a rehearsal ends with this command")
    steps = options.steps or REHEARSED_STEPS
    small = rehearsal_of(request.spec, plan, steps=steps, devices=options.devices_per_pod)
    _check_inputs(small.spec, request.path)
    new = replace(
        _new_run(request.path, request.spec, small.plan, steps, options.profile),
        spec=small.spec,
        steps=small.steps,
        rehearsal=True,
        rehearses=plan,
    )
    progress(Notice("started", name=plan.name, address=None, named_by=None, study=None))
    proofs = _proofs(request)
    if options.calibrate and not plan.stages:
        calibrated, profile = calibrated_plan(small.plan, progress)
        documents = {**new.documents, PROFILE_DOCUMENT: profile}
        new = replace(new, plan=calibrated, documents=documents)
    ready = {"small": new.plan, "steps": small.steps, "changes": small.changes}
    progress(Notice("rehearsal ready", plan=plan, **ready))
    check_confirmed(request.confirm, Proposal(name=plan.name, runs=1, address=None))
    with events.collected_interrupts() as signals:
        writer = _create(request, new, proofs)
        how = [_CHECK] if options.checks_only else []
        error = drive(writer.journal, new.plan, signals, progress, *how)
    run = writer.run()
    if run.ended_at_s is None and run.driver is None:  # no driver ever came
        code: ReasonCode = "cancel_requested" if signals else "error"
        # A driver that comes at the last moment is lost, as all can see.
        with suppress(errors.Superseded):
            reason = StateReason(code=code, detail=error or "")
            writer.end_run("cancelled" if signals else "failed", reason)
        run = writer.run()
    return _ended(Journal(folder(run.journal)), run, progress)


def _proofs(request: Request) -> list[Proof]:
    spec, plan, progress = request.spec, request.plan, request.progress
    progress(Notice("planned", plan=plan))
    return prove_before_run(spec, plan, progress) if request.options.prove else []


def _create(request: Request, new: RunRequest, proofs: Sequence[Proof]) -> Writer:
    """Make the journal of a run. Its key is given, or that of its trial, or made from the plan."""
    storage = request.storage if request.cluster is None else request.storage.absolute()
    where = tracking.destination(new.spec.tracking, storage, os.environ)
    key, study = request.options.key, None
    if request.trial:
        key, study = start_trial(*request.trial).run, request.trial[0].key
    writer = create_run(storage, replace(new, study=study), key)
    tracking.begin(writer.journal, where)
    for proof in proofs:
        path = writer.journal.paths.proof(proof.plan_digest)
        write_once(path, codec.to_pretty_json(proof).encode())
    return writer


def follow_to_end(
    journal: Journal, jobs: ClusterClient, job: str, driver_before: int, progress: Progress
) -> Run:
    """Follow a run on a named cluster; return it as it stands when it ended or was left."""
    run = follow(journal, jobs, job, driver_before, progress)
    if run is None:
        progress(Notice("left running", run=journal.run()))
        return journal.run()
    return _ended(journal, run, progress)


def _ended(journal: Journal, run: Run, progress: Progress) -> Run:
    plan = journal.plan(run.plan_digest)
    progress(Notice("ended", run=run, plan=plan, tracked=tracked_at_end(journal)))
    return run


def _new_run(
    path: Path, spec: Spec, plan: Plan, steps: int, profile: tuple[int, int] | None = None
) -> RunRequest:
    if profile and profile[0] >= steps:
        first, end = profile
        raise SpecError(f"--profile {first}:{end}: the run has {steps} steps, counted from 0")
    commit = provenance.commit()
    documents = {"spec.yaml": provenance.without_secrets(path.read_bytes(), spec.run.secrets)}
    if commit and (changes := provenance.uncommitted()):
        commit["git_uncommitted"] = "uncommitted changes"
        if spec.run.record_diff:
            documents[UNCOMMITTED] = changes
            commit["git_uncommitted"] = f"documents/{UNCOMMITTED}"
    return RunRequest(
        spec=spec,
        plan=plan,
        steps=steps,
        environment=provenance.versions() | commit,
        documents=documents,
        folder=str(path.absolute().parent),
        profile=profile,
    )


# What is refused before anything starts.


def check_confirmed(confirm: Confirm | None, proposal: Proposal) -> None:
    if confirm and not confirm(proposal):
        raise NotConfirmed(f"{proposal.name}: not confirmed, nothing was submitted")


def refuse_rehearsal_options(options: SubmitOptions, named_by: str | None) -> None:
    if options.devices_per_pod and named_by:
        raise SpecError(f"--devices-per-pod is for rehearsals, and {named_by} names a cluster")


def _check_trainable(plan: Plan) -> None:
    compute = plan.precision.compute
    if plan.ledger_describes_trainer and compute not in TRAINED:
        raise SpecError(
            f"experiment.precision.compute {compute} can be planned, not trained: trainer"
            f" {plan.trainer} multiplies in {', '.join(TRAINED)}"
        )


def _check_inputs(spec: Spec, path: Path) -> None:
    """Refuse a rehearsal whose data or weights cannot be read from this machine."""
    try:
        absent = [
            (key, f"{missing} does not exist on this machine, where the rehearsal reads it")
            for key, missing in missing_inputs(spec, path.parent)
        ] or [(key, f"{place} is not in its bucket") for key, place in absent_objects(spec)]
    except OSError as error:
        raise SpecError(f"{error.filename}: {error.strerror}") from error
    for key, why in absent:
        command = events.spec_command("submit", path, (f"{key}={_PLACE}",))
        raise SpecError(f"{key}: {why}", next_command=command)


def check_storage(spec: Spec) -> None:
    """Refuse a storage or a tracking address that cannot be used."""
    storage = folder(spec.run.storage)
    tracking.destination(spec.tracking, storage, os.environ)
    try:
        check_writable(storage)
    except JournalUnwritable as error:
        raise JournalUnwritable(f"run.storage: {error}") from error


def _run_with_key(request: Request) -> Run | None:
    key, digest = request.options.key, request.plan.digest
    if key is None or not is_run(request.storage / key):
        return None
    journal = Journal(request.storage / key)
    run, submission = journal.run(), journal.state().submitted.submission
    if digest not in (submission.plan_digest, submission.rehearses):
        why = f"run {key} already exists, with another plan: choose another --key"
        if request.options.resume:
            command = events.run_command("resume", key, request.storage)
            why = f"{why}, or go on with the plan that it has: {command}"
        raise SpecError(why)
    asked = request.options.steps  # each stage of a rehearsal has one at least
    if asked and max(asked, len(request.spec.experiment.stages)) != submission.steps:
        raise SpecError(
            f"run {key} already exists, with --steps {submission.steps}: choose another --key"
        )
    return run


def _go_on(request: Request, run: Run) -> Run:
    """Follow a run until nothing drives it, and resume it where `options.resume` has it go on."""
    options, progress = request.options, request.progress
    journal, again = Journal(request.storage / run.run), {"lost"}
    # Only what had stopped, or was to stop, before: whoever cancels the run meanwhile means it.
    if options.resume == "stopped" and (run.state not in LIVE or run.cancel_requested_at_s):
        again |= {"failed", "cancelled"}
    if run.state in LIVE and not options.detach:
        followed = watch(journal, progress)  # a driver that died a moment ago is only silent
        if followed is None:
            progress(Notice("left running", run=journal.run()))
            return journal.run()
        if followed.state not in again:
            return _ended(journal, followed, progress)
        run = followed
    elif run.state not in again:
        progress(Notice("already submitted", run=run))
        return run
    submitted = replace(journal.spec().run, storage=request.spec.run.storage)
    if not run.rehearsal and submitted != request.spec.run:
        why = "it goes on with the section run that it was submitted with, not with this spec's"
        progress(Notice("problem", message=f"{run.run}: {why}"))
    return resume(
        run.run, request.storage, address=options.address, detach=options.detach,
        takes_over=run.state == "lost", confirm=request.confirm, progress=progress,
    )  # fmt: skip


def exit_code(run: Run, *, left: bool, restarted: bool = False) -> int:
    """Return 0 for a run that goes on or succeeded, unless an interrupt ended the following. What
    restarts a command that goes on with a run learns of one that is over that it need not.
    """
    if restarted and not left and run.state in ("failed", "cancelled"):
        return _OVER
    if left or run.state == "cancelled":
        return errors.Interrupted.exit_code
    return 0 if run.state in LIVE or run.state == "succeeded" else 1


def resume(
    run: str,
    storage: str | Path = RUNS,
    *,
    pods: int | None = None,
    address: str | None = None,
    detach: bool = False,
    checks_only: bool = False,
    takes_over: bool = False,
    confirm: Confirm | None = None,
    progress: Progress | None = None,
) -> Run:
    """Resume a run that nothing drives any more, from its last checkpoint, on `pods` pods. With
    `checks_only` its hosts are timed, and nothing else is done. A machine that `takes_over` what a
    lost driver did keeps its retry budgets, and requests to cancel still count.
    """
    require("run")
    where, progress = folder(storage), progress or events.silent
    journal = find_run(where, run)
    ownership.check_made_by_user(journal)  # its cluster gets this user's secrets and token
    state = journal.state()  # before the run: what is claimed in between is not lost
    before = journal.run()
    if before.state in LIVE:
        why = f"run {before.run} is {before.state}: something drives it"
        raise errors.RunIsLive(why, next_command=events.run_command("cancel", before.run, where))
    if before.state == "succeeded":
        why = f"run {before.run} has succeeded: all its {before.steps:,} steps are done"
        raise errors.RunHasEnded(why, next_command=events.run_command("report", before.run, where))
    ownership.check_whole(journal, state)  # before a cluster is started for what cannot go on
    ownership.check_checkpoints(journal, state)
    if pods and pods > MOST_PODS and before.rehearsal:
        raise SpecError(f"--pods {pods}: a rehearsal has at most {MOST_PODS} pods")
    spec = journal.spec()
    submitted = journal.plan(state.submitted.submission.plan_digest)
    plan = plan_on(spec, submitted, pods or spec.resources.pods.max)
    for warning in plan.warnings:
        if warning.code == "other_batch":
            progress(Notice("problem", message=warning.text))
    begins = () if takes_over else ("--resume",)
    how = (*begins, *(("--pods", str(pods)) if pods else ()), *([_CHECK] * checks_only))
    if before.rehearsal:
        if address or detach:
            raise SpecError(f"{before.run} is a rehearsal: no cluster but its own can resume it")
        progress(Notice("resumed", run=before, plan=plan))
        with events.collected_interrupts() as signals:
            error = drive(journal, plan, signals, progress, *how)
        after = _ended(journal, journal.run(), progress)
        if error and after.attempts == before.attempts:
            raise (errors.Interrupted if signals else OrchError)(error)
        return after
    jobs = _look_again(journal, before, plan, address, confirm, progress)
    clusters.end_earlier_jobs(jobs, before, state.writer)
    job = start_driver(jobs, journal, progress, *how)
    return journal.run() if detach else follow_to_end(journal, jobs, job, state.writer, progress)


def preflight(
    run_or_spec: str | Path,
    storage: str | Path = RUNS,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    confirm: Confirm | None = None,
    progress: Progress | None = None,
) -> Run:
    """Time every host that a run has or a spec would get, and train nothing; return the run whose
    `host_checks` have the result. A spec gets a new run, which `resume` begins.
    """
    if Path(run_or_spec).suffix in (".yaml", ".yml"):
        options = SubmitOptions(prove=False, calibrate=False, address=address, checks_only=True)
        run = submit(run_or_spec, overrides, options, confirm=confirm, progress=progress)
    else:
        how: dict[str, Any] = {"address": address, "confirm": confirm, "progress": progress}
        run = resume(str(run_or_spec), storage, checks_only=True, **how)
    newest = run.attempts[-1].number if run.attempts else None
    if not any(check.attempt == newest for check in run.host_checks) and run.state not in LIVE:
        if run.reason and run.reason.code == "cancel_requested":
            raise errors.Interrupted(f"{run.run}: no host was checked: {run.detail}")
        logs = events.run_command("logs", run.run, folder(run.journal).parent)
        raise OrchError(f"{run.run}: no host was checked: {run.detail}", next_command=logs)
    return run


def _look_again(
    journal: Journal, run: Run, plan: Plan, option: str | None, confirm: Confirm | None,
    progress: Progress,
) -> ClusterClient:  # fmt: skip
    """Look at the cluster that is named now, or that a run was submitted to, and ask."""
    named = clusters.named_cluster(journal.spec(), option)
    address = named[0] if named else run.environment.get("cluster")
    if address is None:
        raise SpecError(f"{journal.key}: its journal names no cluster: name one with --address")
    if confirm is None:
        raise NotAnswered(NOBODY_ASKED)
    code = clusters.archive_of(journal)
    rest = RunRequest(
        spec=journal.spec(),
        plan=plan,
        steps=run.steps - run.steps_done,
        environment=run.environment,
        documents={provenance.ARCHIVE: code} if code is not None else {},
    )
    jobs, ready = check_cluster(rest, address, journal.path.absolute().parent, progress)
    progress(ready)
    check_confirmed(confirm, Proposal(name=plan.name, runs=1, address=address))
    return jobs
