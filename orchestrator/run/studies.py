"""Studies: every trial planned, then carried out one after another."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from orchestrator.errors import NotAnswered, SpecError
from orchestrator.evidence.studies import forecast_of
from orchestrator.journal.listing import StudyJournal, StudyRequest, is_settled, open_study
from orchestrator.journal.ownership import RunRequest
from orchestrator.journal.run_journal import Journal
from orchestrator.launch.backend import ClusterClient
from orchestrator.launch.provenance import ARCHIVE, archive, versions
from orchestrator.planning.infeasible import Infeasible
from orchestrator.planning.planner import make_plan
from orchestrator.planning.rehearsal import REHEARSED_STEPS
from orchestrator.plugins import require
from orchestrator.reading.load_study import load_study
from orchestrator.run import submit as runs
from orchestrator.run.cluster import SUBMITTED, check_cluster, job_name, named_cluster
from orchestrator.run.progress import Notice, Progress, ProgressEvent, UnitsDone, silent, task
from orchestrator.run.proofs import prove_before_run
from orchestrator.run.submit import Confirm, Request, check_confirmed
from orchestrator.storage.addresses import folder
from orchestrator.values.plan import Plan
from orchestrator.values.run import LIVE, Run
from orchestrator.values.spec import Proposal, SubmitOptions
from orchestrator.values.study import ScalingForecast, Study, SweepForecast

# Topics of a trial's run that a study does not report.
_UNREPORTED = ("started", "planned", "rehearsal ready", "cluster ready")
Outcome = Literal["succeeded", "failed", "infeasible", "stopped"]


class StudyResult(msgspec.Struct, frozen=True, kw_only=True):
    # `infeasible`: a trial has no plan; `stopped`: by an interrupt or a cancelled run.
    outcome: Outcome
    study: StudyJournal | None = None  # None where nothing was started


def study(
    path: str | Path, overrides: Sequence[str] = (), *, progress: Progress | None = None
) -> ScalingForecast | SweepForecast:
    """Return the predicted scaling of a study, or what a sweep costs: the plans of all trials."""
    found = load_study(Path(path), tuple(overrides))
    return forecast_of(found, _plan_trials(found, progress or silent))


def _plan_trials(study: Study, progress: Progress) -> dict[int, Plan | str]:
    """Return the plan of each trial by its number, or why it cannot be planned."""
    plans: dict[int, Plan | str] = {}
    with task(progress, "planning"):
        for trial in study.trials:
            try:
                plans[trial.number] = make_plan(trial.spec)
            except Infeasible as error:
                plans[trial.number] = error.message  # what is varied cannot be overridden
            except SpecError as error:
                plans[trial.number] = str(error)
            total = len(study.trials)
            progress(UnitsDone(task="planning", done=len(plans), total=total, unit="trials"))
    return plans


def submit_study(
    path: str | Path,
    overrides: Sequence[str] = (),
    options: SubmitOptions | None = None,
    *,
    confirm: Confirm | None = None,
    progress: Progress | None = None,
) -> StudyResult:
    """Carry out every trial of a study that is not done, one after another, as `submit` does."""
    require("run")
    path, options, progress = Path(path), options or SubmitOptions(), progress or silent
    if options.key or options.resume:
        option = "--key" if options.key else "--resume"
        raise SpecError(f"{option} is for one run: a study has a key of its own")
    if options.detach:
        raise SpecError("--detach is for one run: a study starts one trial after another")
    study = load_study(path, tuple(overrides))
    first = study.trials[0].spec
    runs.check_storage(first)
    cluster = named_cluster(first, options.address)
    address, named_by = cluster or (None, None)
    runs.refuse_rehearsal_options(options, named_by)
    plans = _plan_trials(study, progress)
    progress(Notice("started", name=study.name, address=address, named_by=named_by, study=study))
    progress(Notice("study planned", forecast=forecast_of(study, plans)))
    feasible = {number: plan for number, plan in plans.items() if isinstance(plan, Plan)}
    complete = len(feasible) == len(plans)
    if not complete and study.after_failure == "stop":
        return StudyResult(outcome="infeasible")
    study_request = StudyRequest(
        study=study,
        steps=options.steps if address else options.steps or REHEARSED_STEPS,
        devices=options.devices_per_pod,
        rehearsal=address is None,
    )
    storage = folder(first.run.storage)
    journal = study_request.journal_in(storage)  # which may not exist yet
    # All trials that have a plan once, then again for each further repeat.
    requests = [
        Request(
            path=path.parent / study.base,
            spec=trial.spec,
            plan=feasible[trial.number],
            options=options,
            cluster=cluster,
            confirm=confirm,
            progress=progress,
            trial=(journal, trial.number, repeat),
        )
        for repeat in range(1, study.repeats + 1)
        for trial in study.trials
        if trial.number in feasible
    ]
    new = [request for request in requests if not _run_before(study, request)]
    jobs = _check_cluster(new) if address else None
    if new or not address:
        check_confirmed(confirm, Proposal(name=path.name, runs=len(new), address=address))
    journal = open_study(storage, study_request, {"study.yaml": path.read_bytes()})
    outcome = _carry_out(study, [replace(request, jobs=jobs) for request in requests])
    partial = outcome == "succeeded" and not complete
    return StudyResult(outcome="infeasible" if partial else outcome, study=journal)


def _check_cluster(requests: Sequence[Request]) -> ClusterClient | None:
    """Look at the cluster and the plans of new runs, and report what all of it takes."""
    if not requests:
        return None
    options, progress = requests[0].options, requests[0].progress
    if requests[0].confirm is None:
        raise NotAnswered(runs.NOBODY_ASKED)
    asked = [(request.plan, _steps(request)) for request in requests]
    # For each kind of slice the trial that needs the most of them: it needs what others need.
    most: dict[tuple[str, str], Request] = {}
    for request in requests:
        kind = request.plan.chip, request.plan.topology
        if kind not in most or request.plan.pods > most[kind].plan.pods:
            most[kind] = request
    jobs = None
    documents = {ARCHIVE: archive()} if options.code == "sent" else {}
    for request in most.values():
        assert request.cluster
        run = RunRequest(
            spec=request.spec,
            plan=request.plan,
            steps=_steps(request),
            environment=versions(),
            documents=documents,
        )
        jobs, ready = check_cluster(run, request.cluster[0], request.storage, progress, asked)
        progress(ready)
    if options.prove:
        for request in requests:
            prove_before_run(request.spec, request.plan, _trial_progress(progress))
    return jobs


def _steps(request: Request) -> int:
    """Return the steps of a trial. Its tokens are those of a training, which a trial is not."""
    steps = request.options.steps or request.spec.run.steps
    if steps is None:
        raise SpecError("a study on a named cluster needs --steps, or run.steps in its base")
    return steps


def _carry_out(
    study: Study, requests: Sequence[Request]
) -> Literal["succeeded", "failed", "stopped"]:
    failed = False
    # What goes on comes first: while it does, nothing else may begin.
    for request in sorted(requests, key=lambda request: _live_run(request) is None):
        assert request.trial
        _, number, repeat = request.trial
        [trial] = [trial for trial in study.trials if trial.number == number]
        request.progress(Notice("trial started", study=study, trial=trial, repeat=repeat))
        if done := _run_before(study, request):
            request.progress(Notice("trial done before", run=done))
            continue
        # Run the trial to its end, or follow a run of it on a cluster that goes on.
        left: list[Run] = []
        progress, live = _trial_progress(request.progress, left), _live_run(request)
        if live and request.jobs:
            progress(Notice("trial continues", run=live))
            journal, job = Journal(request.storage / live.run), job_name(live, SUBMITTED)
            run = runs.follow_to_end(journal, request.jobs, job, 0, progress)
        else:
            run = runs.run_once(replace(request, confirm=lambda _: True, progress=progress))
        if left or run.state == "cancelled":
            return "stopped"
        failed |= not is_settled(study, run)
        if failed and study.after_failure == "stop":
            break
    return "failed" if failed else "succeeded"


def _trial_progress(progress: Progress, left: list[Run] | None = None) -> Progress:
    """Return the progress of a trial's run: few screens, and the run into `left` if it goes on."""

    def report(event: ProgressEvent) -> None:
        if isinstance(event, Notice):
            if event.topic == "left running" and left is not None:
                left.append(event.values["run"])
            if event.topic in _UNREPORTED:
                return
            if event.topic == "proved" and event.values["proof"].passes:
                return
            if event.topic == "ended":
                run, tracked = event.values["run"], event.values["tracked"]
                event = Notice("trial ended", run=run, tracked=tracked)
        progress(event)

    return report


def _run_before(study: Study, request: Request) -> Run | None:
    return next((run for run in _runs(request) if is_settled(study, run)), None)


def _live_run(request: Request) -> Run | None:
    return next((run for run in _runs(request) if run.state in LIVE), None)


def _runs(request: Request) -> Iterator[Run]:
    """Yield the runs of a trial and repeat, in the order in which they started."""
    assert request.trial
    journal, *place = request.trial
    for start in journal.trial_starts():
        if [start.trial, start.repeat] == place and (run := journal.trial_run(start)):
            yield run
