"""What happened in a run: its state, attempts and steps. Plain values without predictions."""

from math import exp, inf
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from orchestrator.values.codec import Value
from orchestrator.values.goodput import Outlook
from orchestrator.values.plan import Estimate, PlannedBatch, StageSpan
from orchestrator.values.slowdowns import HostCheck, HostTimes, Slowdown

_MOST_EXPONENT = 700.0  # of a number that a float can hold
# What a line of steps may say: sums of a million of them can still be computed with.
Seconds = Annotated[float, Meta(ge=0, le=1e10)]
StepSeconds = Annotated[float, Meta(gt=1e-12, le=1e10)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
# `lost` is a run that has not ended and that no process drives any more.
State = Literal[
    "submitted", "pending", "starting", "running", "stopping",
    "succeeded", "failed", "cancelled", "lost",
]  # fmt: skip
EndState = Literal["succeeded", "failed", "cancelled"]
LIVE: tuple[State, ...] = ("submitted", "pending", "starting", "running", "stopping")

# Why an attempt ended. It is `lost` when its driver vanished before it could write the reason.
# It is `resized` when it ended so that the next has all pods again.
AttemptReason = Literal["finished", "cancelled", "failure", "preemption", "hang", "resized"]

# Why a run is in its state.
ReasonCode = Literal[
    "driver_starting", "unclaimed",                                   # submitted
    "waiting_for_slices", "joining_again",                            # pending
    "after_attempt",                                                  # starting
    "cancel_requested",                                               # stopping, cancelled
    "hosts_checked",                                                  # cancelled
    "driver_gone", "driver_silent",                                   # lost
    "not_retried", "repeated_error", "retries_exhausted", "error",    # failed
    "retried",                                                        # of a retry decision
]  # fmt: skip


class StateReason(Value):
    """Why a run is in its state: a code for programs, and the details for people."""

    code: ReasonCode
    detail: str


class SkippedCheckpoint(Value):
    """A checkpoint that exists and was not restored, and why."""

    step: int
    why: str


class SavedCheckpoint(Value):
    """A whole checkpoint of the first `step` steps, and the claim and attempt that saved it."""

    claim: int
    attempt: int
    step: int
    sha256: str  # of the sums of its files

    @property
    def folder(self) -> str:
        return checkpoint_folder(self.claim, self.attempt, self.step)


def checkpoint_folder(claim: int, attempt: int, step: int) -> str:
    return f"{step}-claim-{claim}-attempt-{attempt}"


class Startup(Value):
    """How an attempt began: the steps done before it, and how long it took to get ready.

    `state_s` is the time to restore or initialize the training state. `skipped` lists checkpoints
    that are incomplete.
    """

    steps_done: Count
    skipped: tuple[SkippedCheckpoint, ...]
    state_s: Seconds
    compile_s: Seconds


class Evaluation(Value):
    """The mean loss over `tokens` predicted tokens of held-out text, after the first `steps_done`
    steps of the run. It took `evaluation_s`.
    """

    steps_done: Count
    loss: float
    tokens: Count
    evaluation_s: Seconds

    @property
    def perplexity(self) -> float:
        """The number of equally likely tokens that would be as uncertain."""
        return exp(self.loss) if self.loss < _MOST_EXPONENT else inf


class Step(Value):
    """One measured step; `index` counts from 0.

    `step_s` runs from the end of the previous step to the end of this one. `data_s` and
    `checkpoint_s` are the parts in which the loop waited for a batch and for a state to leave the
    devices. The first step of an attempt carries its `startup`: it includes warm-up and has no
    rates. `mfu` is None where the peak of the device is unknown. `peak_hbm_bytes` is the most
    that a device of the writing process has used so far, on the steps that measured it.
    `evaluation` is the newest of its attempt and stage: that after this step, if there is one. Its
    seconds belong to no step. `compile_s` was spent compiling in the writing process. With several
    processes `hosts` is what each measured of itself, on some steps.
    """

    index: Count
    step_s: StepSeconds
    data_s: Seconds
    checkpoint_s: Seconds
    tokens: Count
    loss: float
    grad_norm: float
    learning_rate: float
    tokens_per_s_per_chip: float | None = None
    model_flops_per_s_per_chip: float | None = None
    mfu: float | None = None
    peak_hbm_bytes: Count | None = None
    trainer_metrics: dict[str, float] = field(default_factory=dict)
    startup: Startup | None = None
    evaluation: Evaluation | None = None
    compile_s: Seconds = 0.0
    hosts: HostTimes | None = None

    @property
    def own_evaluation(self) -> Evaluation | None:
        newest = self.evaluation
        return newest if newest and newest.steps_done == self.index + 1 else None


class Outcome(Value):
    """How training ended: after all steps, or `stopped` on request. `steps_done` are saved."""

    steps_done: int
    stopped: bool
    startup: Startup


# Every `_at_s` is in seconds since 1970-01-01 UTC, by the clock of the process that wrote it.


class TimedStep(Value):
    """A step and the time at which it was written."""

    at_s: float
    step: Step


class WrittenSteps(Value):
    """How many steps an attempt wrote down, and the size and sha256 of these lines."""

    lines: int
    bytes: int
    sha256: str


class ProcessIdentity(Value):
    """A process, identified well enough that its machine can tell whether it still exists.

    `machine` is one boot of one machine and None where the system does not say. `started_s` is the
    start of the process in seconds after that boot: it tells reused pids apart.
    """

    host: str
    pid: int
    machine: str | None
    started_s: float


class Submission(Value):
    """What is fixed when a run is submitted."""

    id: str  # unique even when the run's key is used again later
    name: str
    rehearsal: bool
    rehearses: str | None  # the digest of the plan that a rehearsal copies on a small scale
    spec_digest: str
    plan_digest: str
    pods: int
    steps: int  # of the whole run
    environment: dict[str, str]
    submitter: ProcessIdentity
    folder: str = ""  # the spec's: relative data paths start there
    profile: tuple[int, int] | None = None  # the first step that is traced, and the end
    study: str | None = None  # the key of the study that the run is a trial of
    sums: dict[str, str] = field(default_factory=dict)  # of its first files, by their paths


class TrackedRun(Value):
    """Where a tracker keeps its record of a run: the tracker's name, its address, the id there."""

    tracker: str
    uri: str
    run_id: str


class Attempt(Value):
    """One try at a run. `reason` is None while it is running.

    `steps_done` counts steps of the whole run and `restored_steps` those of its first checkpoint;
    both are known from its first step on. `saved_steps` are in its newest checkpoint, None before.
    `written` is what its end says of its steps.
    """

    number: int
    plan_digest: str
    pods: int
    slices: tuple[str, ...]
    started_at_s: float
    ended_at_s: float | None = None
    reason: AttemptReason | Literal["lost"] | None = None
    error: str | None = None
    first_dead_rank: int | None = None
    restored_steps: int = 0
    steps_done: int = 0
    saved_steps: int | None = None
    written: WrittenSteps | None = None


class RecentSteps(Value):
    """Medians over the last steps of an attempt or of its newest stage, without the first step."""

    steps: int
    step_s: float
    mfu: float | None
    tokens_per_s_per_chip: float | None


class RunIdentity(Value):
    """Which run it is, and its state."""

    run: str
    id: str
    name: str
    state: State
    reason: StateReason | None
    rehearsal: bool
    rehearses: str | None
    spec_digest: str
    plan_digest: str

    @property
    def detail(self) -> str:
        """The details of `reason`; empty where the state needs none."""
        return self.reason.detail if self.reason else ""


class Run(RunIdentity):
    """A run at `read_at_s`, derived from its journal.

    `pods` and `plan_digest` are those of the newest attempt; `steps_done` and `last_step` those of
    the newest attempt that did a step; `evaluation` is the newest. `resumed_at` is the number of
    the first attempt since somebody last resumed the run. `slowdowns` are what slowed its steps,
    `host_checks` the checks of its hosts, the oldest first. `problems` lists damaged or unexpected
    files of the journal.
    """

    journal: str
    tracking: TrackedRun | None
    submitted_at_s: float
    ended_at_s: float | None
    read_at_s: float
    cancel_requested_at_s: float | None
    pods: int
    requested_pods: int
    steps: int
    steps_done: int
    last_step: TimedStep | None
    evaluation: Evaluation | None
    since_last_step_s: float | None
    since_last_heartbeat_s: float
    recent: RecentSteps | None
    driver: ProcessIdentity | None
    resumed_at: int
    attempts: tuple[Attempt, ...]
    environment: dict[str, str]
    profile: tuple[int, int] | None
    study: str | None
    problems: tuple[str, ...]
    slowdowns: tuple[Slowdown, ...] = ()
    host_checks: tuple[HostCheck, ...] = ()


class Prediction(Value):
    """What the plan of the newest attempt predicts for a step.

    `chip_profile` is the digest of the machine profile behind it, None where datasheets are.
    """

    chip_profile: str | None
    step_s: Estimate
    mfu: Estimate
    mfu_definition: str


class Status(Run):
    """A run with its plan's batch and forecast, and what is left; None where no plan can be read.
    `outlook` is also None where the run has ended, or nothing says how long a step takes.
    `stage` is that of the newest step, in a run with stages; the forecast is then its.
    """

    stage: StageSpan | None
    batch: PlannedBatch | None
    forecast: Prediction | None
    outlook: Outlook | None


class LogLine(Value):
    """One line of a log, without its line end."""

    attempt: int | None
    rank: int | None
    line: str


class Destination(Value):
    """Where a tracker records runs: its name, its address, an experiment there.

    `artifacts` is where files go when no server takes them.
    """

    tracker: str
    uri: str
    experiment: str
    artifacts: str | None

    @property
    def label(self) -> str:
        """The address as people read it: the file of a database, else the address itself."""
        return self.uri.removeprefix("sqlite:///")


class SyncProgress(Value):
    """How much of a run is recorded: its `state`, so many attempts, so many steps."""

    state: str
    attempts: int
    steps: int


class SyncState(Value):
    """Where a run is to be recorded, how much is, and why the last sync failed."""

    destination: Destination
    recorded: SyncProgress | None = None
    problem: str | None = None


class SyncResult(Value):
    """The result of one sync: how much of the run is recorded now, or why the sync failed.

    `destination` is None where nothing may be sent. `run_id` names the record in the tracker.
    `by_driver` says that the run is live and its own driver was recording it.
    """

    run: str
    destination: Destination | None
    run_id: str | None
    recorded: SyncProgress | None
    problem: str | None
    by_driver: bool = False


class ViewLink(Value):
    """A comparison view, and where it opens in the tracker's web page."""

    name: str
    url: str


# `limited` stops one thing, which the advice names; `broken` stops most.
_Health = Literal["good", "limited", "broken"]


class Finding(Value):
    """The result of one check. A result that is not good comes with advice."""

    name: str
    health: _Health
    detail: str
    advice: str | None = None


class HealthReport(Value):
    """All findings, in the order in which a run needs the things."""

    findings: tuple[Finding, ...]
    schema: int = 2

    @property
    def broken(self) -> int:
        return sum(finding.health == "broken" for finding in self.findings)


FileKind = Literal["event", "spec", "plan", "document", "steps", "checkpoint", "proof"]


class FileFinding(Value):
    """A file of a run that is not as it was written, and what to do about it.

    `stops`: the run cannot go on from it. `repairable`: `orch doctor RUN --repair` repairs it.
    """

    kind: FileKind
    file: str
    what: str
    stops: bool
    repairable: bool
    advice: str


class RunHealth(Value):
    """What is wrong with the files of a run, and what was wrong with them until it was repaired."""

    run: str
    findings: tuple[FileFinding, ...]
    repaired: tuple[FileFinding, ...] = ()
    schema: int = 1

    @property
    def stops(self) -> bool:
        return any(finding.stops for finding in self.findings)


WeightType = Literal["fp32", "bf16"]


class WeightsRequest(Value):
    """What to write where. `copies` are files that go along, such as a tokenizer's."""

    plan: str
    checkpoint: str
    sha256: str | None
    out: str
    dtype: WeightType
    config: dict[str, Any]
    copies: tuple[str, ...] = ()


class WeightsResult(Value):
    """What the process wrote."""

    parameters: int
    files: int


class ExportedWeights(Value):
    """A folder that `transformers` loads, and the checkpoint that it is from."""

    folder: str
    model: str
    architecture: str
    step: int
    dtype: WeightType
    parameters: int
    files: int
