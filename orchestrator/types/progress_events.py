"""What an operation on a run reports while it lasts: plain values for whoever shows them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.types.plan import Plan
from orchestrator.types.proof import Proof
from orchestrator.types.run import Run, Step
from orchestrator.types.scaling import ScalingForecast
from orchestrator.types.study import Study, Trial
from orchestrator.types.sweep import SweepForecast
from orchestrator.types.tracking import ViewLink


class ProgressEvent:
    """Anything that an operation reports."""


# --- tasks that take a while


@dataclass(frozen=True, kw_only=True)
class Stage(ProgressEvent):
    """A task has begun, or has come to another stage; `state` is a detail that changes often."""

    task: str
    stage: str
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class UnitsDone(ProgressEvent):
    """How many of a task's units are done; `total` is None where nobody knows it."""

    task: str
    done: int
    total: int | None = None
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskEnded(ProgressEvent):
    """A task has ended, well or not."""

    task: str


@dataclass(frozen=True, kw_only=True)
class NonFatalProblem(ProgressEvent):
    """Something is wrong, and the operation goes on."""

    message: str


# --- a run that is submitted or resumed


@dataclass(frozen=True, kw_only=True)
class AlreadySubmitted(ProgressEvent):
    """A run of the same plan has the key: nothing was submitted."""

    run: Run


@dataclass(frozen=True, kw_only=True)
class SubmitStarted(ProgressEvent):
    """A spec, or a study of so many runs, is about to be carried out.

    It runs on the cluster at `address`, which `named_by` names; it is rehearsed where that is None.
    """

    name: str
    address: str | None
    named_by: str | None
    study: Study | None = None


@dataclass(frozen=True, kw_only=True)
class Planned(ProgressEvent):
    """The plan of a spec."""

    plan: Plan


@dataclass(frozen=True, kw_only=True)
class Proved(ProgressEvent):
    """The compiler's verdict on a plan; `age_s` is None where it was compiled just now."""

    plan: Plan
    proof: Proof
    age_s: float | None


@dataclass(frozen=True, kw_only=True)
class RehearsalReady(ProgressEvent):
    """The small copy of a plan that this machine is about to run; `changes` are what it lacks."""

    plan: Plan
    small: Plan
    steps: int
    changes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ClusterReady(ProgressEvent):
    """What a named cluster has for runs, each a plan and its steps."""

    address: str
    slices: str
    hosts: int
    versions: Mapping[str, str]
    storage: str
    runs: tuple[tuple[Plan, int], ...]


@dataclass(frozen=True, kw_only=True)
class JobStarted(ProgressEvent):
    """The cluster has taken the job that drives a run."""

    run: Run
    job: str


@dataclass(frozen=True, kw_only=True)
class Resumed(ProgressEvent):
    """A rehearsal is about to go on with a plan."""

    run: Run
    plan: Plan


# --- a run that is followed


@dataclass(frozen=True, kw_only=True)
class FollowStarted(ProgressEvent):
    """A run is followed from here on: it had so many attempts before."""

    task: str
    attempts: int


@dataclass(frozen=True, kw_only=True)
class NodesUp(ProgressEvent):
    """Nodes of the local cluster have started."""

    up: int
    total: int


@dataclass(frozen=True, kw_only=True)
class RunUpdate(ProgressEvent):
    """The run as it stands, and the steps since the last update. Sent on every look."""

    run: Run
    steps: tuple[Step, ...]


@dataclass(frozen=True, kw_only=True)
class Trouble(ProgressEvent):
    """Following a run meets trouble; the run may well go on. None of it is left in `cleared`."""

    kind: Literal["cluster silent", "journal unreadable", "no driver", "cluster failed", "cleared"]
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class StopSent(ProgressEvent):
    """An interrupt was passed on to the run that is followed."""

    how: Literal["before it began", "with a checkpoint", "at once", "nothing to save"]


@dataclass(frozen=True, kw_only=True)
class LeftRunning(ProgressEvent):
    """The run goes on, and is no longer followed."""

    run: Run


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """Where a tracker records a run; `problem` says why it is not yet recorded there."""

    tracker: str
    place: str
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunEnded(ProgressEvent):
    """A followed run has ended: the plan it ran, and where it is tracked."""

    run: Run
    plan: Plan
    tracked: Tracked


# --- a study


@dataclass(frozen=True, kw_only=True)
class StudyPlanned(ProgressEvent):
    """The forecast of a study that is about to be carried out."""

    forecast: ScalingForecast | SweepForecast


@dataclass(frozen=True, kw_only=True)
class TrialStarted(ProgressEvent):
    """A repeat of a trial comes next."""

    study: Study
    trial: Trial
    repeat: int


@dataclass(frozen=True, kw_only=True)
class TrialDoneBefore(ProgressEvent):
    """The trial has a run that succeeded: it is not run again."""

    run: Run


@dataclass(frozen=True, kw_only=True)
class TrialContinues(ProgressEvent):
    """The trial has a run that goes on: it is followed again."""

    run: Run


@dataclass(frozen=True, kw_only=True)
class TrialEnded(ProgressEvent):
    """The run of a trial has ended."""

    run: Run
    tracked: Tracked


# --- the MLflow UI


@dataclass(frozen=True, kw_only=True)
class ExperimentViews:
    """The comparisons that are set up for an experiment."""

    experiment: str
    views: tuple[ViewLink, ...]


@dataclass(frozen=True, kw_only=True)
class UiReady(ProgressEvent):
    """An MLflow UI shows what is recorded in a place; `served` by this process."""

    address: str
    place: str
    experiments: tuple[ExperimentViews, ...]
    served: bool
