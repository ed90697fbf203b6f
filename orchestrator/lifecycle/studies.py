"""Studies: every trial planned, then carried out one after another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from orchestrator import spec as specs
from orchestrator.errors import SpecError
from orchestrator.journal import Journal, StudyJournal, StudyRequest, open_study, start_trial
from orchestrator.launch import provenance
from orchestrator.launch.backend import ClusterClient
from orchestrator.lifecycle import cluster, follow, recording, rehearse
from orchestrator.lifecycle.calibrating import calibrated_rehearsal
from orchestrator.lifecycle.interrupts import interruptible
from orchestrator.lifecycle.progress import Progress, silent, task
from orchestrator.lifecycle.requests import (
    NamedCluster,
    Proposal,
    Provenance,
    SubmitOptions,
    check_storage,
    named_cluster,
    provenance_of,
)
from orchestrator.lifecycle.submit import (
    PROFILE_DOCUMENT,
    REHEARSED_STEPS,
    check_no_rehearsal_options,
    prove_before,
)
from orchestrator.plan.planner import make_plan
from orchestrator.plan.rehearsal import rehearse as rehearsal_of
from orchestrator.study import forecast_study
from orchestrator.types.codec import to_pretty_json
from orchestrator.types.events import (
    Count,
    LeftRunning,
    StudyPlanned,
    SubmitStarted,
    TrialContinues,
    TrialDoneBefore,
    TrialEnded,
    TrialStarted,
)
from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.run import LIVE, Run
from orchestrator.types.study import Study, StudyForecast, Trial

TASK = "planning"


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """What came of a study: `infeasible` where a trial has no plan, `stopped` where an interrupt or
    a cancelled run ended it. `study` is None where nothing was begun.
    """

    outcome: Literal["succeeded", "failed", "infeasible", "stopped"]
    study: StudyJournal | None = None


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """A repeat of a trial that has a plan. `base` is the file of the spec that is varied."""

    trial: Trial
    repeat: int
    plan: Plan
    base: Path


class TrialRunner(Protocol):
    """How the trials of a study are carried out: rehearsed here, or run on a named cluster.

    Every run has `steps`, or those of its spec where that is None.
    """

    @property
    def steps(self) -> int | None: ...
    @property
    def where(self) -> NamedCluster | None: ...

    def prepare(self, trials: list[TrialRun]) -> None:
        """Check and confirm what is about to run."""

    def run(self, study: StudyJournal, trial: TrialRun) -> Run | None:
        """One run, to its end; None when it is no longer followed, and goes on."""


# --- plan


def plan_study(study: Study, progress: Progress | None = None) -> StudyForecast:
    """The predicted scaling of a study."""
    return forecast_study(study, plan_trials(study, progress or silent))


def plan_trials(study: Study, progress: Progress) -> dict[int, Plan | str]:
    """The plan of each trial by its number, or why there is none."""
    plans: dict[int, Plan | str] = {}
    with task(progress, TASK):
        for trial in study.trials:
            try:
                plans[trial.number] = make_plan(trial.spec)
            except SpecError as error:
                plans[trial.number] = str(error)
            progress(Count(task=TASK, done=len(plans), total=len(study.trials), unit="trials"))
    return plans


# --- carry out


def submit_study(path: Path, overrides: Sequence[str], options: SubmitOptions) -> StudyResult:
    """Carry out every trial of a study that is not done, one after another."""
    study = specs.load_study(path, tuple(overrides))
    check_storage(study.trials[0].spec)
    runner = runner_of(study, path, options)
    plans = plan_trials(study, options.progress)
    _report_start(study, plans, runner, options.progress)
    feasible = {number: plan for number, plan in plans.items() if isinstance(plan, Plan)}
    complete = len(feasible) == len(plans)
    if not complete and study.after_failure == "stop":
        return StudyResult(outcome="infeasible")
    request = StudyRequest(
        study=study,
        steps=runner.steps,
        devices=options.devices_per_pod,
        rehearsal=runner.where is None,
    )
    trials, storage = trial_runs(study, feasible, path), storage_of(study)
    place = request.journal_in(storage)
    runner.prepare([one for one in trials if not succeeded(place, one)])
    journal = open_study(storage, request, {"study.yaml": path.read_bytes()})
    outcome = carry_out(journal, study, trials, runner, options.progress)
    partial = outcome == "succeeded" and not complete
    return StudyResult(outcome="infeasible" if partial else outcome, study=journal)


def _report_start(
    study: Study, plans: dict[int, Plan | str], runner: TrialRunner, progress: Progress
) -> None:
    where = runner.where
    progress(
        SubmitStarted(
            name=study.name,
            address=where.address if where else None,
            named_by=where.named_by if where else None,
            study=study,
        )
    )
    progress(StudyPlanned(forecast=forecast_study(study, plans)))


def runner_of(study: Study, path: Path, options: SubmitOptions) -> TrialRunner:
    """The trials run on the cluster that is named; without one they are rehearsed."""
    where = named_cluster(study.trials[0].spec, options.address)
    if where is None:
        return RehearsalRunner(path=path, options=options)
    check_no_rehearsal_options(options, where)
    return ClusterRunner(path=path, options=options, where=where)


def storage_of(study: Study) -> Path:
    return Path(study.trials[0].spec.run.storage)


def trial_runs(study: Study, plans: dict[int, Plan], path: Path) -> list[TrialRun]:
    """All trials that have a plan once, then again for each further repeat."""
    base = path.parent / study.base
    return [
        TrialRun(trial=trial, repeat=repeat, plan=plans[trial.number], base=base)
        for repeat in range(1, study.repeats + 1)
        for trial in study.trials
        if trial.number in plans
    ]


def carry_out(
    journal: StudyJournal,
    study: Study,
    trials: list[TrialRun],
    runner: TrialRunner,
    progress: Progress,
) -> Literal["succeeded", "failed", "stopped"]:
    """Run every trial that is not done."""
    failed = False
    # What goes on comes first: while it does, nothing else may begin.
    for one in sorted(trials, key=lambda one: going_on(journal, one) is None):
        progress(TrialStarted(study=study, trial=one.trial, repeat=one.repeat))
        if done := succeeded(journal, one):
            progress(TrialDoneBefore(run=done))
            continue
        run = runner.run(journal, one)
        if run is None or run.state == "cancelled":
            return "stopped"
        failed |= run.state != "succeeded"
        if failed and study.after_failure == "stop":
            break
    return "failed" if failed else "succeeded"


def succeeded(journal: StudyJournal, trial: TrialRun) -> Run | None:
    """The run of a trial that is done, if there is one."""
    return next((run for run in _runs_of(journal, trial) if run.state == "succeeded"), None)


def going_on(journal: StudyJournal, trial: TrialRun) -> Run | None:
    """The run of a trial that goes on, if there is one."""
    return next((run for run in _runs_of(journal, trial) if run.state in LIVE), None)


def _runs_of(journal: StudyJournal, trial: TrialRun) -> Iterator[Run]:
    """Every run of a trial's repeat, as it stands."""
    for one in journal.trial_starts():
        if (one.trial, one.repeat) != (trial.trial.number, trial.repeat):
            continue
        if run := journal.trial_run(one):
            yield run


# --- runners


def _proof(trial: TrialRun, options: SubmitOptions) -> Proof | None:
    """The proof of a trial's plan, reported only where it does not pass."""
    if not options.prove:
        return None
    return prove_before(trial.trial.spec, trial.plan, options.progress, report_passed=False)


def _provenance(
    trial: TrialRun, steps: int, options: SubmitOptions, study: StudyJournal
) -> Provenance:
    found = provenance_of(trial.base, trial.trial.spec, steps, options.profile)
    return replace(found, study=study.key)


@dataclass(frozen=True, kw_only=True)
class RehearsalRunner:
    """Runs each trial as a small copy on this machine."""

    path: Path
    options: SubmitOptions
    where: NamedCluster | None = None

    @property
    def steps(self) -> int:
        return self.options.steps or REHEARSED_STEPS

    def prepare(self, trials: list[TrialRun]) -> None:
        proposal = Proposal(name=self.path.name, runs=len(trials), address=None)
        self.options.check_confirmed(proposal)

    def run(self, study: StudyJournal, trial: TrialRun) -> Run:
        with interruptible("preparing the rehearsal"):
            run = self._run(study, trial)
        tracked = recording.tracked_at_end(Journal(Path(run.journal)))
        self.options.progress(TrialEnded(run=run, tracked=tracked))
        return run

    def _run(self, study: StudyJournal, trial: TrialRun) -> Run:
        options, spec = self.options, trial.trial.spec
        proof = _proof(trial, options)
        small = rehearsal_of(spec, trial.plan, steps=self.steps, devices=options.devices_per_pod)
        made_of = _provenance(trial, self.steps, options, study)
        if options.calibrate:
            small, profile = calibrated_rehearsal(small, options.progress)
            made_of = made_of.with_document(PROFILE_DOCUMENT, to_pretty_json(profile).encode())
        key = start_trial(study, trial.trial.number, trial.repeat).run
        return rehearse.run_rehearsal(small, trial.plan, proof, made_of, key, options.progress)


@dataclass(frozen=True, kw_only=True)
class ClusterRunner:
    """Runs each trial on a named cluster, one after another."""

    path: Path
    options: SubmitOptions
    where: NamedCluster
    jobs: list[ClusterClient] = field(default_factory=list)

    @property
    def steps(self) -> int | None:
        return self.options.steps

    def prepare(self, trials: list[TrialRun]) -> None:
        """Look at the cluster and the plans, report what all of it takes, and ask once."""
        if not trials:
            return
        self.options.check_confirmable()
        runs = [(one.plan, self.steps_of(one)) for one in trials]
        for one in most_pods(trials):
            launch = self.launch(one, provenance.versions())
            jobs, ready = cluster.check_cluster(launch, self.options.progress, runs)
            self.jobs[:] = [jobs]
            self.options.progress(ready)
        for one in trials:
            _proof(one, self.options)
        address = self.where.address
        proposal = Proposal(name=self.path.name, runs=len(trials), address=address)
        self.options.check_confirmed(proposal)

    def steps_of(self, trial: TrialRun) -> int:
        """The steps of a trial. Its tokens say how long a training is, and a trial is not one."""
        steps = self.steps or trial.trial.spec.run.steps
        if steps is None:
            raise SpecError("a study on a named cluster needs --steps, or run.steps in its base")
        return steps

    def launch(self, trial: TrialRun, versions: dict[str, str]) -> cluster.ClusterLaunch:
        return cluster.ClusterLaunch(
            spec=trial.trial.spec,
            plan=trial.plan,
            steps=self.steps_of(trial),
            versions=versions,
            archive=provenance.archive() if self.options.code == "sent" else None,
            address=self.where.address,
            storage=Path(trial.trial.spec.run.storage).absolute(),
        )

    def run(self, study: StudyJournal, trial: TrialRun) -> Run | None:
        """One run, followed to its end. One that goes on, left earlier, is followed again."""
        [jobs], live, progress = self.jobs, going_on(study, trial), self.options.progress
        if live:
            progress(TrialContinues(run=live))
            journal = Journal(study.storage / live.run)
            job = cluster.job_name(live, cluster.SUBMITTED)
        else:
            journal, job = self.start(study, trial, jobs)
        run = follow.follow(journal, jobs, job, 0, progress)
        if run is None:
            progress(LeftRunning(run=journal.run()))
            return None
        progress(TrialEnded(run=run, tracked=recording.tracked_at_end(journal)))
        return run

    def start(
        self, study: StudyJournal, trial: TrialRun, jobs: ClusterClient
    ) -> tuple[Journal, str]:
        """A new run of a trial, and its job."""
        steps, options = self.steps_of(trial), self.options
        made_of = _provenance(trial, steps, options, study).on_cluster(self.where.address)
        launch = self.launch(trial, dict(made_of.environment))
        key = start_trial(study, trial.trial.number, trial.repeat).run
        proof = _proof(trial, options)
        return cluster.start_run(launch, jobs, made_of, proof, key, options.progress)


def most_pods(trials: list[TrialRun]) -> list[TrialRun]:
    """For each kind of slice the trial that needs the most of them: it needs what others need."""
    found: dict[tuple[str, str], TrialRun] = {}
    for one in trials:
        kind = one.plan.chip, one.plan.topology
        if kind not in found or one.plan.pods > found[kind].plan.pods:
            found[kind] = one
    return list(found.values())
