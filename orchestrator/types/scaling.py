"""Predicted and measured scaling: trials of one spec on more and fewer chips. Plain values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.plan import Estimate, PlanWarning
from orchestrator.types.report import NotCompared, Spread
from orchestrator.types.study import Scaling

ScalingKind = Literal["scaling"]


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """The plan of a trial in figures.

    `efficiency` is its tokens per second per chip over those of the smallest trial of its series:
    of the trials that differ only in their number of chips. `warnings` are the plan's.
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
    warnings: tuple[PlanWarning, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrialForecast:
    """A trial and its plan; without one, `infeasible` is the error.

    `series` holds the settings that it shares with the trials it is compared with.
    """

    number: int
    settings: dict[str, str]
    series: dict[str, str]
    planned: PlannedTrial | None
    infeasible: str | None


@dataclass(frozen=True, kw_only=True)
class ScalingForecast:
    """The predicted scaling of a study."""

    kind: ScalingKind = "scaling"
    schema: int
    name: str
    scaling: Scaling
    vary: tuple[str, ...]
    trials: tuple[TrialForecast, ...]


@dataclass(frozen=True, kw_only=True)
class RepeatedTrial:
    """The runs of a trial that succeeded: medians over them, with the extremes.

    `efficiency` is measured tokens per second per chip over those of the smallest measured trial
    of its series.
    """

    runs: tuple[str, ...]
    step_s: Spread
    mfu: Spread | None
    tokens_per_s_per_chip: Spread
    efficiency: Spread


@dataclass(frozen=True, kw_only=True)
class TrialReport:
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


@dataclass(frozen=True, kw_only=True)
class GapExplanation:
    """A ledger line that grows over the trials as the gap between measured and predicted does.

    The lines are those of the expected step or, without one, of the lower bound. `resource` is
    empty where a line has none. Adding the line `times` more leaves the least squared gaps;
    `share` is the share of them that this explains. It is a hint: other lines may grow alike.
    """

    line: str
    resource: str
    times: float
    share: float


@dataclass(frozen=True, kw_only=True)
class ScalingReport:
    """The measured scaling of a study compared with the predicted one."""

    kind: ScalingKind = "scaling"
    schema: int
    study: str
    name: str
    scaling: Scaling
    vary: tuple[str, ...]
    repeats: int
    rehearsal: bool
    trials: tuple[TrialReport, ...]
    explanations: tuple[GapExplanation, ...]
