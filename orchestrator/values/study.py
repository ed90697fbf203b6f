"""A study: one spec varied, trial by trial. Plain values."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from orchestrator.values.codec import AfterFailure, Scaling, Shown, StudyKind, Value
from orchestrator.values.plan import Estimate, PlanWarning
from orchestrator.values.report import NotCompared, Spread
from orchestrator.values.run import ProcessIdentity, Run
from orchestrator.values.spec import Spec

StudyState = Literal["running", "stopped", "succeeded"]


def key_names(keys: Iterable[str], vary: Iterable[str]) -> tuple[str, ...]:
    """Return the last part of each key, or the whole key where two of the study end alike."""
    endings = [key.rpartition(".")[2] for key in vary]
    lasts = ((key, key.rpartition(".")[2]) for key in keys)
    return tuple((key if endings.count(last) > 1 else last).lower() for key, last in lasts)


def settings_text(settings: Mapping[str, str], vary: Iterable[str], between: str = ", ") -> str:
    """Return settings with the names of their keys: `pods 4, remat full`."""
    pairs = zip(key_names(settings, vary), settings.values(), strict=True)
    return between.join(f"{name} {text}" for name, text in pairs)


def kind_text(scaling: Scaling | None) -> str:
    return f"{scaling} scaling" if scaling else "sweep"


class _OfTrials(Shown):
    """The rows of a study are its trials: the settings, then columns by the path of their value."""

    name: str
    vary: tuple[str, ...]
    trials: tuple[Any, ...]
    _COLUMNS: ClassVar[dict[str, str]]

    def _line(self) -> str:
        kind = kind_text(getattr(self, "scaling", None))
        return f"{self.name}: {kind}, {len(self.trials)} trials over {', '.join(self.vary)}"

    def _rows(self) -> list[dict[str, Any]]:
        names = key_names(self.vary, self.vary)
        return [
            {"trial": trial.number}
            | {name: trial.settings[key] for name, key in zip(names, self.vary, strict=True)}
            | {column: self._at(trial, path) for column, path in self._COLUMNS.items()}
            for trial in self.trials
        ]


_PLANNED = {name: f"planned.{name}" for name in ("pods", "chips", "sequences", "bound")}
_PLANNED |= {name: f"planned.{name}.likeliest" for name in ("step_s", "mfu", "days", "dollars")}


class Trial(Value):
    """One point of a study: the varied settings as written, and the spec that results."""

    number: int
    settings: dict[str, str]
    spec: Spec


class Study(Value):
    """The trials in the order in which they run, each `repeats` times."""

    name: str
    # With `strong` scaling all trials have the same batch; with `weak` scaling it grows with the
    # pods. A sweep compares losses, and has no scaling.
    scaling: Scaling | None
    vary: tuple[str, ...]
    repeats: int
    after_failure: AfterFailure
    trials: tuple[Trial, ...]
    base: str = ""  # the file of the varied spec, relative to the study's file

    @property
    def kind(self) -> StudyKind:
        return "sweep" if self.scaling is None else "scaling"


class StudySubmission(Value):
    """What is fixed when a study is submitted."""

    schema: int
    id: str
    digest: str  # of the whole request
    at_s: float
    study: Study
    steps: int | None  # of every run; None where each spec has its own
    devices: int | None  # of a rehearsed pod; None for the smallest
    rehearsal: bool = True


class TrialStart(Value):
    """A run that was started for a repeat of a trial; `run` is its key."""

    at_s: float
    trial: int
    repeat: int
    run: str
    by: ProcessIdentity


class StudyStatus(Value):
    """The state of a study at `read_at_s`. It is `running` while a run of it is live or about to
    start, `succeeded` when every repeat of every trial has, and `stopped` otherwise: submitting it
    again continues it. `done` of the `total` repeats have succeeded, or diverged in a sweep; `runs`
    are all that were started and not removed, in order.
    """

    study: str
    id: str
    name: str
    kind: StudyKind
    scaling: Scaling | None
    state: StudyState
    journal: str
    submitted_at_s: float
    read_at_s: float
    done: int
    total: int
    runs: tuple[Run, ...]


class PlanFigures(Value):
    """The values that the plans of all trials share."""

    plan_digest: str
    pods: int
    chips: int
    sequences: int
    mesh: dict[str, int]
    step_s: Estimate
    mfu: Estimate
    bound: str
    days: Estimate
    dollars: Estimate | None
    warnings: tuple[PlanWarning, ...] = ()


class PlannedTrial(PlanFigures):
    """The plan of a trial in figures.

    `efficiency` is its tokens per second per chip over those of the smallest trial of its series:
    of the trials that differ only in their number of chips. `warnings` are the plan's.
    """

    tokens_per_s_per_chip: Estimate
    efficiency: Estimate


class TrialForecast(Value):
    """A trial and its plan; without one, `infeasible` is the error.

    `series` holds the settings that it shares with the trials it is compared with.
    """

    number: int
    settings: dict[str, str]
    series: dict[str, str]
    planned: PlannedTrial | None
    infeasible: str | None


class ScalingForecast(_OfTrials, Value):
    """The predicted scaling of a study."""

    _COLUMNS: ClassVar = _PLANNED | {"efficiency": "planned.efficiency.likeliest"}

    kind: Literal["scaling"] = "scaling"
    schema: int
    name: str
    scaling: Scaling
    vary: tuple[str, ...]
    trials: tuple[TrialForecast, ...]


class RepeatedTrial(Value):
    """The runs of a trial that succeeded: medians over them, with the extremes. `efficiency` is
    measured tokens per second per chip over those of the smallest measured trial of its series.
    """

    runs: tuple[str, ...]
    step_s: Spread
    mfu: Spread | None
    tokens_per_s_per_chip: Spread
    efficiency: Spread


class TrialReport(Value):
    """A trial, predicted and measured.

    `predicted` belongs to the plan that ran or, where `not_compared` is set, to the plan for chips.
    `expected_s` is the expected step, where the forecast has one. `chips` counts what ran.
    `unfinished` holds the state of each run that has not succeeded, unless a later run of the same
    repeat has.
    """

    number: int
    settings: dict[str, str]
    series: dict[str, str]
    chips: int
    done: int
    unfinished: dict[str, str]
    predicted: PlannedTrial | None
    expected_s: float | None
    not_compared: NotCompared | None
    measured: RepeatedTrial | None


class GapExplanation(Value):
    """A ledger line that grows over the trials as the gap between measured and predicted does.

    The lines are those of the expected step or, without one, of the lower bound. `resource` is
    empty where a line has none. Adding the line `times` more leaves the least squared gaps;
    `share` is the share of them that this explains. It is a hint: other lines may grow alike.
    """

    line: str
    resource: str
    times: float
    share: float


class ScalingReport(_OfTrials, Value):
    """The measured scaling of a study compared with the predicted one."""

    _COLUMNS: ClassVar = {
        "chips": "chips",
        "runs": "done",
        "step_s": "measured.step_s.median",
        "mfu": "measured.mfu.median",
        "tokens_per_s_per_chip": "measured.tokens_per_s_per_chip.median",
        "efficiency": "measured.efficiency.median",
        "expected_s": "expected_s",
    }

    kind: Literal["scaling"] = "scaling"
    schema: int
    study: str
    name: str
    scaling: Scaling
    vary: tuple[str, ...]
    repeats: int
    rehearsal: bool
    trials: tuple[TrialReport, ...]
    explanations: tuple[GapExplanation, ...]


class PlannedSweepTrial(PlanFigures):
    """The plan of a trial in figures. `days` and `dollars` are those of its `steps`."""

    steps: int


class SweepTrialForecast(Value):
    """A trial and its plan; without one, `infeasible` is the error."""

    number: int
    settings: dict[str, str]
    planned: PlannedSweepTrial | None
    infeasible: str | None


class SweepForecast(_OfTrials, Value):
    """What a sweep costs. `days` and `dollars` are the sums over all repeats of all trials that
    have a plan, one after another. `dollars` is None where a price is unknown.
    """

    _COLUMNS: ClassVar = _PLANNED | {"steps": "planned.steps"}

    kind: Literal["sweep"] = "sweep"
    schema: int
    name: str
    vary: tuple[str, ...]
    repeats: int
    trials: tuple[SweepTrialForecast, ...]
    days: Estimate | None
    dollars: Estimate | None


class SweepTrialReport(Value):
    """A trial of a sweep as it was measured.

    `loss` is the mean over the last tenth of its steps, and `losses` are (step, loss) along the
    way, each a mean over its part of the steps. `runs` are all its runs with their states.
    """

    number: int
    settings: dict[str, str]
    runs: dict[str, str]
    steps_done: int
    steps: int
    loss: float | None
    losses: tuple[tuple[int, float], ...]
    step_s: Spread | None
    expected_s: float | None
    mfu: float | None


class SweepReport(_OfTrials, Value):
    """The losses of a sweep. `best` is the trial with the lowest loss of those that did all their
    steps; None while there is none.
    """

    _COLUMNS: ClassVar = {
        "steps_done": "steps_done",
        "loss": "loss",
        "step_s": "step_s.median",
        "mfu": "mfu",
        "expected_s": "expected_s",
    }

    kind: Literal["sweep"] = "sweep"
    schema: int
    study: str
    name: str
    vary: tuple[str, ...]
    rehearsal: bool
    trials: tuple[SweepTrialReport, ...]
    best: int | None
