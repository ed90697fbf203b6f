"""Submit a spec: plan it, prove it, then rehearse it here or run it on a named cluster."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from orchestrator import reading as specs
from orchestrator.errors import OrchError, RunExists, SpecError
from orchestrator.journal.listing import is_run
from orchestrator.journal.ownership import check_key
from orchestrator.journal.run_journal import Journal
from orchestrator.launch.provenance import archive
from orchestrator.planning.planner import make_plan
from orchestrator.planning.rehearsal import rehearse as rehearsal_of
from orchestrator.planning.stages import stage_specs
from orchestrator.proving.verdict import ProofResult, least_recompute, prove
from orchestrator.reading.inputs import absent_objects, missing_inputs
from orchestrator.run import cluster, follow, rehearse
from orchestrator.run.calibrate import calibrated_rehearsal
from orchestrator.run.next_commands import spec_command
from orchestrator.run.progress import (
    AlreadySubmitted,
    Planned,
    Progress,
    Proved,
    RehearsalReady,
    RunEnded,
    SubmitStarted,
    interruptible,
    silent,
    task,
)
from orchestrator.run.requests import (
    Caller,
    NamedCluster,
    SubmitRequest,
    check_storage,
    named_cluster,
    provenance_of,
)
from orchestrator.storage.addresses import folder, is_copy
from orchestrator.values.fields import DType
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.run import Run
from orchestrator.values.run_options import Proposal, SubmitOptions
from orchestrator.values.spec import Spec

# Proofs of plans, with their progress.


TASK = "proving"


def prove_plan(
    spec: Spec, plan: Plan, progress: Progress | None = None, hlo: Path | None = None
) -> ProofResult:
    """The compiler's verdict on a plan; `hlo` is a folder that keeps the program's text."""
    if hlo:
        _make_folder(hlo)
    stage = f" stage {plan.stage.number} of {plan.stage.of}" if plan.stage else ""
    with task(progress or silent, TASK + stage) as reached:
        return prove(spec, plan, reached, hlo)


def prove_each_stage(
    spec: Spec, plan: Plan, progress: Progress | None = None, hlo: Path | None = None
) -> list[ProofResult]:
    """The verdict on the plan of every stage; on the plan itself where it has none."""
    if not plan.stages:
        return [prove_plan(spec, plan, progress, hlo)]
    pairs = zip(stage_specs(spec), plan.stages, strict=True)
    return [prove_plan(one, stage, progress, hlo) for one, stage in pairs]


def prove_less_recompute(
    spec: Spec, plan: Plan, progress: Progress | None = None
) -> list[ProofResult]:
    """Verdicts on plans that recompute less, up to the first that fits."""
    with task(progress or silent, TASK) as reached:
        return least_recompute(spec, plan, reached)


def _make_folder(hlo: Path) -> None:
    try:
        hlo.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OrchError(f"--hlo: {hlo}: cannot be made: {error.strerror}") from error


REHEARSED_STEPS = 20
PLACE = "PATH"  # for a person to fill in
# The code of a run, the largest of its objects, is in a bucket by then.
WRITING_LIMIT_S, WRITING_POLL_S = 60.0, 0.5


class ProofFailed(OrchError):
    """The compiler's verdict on a plan is no: nothing is submitted."""

    exit_code = 3


def submit(path: Path, overrides: Sequence[str], options: SubmitOptions, caller: Caller) -> Run:
    """Submit a spec and follow its run to the end; the run as it stands then."""
    if options.key is not None:
        check_key(options.key)
    with interruptible("planning"):
        spec = specs.load(path, tuple(overrides))
        plan = make_plan(spec)
    check_trainable(plan)
    request = SubmitRequest(path=path, spec=spec, plan=plan, options=options, caller=caller)
    check_storage(spec)
    where = named_cluster(spec, options.address)
    if run := run_with_key(request):
        caller.progress(AlreadySubmitted(run=run))
        return run
    try:
        return submit_new(request, where)
    except RunExists:  # somebody submitted it at the same time, and was first
        run = run_with_key_soon(request)
        if run is None:
            raise
        caller.progress(AlreadySubmitted(run=run))
        return run


def check_trainable(plan: Plan) -> None:
    """Refuse types of matmuls that the trainer cannot multiply in, before anything starts."""
    compute = plan.precision.compute
    if plan.ledger_describes_trainer and compute not in get_args(DType):
        raise SpecError(
            f"experiment.precision.compute {compute} can be planned, not trained: trainer"
            f" {plan.trainer} multiplies in {' or '.join(get_args(DType))}"
        )


def check_inputs(spec: Spec, path: Path) -> None:
    """Refuse a rehearsal whose data or weights are not on this machine, before anything starts."""
    for key, missing in missing_inputs(spec, path.parent):
        command = spec_command("submit", path, (f"{key}={PLACE}",))
        what = f"{key}: {missing} does not exist on this machine, where the rehearsal reads it"
        raise SpecError(what, next_command=command)
    try:
        absent = next(absent_objects(spec), None)
    except OSError as error:
        raise SpecError(f"{error.filename}: {error.strerror}") from error
    if absent:
        key, address = absent
        command = spec_command("submit", path, (f"{key}={PLACE}",))
        raise SpecError(f"{key}: {address} is not in its bucket", next_command=command)


def submit_new(request: SubmitRequest, where: NamedCluster | None) -> Run:
    """Run the plan on the named cluster, or rehearse it; `RunExists` when its key is taken."""
    if where:
        return submit_to_cluster(request, where)
    with interruptible("preparing the rehearsal"):
        return submit_rehearsal(request)


def run_with_key(request: SubmitRequest) -> Run | None:
    """The run of the same plan that has the key already."""
    key = request.options.key
    if key is None or not is_run(request.storage / key):
        return None
    journal = Journal(request.storage / key)
    run, submission = journal.run(), journal.state().submitted.submission
    if request.plan.digest not in (submission.plan_digest, submission.rehearses):
        raise SpecError(f"run {key} already exists, with another plan: choose another --key")
    return run


def run_with_key_soon(request: SubmitRequest) -> Run | None:
    """The same, while another submit writes it: a bucket gets a run object by object."""
    deadline = time.monotonic() + WRITING_LIMIT_S
    while (run := run_with_key(request)) is None:
        if not is_copy(request.storage) or time.monotonic() > deadline:
            return None
        time.sleep(WRITING_POLL_S)
    return run


def prove_before(
    spec: Spec, plan: Plan, progress: Progress, *, report_passed: bool = True
) -> list[Proof]:
    """The proof of a plan, or of each of its stages; one that does not pass is an error."""
    results = prove_each_stage(spec, plan, progress)
    for result in results:
        if report_passed or not result.proof.passes:
            progress(Proved(plan=result.plan, proof=result.proof, age_s=result.age_s))
    if not all(result.proof.passes for result in results):
        raise ProofFailed(f"{plan.name}: the plan does not pass its proof; nothing was submitted")
    return [result.proof for result in results]


def submit_rehearsal(request: SubmitRequest) -> Run:
    """Rehearse the plan on this machine, to the end."""
    options, spec, plan, caller = request.options, request.spec, request.plan, request.caller
    progress = caller.progress
    if options.detach:
        raise SpecError("--detach: no cluster is named, and a rehearsal ends with this command")
    steps = options.steps or REHEARSED_STEPS
    small = rehearsal_of(spec, plan, steps=steps, devices=options.devices_per_pod)
    check_inputs(small.spec, request.path)
    provenance = provenance_of(request.path, spec, steps, options.profile)
    progress(SubmitStarted(name=plan.name, address=None, named_by=None))
    progress(Planned(plan=plan))
    proofs = prove_before(spec, plan, progress) if options.prove else []
    if options.calibrate and not plan.stages:
        small, provenance = calibrated_rehearsal(small, provenance, progress)
    progress(RehearsalReady(plan=plan, small=small.plan, steps=small.steps, changes=small.changes))
    caller.check_confirmed(Proposal(name=plan.name, runs=1, address=None))
    run = rehearse.run_rehearsal(small, plan, proofs, provenance, options.key, progress)
    tracked = follow.tracked_at_end(Journal(folder(run.journal)))
    progress(RunEnded(run=run, plan=small.plan, tracked=tracked))
    return run


def submit_to_cluster(request: SubmitRequest, where: NamedCluster) -> Run:
    """Run the plan on a named cluster, and follow it unless it is detached."""
    options, spec, plan, caller = request.options, request.spec, request.plan, request.caller
    progress = caller.progress
    check_no_rehearsal_options(options, where)
    steps = cluster.steps_of(spec, plan, options.steps)
    provenance = provenance_of(request.path, spec, steps, options.profile)
    provenance = provenance.on_cluster(where.address)
    launch = cluster.ClusterLaunch(
        spec=spec,
        plan=plan,
        steps=steps,
        versions=provenance.environment,
        archive=archive() if options.code == "sent" else None,
        address=where.address,
        storage=request.storage.absolute(),
    )
    caller.check_confirmable()
    progress(SubmitStarted(name=plan.name, address=where.address, named_by=where.named_by))
    jobs, ready = cluster.check_cluster(launch, progress)
    progress(Planned(plan=plan))
    proofs = prove_before(spec, plan, progress) if options.prove else []
    progress(ready)
    caller.check_confirmed(Proposal(name=plan.name, runs=1, address=where.address))
    journal, job = cluster.start_run(launch, jobs, provenance, proofs, options.key, progress)
    if options.detach:
        return journal.run()
    return follow.follow_to_end(journal, jobs, job, 0, progress)


def check_no_rehearsal_options(options: SubmitOptions, where: NamedCluster) -> None:
    if options.devices_per_pod:
        raise SpecError(f"--devices-per-pod is of rehearsals, and {where.named_by} names a cluster")
