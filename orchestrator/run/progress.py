"""What an operation on a run reports while it lasts: plain values for whoever shows them."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Literal, TypeAlias

from orchestrator.errors import Interrupted
from orchestrator.values.plan import Plan
from orchestrator.values.proof import Proof
from orchestrator.values.run import Run, Step, ViewLink
from orchestrator.values.study import ScalingForecast, Study, SweepForecast, Trial


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


# Interrupts of an operation: they become an error that says what ended, or are collected.


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class OperationInterrupted(Interrupted):
    """Ctrl-C ended an operation. `next_command` continues it; empty for the same command again."""

    code = Interrupted.code

    def __init__(
        self, doing: str, left: str = "nothing is left running", next_command: str = ""
    ) -> None:
        super().__init__(f"interrupted while {doing}; {left}", next_command=next_command)


@contextmanager
def interruptible(
    doing: str, left: str = "nothing is left running", next_command: str = ""
) -> Iterator[None]:
    """Turn Ctrl-C into an error that says what it ended and what is left of it."""
    try:
        yield
    except KeyboardInterrupt:
        raise OperationInterrupted(doing, left, next_command) from None


@contextmanager
def interruptible_by_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM both interrupt, also where a shell ignores them."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(interrupt):
        yield


@contextmanager
def collected_interrupts() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM during a `with` block; they do not end the process.

    Python delivers signals to its main thread alone: another thread collects none.
    """
    numbers: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield numbers
        return
    with _handled_by(lambda number, _: numbers.append(number)):
        yield numbers


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    earlier = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, previous in earlier.items():
            signal.signal(number, previous)


def interrupt_name(number: int) -> str:
    """The interrupt as people call it."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    return f"interrupted ({name})"


# Report the progress of an operation to whoever watches.


Progress: TypeAlias = Callable[[ProgressEvent], None]


def silent(_: ProgressEvent) -> None:
    """The progress that nobody watches."""


@contextmanager
def task(progress: Progress, name: str) -> Iterator[Callable[[str], None]]:
    """Report a task's stages for as long as it lasts, and what Ctrl-C ended."""

    def reached(stage: str) -> None:
        progress(Stage(task=name, stage=stage))

    try:
        with interruptible(name):
            yield reached
    finally:
        progress(TaskEnded(task=name))
