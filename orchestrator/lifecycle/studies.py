"""Studies: every trial planned, then carried out one after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.errors import SpecError
from orchestrator.journal import StudyJournal, StudyRequest, open_study
from orchestrator.journal.study_journal import is_settled
from orchestrator.lifecycle.progress import Progress, silent, task
from orchestrator.lifecycle.requests import Caller, check_storage, named_cluster
from orchestrator.lifecycle.study_runners import (
    ClusterRunner,
    PlannedRepeat,
    RehearsalRunner,
    TrialRunner,
)
from orchestrator.lifecycle.submit import check_no_rehearsal_options
from orchestrator.plan.infeasible import Infeasible
from orchestrator.plan.planner import make_plan
from orchestrator.spec.load_study import load_study
from orchestrator.storage import folder
from orchestrator.study import forecast_of
from orchestrator.types.plan import Plan
from orchestrator.types.progress_events import (
    StudyPlanned,
    SubmitStarted,
    TrialDoneBefore,
    TrialStarted,
    UnitsDone,
)
from orchestrator.types.run import LIVE, Run
from orchestrator.types.scaling import ScalingForecast
from orchestrator.types.study import Study
from orchestrator.types.submit_options import SubmitOptions
from orchestrator.types.sweep import SweepForecast

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
