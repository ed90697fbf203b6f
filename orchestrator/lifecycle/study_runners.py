"""Runs the trials of a study one by one: rehearsed on this machine, or on a named cluster."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from orchestrator.errors import SpecError
from orchestrator.journal import Journal, StudyJournal, start_trial
from orchestrator.launch.backend import ClusterClient
from orchestrator.launch.provenance import archive, versions
from orchestrator.lifecycle import cluster, follow, recording, rehearse
from orchestrator.lifecycle.calibrating import calibrated_rehearsal
from orchestrator.lifecycle.interrupts import interruptible
from orchestrator.lifecycle.requests import Caller, NamedCluster, Provenance, provenance_of
from orchestrator.lifecycle.submit import REHEARSED_STEPS, prove_before
from orchestrator.plan.rehearsal import rehearse as rehearsal_of
from orchestrator.storage import folder
from orchestrator.types.plan import Plan
from orchestrator.types.progress_events import LeftRunning, TrialContinues, TrialEnded
from orchestrator.types.proof import Proof
from orchestrator.types.run import LIVE, Run, State
from orchestrator.types.study import Trial
from orchestrator.types.submit_options import Proposal, SubmitOptions


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
        tracked = recording.tracked_at_end(Journal(folder(run.journal)))
        rehearse.keep_report(Journal(folder(run.journal)))
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
        progress(TrialEnded(run=run, tracked=recording.tracked_at_end(journal)))
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
