"""Studies: every trial planned, then carried out one after another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from orchestrator.errors import SpecError
from orchestrator.evidence.studies import forecast_of
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.study_journal import (
    StudyJournal,
    StudyRequest,
    is_settled,
    open_study,
    start_trial,
)
from orchestrator.launch.backend import ClusterClient
from orchestrator.launch.provenance import archive, versions
from orchestrator.planning.infeasible import Infeasible
from orchestrator.planning.planner import make_plan
from orchestrator.planning.rehearsal import rehearse as rehearsal_of
from orchestrator.reading.load_study import load_study
from orchestrator.run import cluster, follow, rehearse
from orchestrator.run.calibrate import calibrated_rehearsal
from orchestrator.run.progress import (
    LeftRunning,
    Progress,
    StudyPlanned,
    SubmitStarted,
    TrialContinues,
    TrialDoneBefore,
    TrialEnded,
    TrialStarted,
    UnitsDone,
    interruptible,
    silent,
    task,
)
from orchestrator.run.requests import (
    Caller,
    NamedCluster,
    Provenance,
    check_storage,
    named_cluster,
    provenance_of,
)
from orchestrator.run.submit import REHEARSED_STEPS, check_no_rehearsal_options, prove_before
from orchestrator.storage.addresses import folder
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.run import LIVE, Run, State
from orchestrator.values.run_options import Proposal, SubmitOptions
from orchestrator.values.study import ScalingForecast, Study, SweepForecast, Trial

# Runs the trials of a study one by one: rehearsed on this machine, or on a named cluster.


@dataclass(frozen=True, kw_only=True)
class PlannedRepeat:
    """A repeat of a trial that has a plan. `base` is the file of the spec that is varied."""

    trial: Trial
    repeat: int
    plan: Plan
    base: Path

    def run_in(self, study: StudyJournal, *states: State) -> Run | None:
        """Its first run that is in one of these states, if the study has one."""
        return next((run for run in self.runs_in(study) if run.state in states), None)

    def runs_in(self, study: StudyJournal) -> Iterator[Run]:
        """Its runs, in the order in which they started."""
        for start in study.trial_starts():
            is_own = (start.trial, start.repeat) == (self.trial.number, self.repeat)
            if is_own and (run := study.trial_run(start)):
                yield run


class TrialRunner(Protocol):
    """How the trials of a study are carried out: rehearsed here, or run on a named cluster.

    Every run has `steps`, or those of its spec where that is None.
    """

    @property
    def steps(self) -> int | None: ...
    @property
    def where(self) -> NamedCluster | None: ...

    def prepare(self, trials: list[PlannedRepeat]) -> None:
        """Check and confirm what is about to run."""

    def run(self, study: StudyJournal, trial: PlannedRepeat) -> Run | None:
        """One run, to its end; None when it is no longer followed, and goes on."""


def _proofs(trial: PlannedRepeat, options: SubmitOptions, caller: Caller) -> list[Proof]:
    """The proofs of a trial's plan, reported only where one does not pass."""
    if not options.prove:
        return []
    return prove_before(trial.trial.spec, trial.plan, caller.progress, report_passed=False)


def _provenance(
    trial: PlannedRepeat, steps: int, options: SubmitOptions, study: StudyJournal
) -> Provenance:
    provenance = provenance_of(trial.base, trial.trial.spec, steps, options.profile)
    return replace(provenance, study=study.key)


@dataclass(frozen=True, kw_only=True)
class RehearsalRunner:
    """Runs each trial as a small copy on this machine."""

    path: Path
    options: SubmitOptions
    caller: Caller
    where: NamedCluster | None = None

    @property
    def steps(self) -> int:
        return self.options.steps or REHEARSED_STEPS

    def prepare(self, trials: list[PlannedRepeat]) -> None:
        proposal = Proposal(name=self.path.name, runs=len(trials), address=None)
        self.caller.check_confirmed(proposal)

    def run(self, study: StudyJournal, trial: PlannedRepeat) -> Run:
        with interruptible("preparing the rehearsal"):
            run = self._run(study, trial)
        tracked = follow.tracked_at_end(Journal(folder(run.journal)))
        self.caller.progress(TrialEnded(run=run, tracked=tracked))
        return run

    def _run(self, study: StudyJournal, trial: PlannedRepeat) -> Run:
        options, caller, spec = self.options, self.caller, trial.trial.spec
        proofs = _proofs(trial, options, caller)
        small = rehearsal_of(spec, trial.plan, steps=self.steps, devices=options.devices_per_pod)
        provenance = _provenance(trial, self.steps, options, study)
        if options.calibrate and not trial.plan.stages:
            small, provenance = calibrated_rehearsal(small, provenance, caller.progress)
        key = start_trial(study, trial.trial.number, trial.repeat).run
        return rehearse.run_rehearsal(small, trial.plan, proofs, provenance, key, caller.progress)


@dataclass(frozen=True, kw_only=True)
class ClusterRunner:
    """Runs each trial on a named cluster, one after another."""

    path: Path
    options: SubmitOptions
    caller: Caller
    where: NamedCluster
    jobs: list[ClusterClient] = field(default_factory=list)

    @property
    def steps(self) -> int | None:
        return self.options.steps

    def prepare(self, trials: list[PlannedRepeat]) -> None:
        """Look at the cluster and the plans, report what all of it takes, and ask once."""
        if not trials:
            return
        self.caller.check_confirmable()
        runs = [(one.plan, self.steps_of(one)) for one in trials]
        for one in most_pods(trials):
            launch = self.launch(one, versions())
            jobs, ready = cluster.check_cluster(launch, self.caller.progress, runs)
            self.jobs[:] = [jobs]
            self.caller.progress(ready)
        for one in trials:
            _proofs(one, self.options, self.caller)
        address = self.where.address
        proposal = Proposal(name=self.path.name, runs=len(trials), address=address)
        self.caller.check_confirmed(proposal)

    def steps_of(self, trial: PlannedRepeat) -> int:
        """The steps of a trial. Its tokens say how long a training is, and a trial is not one."""
        steps = self.steps or trial.trial.spec.run.steps
        if steps is None:
            raise SpecError("a study on a named cluster needs --steps, or run.steps in its base")
        return steps

    def launch(self, trial: PlannedRepeat, versions: dict[str, str]) -> cluster.ClusterLaunch:
        return cluster.ClusterLaunch(
            spec=trial.trial.spec,
            plan=trial.plan,
            steps=self.steps_of(trial),
            versions=versions,
            archive=archive() if self.options.code == "sent" else None,
            address=self.where.address,
            storage=folder(trial.trial.spec.run.storage).absolute(),
        )

    def run(self, study: StudyJournal, trial: PlannedRepeat) -> Run | None:
        """One run, followed to its end. One that goes on, left earlier, is followed again."""
        [jobs], live, progress = self.jobs, trial.run_in(study, *LIVE), self.caller.progress
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
        progress(TrialEnded(run=run, tracked=follow.tracked_at_end(journal)))
        return run

    def start(
        self, study: StudyJournal, trial: PlannedRepeat, jobs: ClusterClient
    ) -> tuple[Journal, str]:
        """A new run of a trial, and its job."""
        steps, options = self.steps_of(trial), self.options
        provenance = _provenance(trial, steps, options, study).on_cluster(self.where.address)
        launch = self.launch(trial, dict(provenance.environment))
        key = start_trial(study, trial.trial.number, trial.repeat).run
        proofs = _proofs(trial, options, self.caller)
        return cluster.start_run(launch, jobs, provenance, proofs, key, self.caller.progress)


def most_pods(trials: list[PlannedRepeat]) -> list[PlannedRepeat]:
    """For each kind of slice the trial that needs the most of them: it needs what others need."""
    most: dict[tuple[str, str], PlannedRepeat] = {}
    for one in trials:
        kind = one.plan.chip, one.plan.topology
        if kind not in most or one.plan.pods > most[kind].plan.pods:
            most[kind] = one
    return list(most.values())


TASK = "planning"
Outcome = Literal["succeeded", "failed", "infeasible", "stopped"]


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """What came of a study: `infeasible` where a trial has no plan, `stopped` where an interrupt or
    a cancelled run ended it. `study` is None where nothing was started.
    """

    outcome: Outcome
    study: StudyJournal | None = None


# --- plan


def plan_study(study: Study, progress: Progress | None = None) -> ScalingForecast | SweepForecast:
    """The predicted scaling of a study, or what a sweep costs."""
    return forecast_of(study, plan_trials(study, progress or silent))


def plan_trials(study: Study, progress: Progress) -> dict[int, Plan | str]:
    """The plan of each trial by its number, or why there is none."""
    plans: dict[int, Plan | str] = {}
    with task(progress, TASK):
        for trial in study.trials:
            try:
                plans[trial.number] = make_plan(trial.spec)
            except Infeasible as error:
                plans[trial.number] = error.message  # what is varied cannot be overridden
            except SpecError as error:
                plans[trial.number] = str(error)
            progress(UnitsDone(task=TASK, done=len(plans), total=len(study.trials), unit="trials"))
    return plans


# --- carry out


def submit_study(
    path: Path, overrides: Sequence[str], options: SubmitOptions, caller: Caller
) -> StudyResult:
    """Carry out every trial of a study that is not done, one after another."""
    check_for_study(options)
    study = load_study(path, tuple(overrides))
    check_storage(study.trials[0].spec)
    runner = runner_of(study, path, options, caller)
    plans = plan_trials(study, caller.progress)
    _report_start(study, plans, runner, caller.progress)
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
    trials, storage = planned_repeats(study, feasible, path), storage_of(study)
    place = request.journal_in(storage)
    runner.prepare([one for one in trials if not run_before(place, study, one)])
    journal = open_study(storage, request, {"study.yaml": path.read_bytes()})
    outcome = carry_out(journal, study, trials, runner, caller.progress)
    partial = outcome == "succeeded" and not complete
    return StudyResult(outcome="infeasible" if partial else outcome, study=journal)


def check_for_study(options: SubmitOptions) -> None:
    if options.key:
        raise SpecError("--key is for one run: a study has a key of its own")
    if options.detach:
        raise SpecError("--detach is for one run: a study starts one trial after another")


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
    progress(StudyPlanned(forecast=forecast_of(study, plans)))


def runner_of(study: Study, path: Path, options: SubmitOptions, caller: Caller) -> TrialRunner:
    """The trials run on the cluster that is named; without one they are rehearsed."""
    where = named_cluster(study.trials[0].spec, options.address)
    if where is None:
        return RehearsalRunner(path=path, options=options, caller=caller)
    check_no_rehearsal_options(options, where)
    return ClusterRunner(path=path, options=options, caller=caller, where=where)


def storage_of(study: Study) -> Path:
    return folder(study.trials[0].spec.run.storage)


def planned_repeats(study: Study, plans: dict[int, Plan], path: Path) -> list[PlannedRepeat]:
    """All trials that have a plan once, then again for each further repeat."""
    base = path.parent / study.base
    return [
        PlannedRepeat(trial=trial, repeat=repeat, plan=plans[trial.number], base=base)
        for repeat in range(1, study.repeats + 1)
        for trial in study.trials
        if trial.number in plans
    ]


def carry_out(
    journal: StudyJournal,
    study: Study,
    trials: list[PlannedRepeat],
    runner: TrialRunner,
    progress: Progress,
) -> Literal["succeeded", "failed", "stopped"]:
    """Run every trial that is not done."""
    failed = False
    # What goes on comes first: while it does, nothing else may begin.
    for one in sorted(trials, key=lambda one: one.run_in(journal, *LIVE) is None):
        progress(TrialStarted(study=study, trial=one.trial, repeat=one.repeat))
        if done := run_before(journal, study, one):
            progress(TrialDoneBefore(run=done))
            continue
        run = runner.run(journal, one)
        if run is None or run.state == "cancelled":
            return "stopped"
        failed |= not is_settled(study, run)
        if failed and study.after_failure == "stop":
            break
    return "failed" if failed else "succeeded"


def run_before(journal: StudyJournal, study: Study, trial: PlannedRepeat) -> Run | None:
    """The run of an earlier command that need not be repeated."""
    return next((run for run in trial.runs_in(journal) if is_settled(study, run)), None)
