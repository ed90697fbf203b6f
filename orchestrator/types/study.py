"""Station Study: one spec varied, trial by trial. Plain values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.plan import Estimate
from orchestrator.types.report import Spread
from orchestrator.types.run import ProcessIdentity, Run
from orchestrator.types.spec import Spec

Scaling = Literal["strong", "weak"]
AfterFailure = Literal["stop", "go on"]
StudyState = Literal["running", "stopped", "succeeded"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One point of a study: what is varied, as it was written, and the spec that this gives."""

    number: int
    settings: dict[str, str]
    spec: Spec


@dataclass(frozen=True, kw_only=True)
class Study:
    """What was asked: the trials in the order in which they run, each `repeats` times. `base` is
    the file of the spec that is varied, relative to the study's own.

    Scaling is `strong` where all trials have the batch that was asked, and `weak` where it grows
    with the pods.
    """

    name: str
    scaling: Scaling
    vary: tuple[str, ...]
    repeats: int
    after_failure: AfterFailure
    trials: tuple[Trial, ...]
    base: str = ""


@dataclass(frozen=True, kw_only=True)
class StudySubmission:
    """What a study's journal begins with, and never changes. `steps` were asked of every run; None
    where each spec says them. `devices` are of a pod of its rehearsals, None for the fewest.
    `digest` is the identity of all of it.
    """

    schema: int
    id: str
    digest: str
    at_s: float
    study: Study
    steps: int | None
    devices: int | None
    rehearsal: bool = True


@dataclass(frozen=True, kw_only=True)
class TrialStart:
    """A run that was begun for a trial: which trial, which repeat of it, and the run's key."""

    at_s: float
    trial: int
    repeat: int
    run: str
    by: ProcessIdentity


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """How a study stands at `read_at_s`. It is `running` while a run of it goes on or is about to,
    has `succeeded` when every repeat of every trial has, and is `stopped` otherwise: it goes on
    when it is submitted again. `done` of the `asked` repeats have succeeded; `runs` are all that
    were begun and not removed, in their order.
    """

    study: str
    id: str
    name: str
    scaling: Scaling
    state: StudyState
    journal: str
    begun_at_s: float
    read_at_s: float
    done: int
    asked: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """What a trial's plan comes to. `efficiency` is its tokens per second and chip over those of
    the smallest trial of its series: of those that vary in nothing but their number of chips.
    `warnings` are the plan's.
    """

    plan_digest: str
    pods: int
    chips: int
    sequences: int
    mesh: dict[str, int]
    step_s: Estimate
    mfu: Estimate
    tokens_per_s_per_chip: Estimate
    efficiency: Estimate
    bound: str
    days: Estimate
    dollars: Estimate | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrialForecast:
    """A trial and its plan; where there is none, `refused` says why. `series` are the settings that
    it shares with the trials it is compared with.
    """

    number: int
    settings: dict[str, str]
    series: dict[str, str]
    planned: PlannedTrial | None
    refused: str | None


@dataclass(frozen=True, kw_only=True)
class StudyForecast:
    """The predicted scaling of a study."""

    schema: int
    name: str
    scaling: Scaling
    vary: tuple[str, ...]
    trials: tuple[TrialForecast, ...]


@dataclass(frozen=True, kw_only=True)
class RepeatedTrial:
    """The runs of a trial that succeeded, as medians over them, with the least and the most.

    `efficiency` is measured tokens per second and chip over those of the smallest trial of its
    series that was measured.
    """

    runs: tuple[str, ...]
    step_s: Spread
    mfu: Spread | None
    tokens_per_s_per_chip: Spread
    efficiency: Spread


@dataclass(frozen=True, kw_only=True)
class TrialReport:
    """A trial: what was predicted for what was run, and what was measured.

    `predicted` is of the plan that ran; where `not_compared` says why it is not to be held against
    the measurement, of the plan for chips. `expected_s` is the step that was expected, where the
    forecast has one. `chips` are of what ran. `unfinished` are its runs that have not succeeded,
    each with its state, where no other has in their place.
    """

    number: int
    settings: dict[str, str]
    series: dict[str, str]
    chips: int
    done: int
    unfinished: dict[str, str]
    predicted: PlannedTrial | None
    expected_s: float | None
    not_compared: str | None
    measured: RepeatedTrial | None


@dataclass(frozen=True, kw_only=True)
class StudyExplanation:
    """A ledger line that goes with where measured and predicted part over trials: of what was
    expected, or of the roofline where nothing is. `resource` is empty where a line has none.

    `times` of it on top of the prediction leave the least of the gaps; `share` is how much of them
    that explains, 1 for all. It is a hint: other lines may grow alike.
    """

    line: str
    resource: str
    times: float
    share: float


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """A study's measured scaling beside the predicted one."""

    schema: int
    study: str
    name: str
    scaling: Scaling
    vary: tuple[str, ...]
    repeats: int
    rehearsal: bool
    trials: tuple[TrialReport, ...]
    explanations: tuple[StudyExplanation, ...]
