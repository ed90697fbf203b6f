"""Station Report: a Run held against its Forecast. Plain values; holds no raw samples."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.run import Prediction, State

PredictionKind = Literal["lower", "expected", "unoverlapped"]

# Where time goes that trains nothing, under the names of Google's goodput measurement.
Badput = Literal[
    "tpu_initialization", "training_prep", "program_startup", "data_loading_sync",
    "unproductive_checkpoint_save_time", "unproductive_checkpoint_restore_time",
    "wasted_progress_from_disruption", "infrastructure_recovery_from_disruption", "other",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A median, and what lies about it: of steps the tenth and ninetieth percentile, of runs the
    least and the most.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What the `steps` after warm-up took: all but the first of each attempt, none counted twice.

    Rates are at the median step. `mfu` is None where the peak of the device is not known, and FLOPs
    where the trainer did not count them. The means
    are of a step: in all, waiting for a batch, and waiting for a state to leave the devices;
    `device_s` is the median of what remains.
    """

    steps: int
    step_s: Spread
    mfu: Spread | None
    tokens_per_s: float
    tokens_per_s_per_chip: float
    model_flops_per_s_per_chip: float | None
    mean_step_s: float
    mean_data_s: float
    mean_checkpoint_s: float
    device_s: float


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The median measured step over a predicted one."""

    against: PredictionKind
    step_s: float
    measured_over_predicted: float


@dataclass(frozen=True, kw_only=True)
class GapPart:
    """A part of the seconds between the mean measured step and the predicted one."""

    name: Literal["devices", "slow steps", "waiting for data", "saving"]
    s: float


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A resource, and the share of its peak rate at which it alone would take the measured time."""

    resource: str
    busy_s: float
    rate_if_alone: float


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The mean measured step less the predicted one, which is `against`; `parts` add up to `s`.

    It is against what is expected, or else against the lower bound. `exposed` is the share of what
    could be hidden that was not, if every rate were its peak: 0 at the lower bound, 1 where nothing
    overlaps, above 1 where rates must be lower than peaks too. On a machine's measured ceilings it
    is None and there are no suspects: rates are no peaks there, and nothing hides.
    """

    against: PredictionKind
    s: float
    parts: tuple[GapPart, ...]
    exposed: float | None
    suspects: tuple[Suspect, ...]


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Where the seconds went from the first attempt's start to the run's end, or to its last sign.

    `goodput_s` and the `badput_s` add up to `total_s`. `waited_s` went by before, from submission.
    """

    total_s: float
    goodput_s: float
    goodput: float
    badput_s: dict[Badput, float]
    waited_s: float


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """The peak on a device: as forecast, as the compiler has it, as it was; None where unknown.

    `hbm_bytes` is what the compiler allows, None where nothing limits: the emulated devices of a
    rehearsal share this machine's memory.
    """

    forecast_bytes: float
    compiled_bytes: float | None
    measured_bytes: float | None
    hbm_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a run came to, beside what its plan said.

    `plan_digest` is of the newest attempt's plan, of which `forecast` and `measured` are; steps of
    an earlier attempt on another plan are left out. `not_compared` says why the two are not held
    against each other; then `ratios` are empty and `inside_interval` and `gap` None. They are None
    too where nothing was measured, and `inside_interval` where the forecast has no interval.
    """

    schema: int
    run: str
    id: str
    name: str
    state: State
    why: str | None
    rehearsal: bool
    rehearses: str | None
    spec_digest: str
    plan_digest: str
    chip: str
    chips: int
    devices: int
    pods: int
    steps: int
    steps_done: int
    attempts: int
    first_loss: float | None
    last_loss: float | None
    forecast: Prediction
    measured: Measurement | None
    not_compared: str | None
    ratios: tuple[Ratio, ...]
    inside_interval: bool | None
    gap: Gap | None
    goodput: Goodput | None
    memory: MemoryReport
