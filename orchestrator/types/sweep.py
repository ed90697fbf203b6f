"""A sweep: trials that differ in settings and are compared by their losses. Plain values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.plan import Estimate, PlanWarning
from orchestrator.types.report import Spread

SweepKind = Literal["sweep"]


@dataclass(frozen=True, kw_only=True)
class PlannedSweepTrial:
    """The plan of a trial in figures. `days` and `dollars` are those of its `steps`."""

    plan_digest: str
    pods: int
    chips: int
    sequences: int
    mesh: dict[str, int]
    steps: int
    step_s: Estimate
    mfu: Estimate
    bound: str
    days: Estimate
    dollars: Estimate | None
    warnings: tuple[PlanWarning, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SweepTrialForecast:
    """A trial and its plan; without one, `infeasible` is the error."""

    number: int
    settings: dict[str, str]
    planned: PlannedSweepTrial | None
    infeasible: str | None


@dataclass(frozen=True, kw_only=True)
class SweepForecast:
    """What a sweep costs. `days` and `dollars` are the sums over all repeats of all trials that
    have a plan, one after another. `dollars` is None where a price is unknown.
    """

    kind: SweepKind = "sweep"
    schema: int
    name: str
    vary: tuple[str, ...]
    repeats: int
    trials: tuple[SweepTrialForecast, ...]
    days: Estimate | None
    dollars: Estimate | None


@dataclass(frozen=True, kw_only=True)
class SweepTrialReport:
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


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """The losses of a sweep. `best` is the trial with the lowest loss of those that did all their
    steps; None while there is none.
    """

    kind: SweepKind = "sweep"
    schema: int
    study: str
    name: str
    vary: tuple[str, ...]
    rehearsal: bool
    trials: tuple[SweepTrialReport, ...]
    best: int | None
