"""Score: predictions against published runs, row by row and in total. Plain values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.goodput import Uncertain


@dataclass(frozen=True, kw_only=True)
class ScoredRow:
    """One run, measured and expected. `error` is expected over measured, less one.

    `baseline_step_s` follows from one MFU for each kind of chip, learned on the same rows.
    `assumed` names the columns of software that the row does not state.
    """

    id: str
    group: str
    chip: str
    software: str
    kernel: str
    averages: str
    assumed: tuple[str, ...]
    mixture: bool
    slices: int
    measured_step_s: float
    expected_step_s: float
    low_step_s: float
    high_step_s: float
    lower_step_s: float
    baseline_step_s: float
    error: float
    inside_interval: bool
    below_lower_bound: bool


@dataclass(frozen=True, kw_only=True)
class SkippedRow:
    """A row that is in no figure, and the reason."""

    id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Throughput per chip at so many slices over one slice of the same job."""

    id: str
    slices: int
    measured: float
    expected: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Errors are of the expected step time, as fractions; `inside_interval` is a share of rows."""

    rows: int
    left_out: int
    median_abs_error: float | None
    mean_abs_error: float | None
    p90_abs_error: float | None
    worst_abs_error: float | None
    inside_interval: float | None
    below_lower_bound: int
    baseline_median_abs_error: float | None
    baseline_p90_abs_error: float | None


@dataclass(frozen=True, kw_only=True)
class SoftwareSummary:
    """The figures of one software's runs; `median_error` has its sign."""

    software: str
    rows: int
    median_error: float
    median_abs_error: float
    p90_abs_error: float
    inside_interval: float


@dataclass(frozen=True, kw_only=True)
class GoodputScore:
    """A published share of effective time, and the one predicted from its own rates.

    `reported_is`: a source may give a share that the run was above.
    """

    id: str
    source: str
    predicted: Uncertain
    reported: float
    reported_is: Literal["at_least", "about"]
    note: str


@dataclass(frozen=True, kw_only=True)
class RecoveryScore:
    """A kind of fault of this project's campaign: median seconds until a step was done again."""

    id: str
    faults: int
    predicted_s: float
    recorded_s: float


@dataclass(frozen=True, kw_only=True)
class Score:
    """`learned_on` tells which rows the constants had seen: mixtures of experts are never among
    them. `dense` and `mixtures` are the figures of these rows apart. `goodput` and `recoveries` are
    empty for rows of one's own.
    """

    learned_on: str
    rows: tuple[ScoredRow, ...]
    left_out: tuple[SkippedRow, ...]
    retention: tuple[Retention, ...]
    software: tuple[SoftwareSummary, ...]
    summary: Summary
    dense: Summary
    mixtures: Summary
    goodput: tuple[GoodputScore, ...] = ()
    recoveries: tuple[RecoveryScore, ...] = ()
