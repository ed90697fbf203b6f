"""Station Run: what happened. Plain values; holds no prediction."""

from dataclasses import dataclass, field
from typing import Literal

from orchestrator.types.plan import Estimate

# `lost` is a run that has not ended, and that nothing has driven for a while.
State = Literal[
    "submitted", "pending", "starting", "running", "stopping",
    "succeeded", "failed", "cancelled", "lost",
]  # fmt: skip
EndState = Literal["succeeded", "failed", "cancelled"]

# Why an attempt ended. An attempt is `lost` when its driver vanished before it could say.
Reason = Literal["finished", "cancelled", "failure", "preemption", "hang"]
LIVE: tuple[State, ...] = ("submitted", "pending", "starting", "running", "stopping")


@dataclass(frozen=True, kw_only=True)
class SkippedCheckpoint:
    """A checkpoint that was there and was not restored, and why."""

    step: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Startup:
    """How an attempt began: how many steps were done, and the seconds until it could go on.

    `state_s` is for restoring the state, or making it; `skipped` were saved but are not whole.
    """

    steps_done: int
    skipped: tuple[SkippedCheckpoint, ...]
    state_s: float
    compile_s: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step as it was measured; `index` counts from 0.

    `step_s` runs from the end of the step before to the end of this one. `data_s` and
    `checkpoint_s` are the parts of it in which the loop waited for a batch, and for a state to
    leave the devices. The first step of an attempt carries its `opening`; it includes warming up,
    and has no rates. `mfu` is None where the peak of the device is not known. `peak_hbm_bytes` is
    the most that a device of the writing process had held until then, on the steps at which it was
    looked up and where devices say so.
    """

    index: int
    step_s: float
    data_s: float
    checkpoint_s: float
    tokens: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens_per_s_per_chip: float | None = None
    model_flops_per_s_per_chip: float | None = None
    mfu: float | None = None
    peak_hbm_bytes: int | None = None
    trainer_metrics: dict[str, float] = field(default_factory=dict)
    opening: Startup | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended well: all steps done, or asked to stop. `steps_done` are saved."""

    steps_done: int
    stopped: bool
    opening: Startup


# Every `_at_s` is in seconds since 1970-01-01 UTC, by the clock of whoever wrote it.


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A step, and when it was written down."""

    at_s: float
    step: Step


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process that writes a journal, known well enough to tell on its machine that it is gone.

    `machine` is one boot of one machine, and `started` tells a process from a later one of the same
    pid; both are None where the system does not say.
    """

    host: str
    pid: int
    machine: str | None
    started: str | None


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What is known of a run when it is submitted, and never changes.

    `id` is of this run alone, also when its key is given to another one later. `rehearses` is the
    digest of the plan that a rehearsal is a small copy of; `steps` are of the whole run. Relative
    paths of the data begin in `folder`, that of the spec. The steps from `profile[0]` up to, not
    with, `profile[1]` are traced. `study` is the key of the study that the run is a trial of.
    """

    id: str
    name: str
    rehearsal: bool
    rehearses: str | None
    spec_digest: str
    plan_digest: str
    pods: int
    steps: int
    environment: dict[str, str]
    submitter: ProcessIdentity
    folder: str = ""
    profile: tuple[int, int] | None = None
    study: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """Where a tracker keeps its record of a run: the tracker's name, its address, the id there."""

    tracker: str
    uri: str
    run_id: str


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try at a run. `reason` is None while it goes on; `steps_done` are of the whole run.

    `restored_steps` were done when its state was restored; it and `steps_done` are known from its
    first step on.
    """

    number: int
    plan_digest: str
    pods: int
    slices: tuple[str, ...]
    started_at_s: float
    ended_at_s: float | None = None
    reason: Reason | Literal["lost"] | None = None
    error: str | None = None
    first_dead_rank: int | None = None
    restored_steps: int = 0
    steps_done: int = 0


@dataclass(frozen=True, kw_only=True)
class RecentSteps:
    """Medians over the last steps of an attempt, its first one left out."""

    steps: int
    step_s: float
    mfu: float | None
    tokens_per_s_per_chip: float | None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as its journal tells it at `read_at_s`.

    `why` says what it waits for, or why it ended or is lost. `pods` and `plan_digest` are those of
    the newest attempt; `steps_done` and `last_step` of the newest that came to a step. `resumed_at`
    is the number of the first attempt since a person last took the run up. `problems` are what the
    journal holds and should not.
    """

    run: str
    id: str
    name: str
    state: State
    why: str | None
    rehearsal: bool
    rehearses: str | None
    spec_digest: str
    plan_digest: str
    journal: str
    tracking: TrackedRun | None
    submitted_at_s: float
    ended_at_s: float | None
    read_at_s: float
    cancel_asked_at_s: float | None
    pods: int
    pods_asked: int
    steps: int
    steps_done: int
    last_step: TimedStep | None
    since_last_step_s: float | None
    since_last_sign_s: float
    recent: RecentSteps | None
    driver: ProcessIdentity | None
    resumed_at: int
    attempts: tuple[Attempt, ...]
    environment: dict[str, str]
    profile: tuple[int, int] | None
    study: str | None
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the plan of the newest attempt says that it should take.

    `chip_profile` is the digest of the profile of a machine that says so; None where datasheets do.
    """

    chip_profile: str | None
    step_s: Estimate
    mfu: Estimate
    mfu_definition: str


@dataclass(frozen=True, kw_only=True)
class Status(Run):
    """A run beside the forecast of its plan; None where the plan cannot be read."""

    forecast: Prediction | None
