"""A run compared with its forecast. Plain values without raw samples."""

from typing import Any, Literal

from msgspec import field

from orchestrator.formatting import percent, seconds
from orchestrator.values.codec import Shown, Value
from orchestrator.values.goodput import Outlook
from orchestrator.values.plan import PlannedModel
from orchestrator.values.profile import Profile
from orchestrator.values.run import Evaluation, Prediction, RunIdentity
from orchestrator.values.slowdowns import HostCheck, Slowdown
from orchestrator.values.spec import DataSource

PredictionKind = Literal["lower", "expected", "unoverlapped"]

# Why a measurement is not compared with its forecast.
NotCompared = Literal["cpu_rehearsal"]

# Where time goes that trains nothing, with the names of Google's goodput measurement.
Badput = Literal[
    "tpu_initialization", "training_prep", "program_startup", "data_loading_sync",
    "unproductive_checkpoint_save_time", "unproductive_checkpoint_restore_time",
    "wasted_progress_from_disruption", "infrastructure_recovery_from_disruption", "evaluation",
    "other",
]  # fmt: skip


class Spread(Value):
    """A median with two bounds: tenth and ninetieth percentile of steps, extremes of runs."""

    median: float
    low: float
    high: float


class Measurement(Value):
    """What the `steps` after warm-up took: all but the first of each attempt, each counted once.

    Rates are at the median step. `mfu` is None where the peak of the device is unknown, and FLOPs
    where the trainer did not count them. `mean_data_s` and `mean_checkpoint_s` are the parts of the
    mean step that waited for a batch and for a state to leave the devices; `device_s` is the
    median of the rest.
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


class Ratio(Value):
    """The median measured step over a predicted one."""

    against: PredictionKind
    step_s: float
    measured_over_predicted: float


class GapPart(Value):
    """A part of the difference between the mean measured step and the predicted one."""

    name: Literal["devices", "slow steps", "waiting for data", "saving"]
    s: float


class Suspect(Value):
    """A resource, and the share of its peak that explains the measured time without any other."""

    resource: str
    busy_s: float
    rate_if_alone: float


class Gap(Value):
    """The mean measured step minus the predicted one, which is `against`; `parts` add up to `s`.

    The prediction is the expected step, or else the lower bound. `exposed` is the share of the time
    that could overlap and did not, at peak rates: 0 at the lower bound, 1 where nothing overlaps,
    more where rates are below their peaks. On a measured machine profile it is None and there are
    no suspects: its rates are not peaks, and nothing overlaps.
    """

    against: PredictionKind
    s: float
    parts: tuple[GapPart, ...]
    exposed: float | None
    suspects: tuple[Suspect, ...]


class Goodput(Value):
    """Where the time went from the start of the first attempt to the run's end or last event.

    `goodput_s` and `badput_s` add up to `total_s`. `waited_s` passed before, since submission.
    """

    total_s: float
    goodput_s: float
    goodput: float
    badput_s: dict[Badput, float]
    waited_s: float


class MemoryReport(Value):
    """The peak memory of a device: forecast, compiled and measured; None where unknown.

    `hbm_bytes` is what the compiler allows. It is None in a rehearsal: emulated devices share the
    memory of their machine.
    """

    forecast_bytes: float
    compiled_bytes: float | None
    measured_bytes: float | None
    hbm_bytes: float | None


class EvaluationReport(Value):
    """Evaluations of a run, by their steps. `best` has the lowest loss, the first of several."""

    count: int
    first: Evaluation
    best: Evaluation
    last: Evaluation


class StageReport(Value):
    """What a stage of a run took: `steps_s` of its steps that count, and what these cost.

    `predicted_step_s`, `measured_over_predicted` and `dollars` are None where the forecast is not
    about the devices of the run, and `measured` before a second step.
    """

    number: int
    first_step: int
    steps: int
    steps_done: int
    tokens_done: int
    sequences: int
    length: int
    mesh: dict[str, int]
    predicted_step_s: float | None
    measured: Measurement | None
    measured_over_predicted: float | None
    steps_s: float
    dollars: float | None


class StageTotals(Value):
    """Seconds of all stages of a run. `predicted_s` is for the steps that are done."""

    steps_done: int
    tokens_done: int
    steps_s: float
    predicted_s: float | None
    dollars: float | None


class Report(Shown, RunIdentity):
    """The results of a run compared with its forecast.

    `forecast` and `measured` belong to the newest attempt's plan, `plan_digest`; steps of earlier
    attempts with another plan are left out. Where `not_compared` is set, `ratios` are empty and
    `inside_interval` and `gap` are None. They are also None where nothing was measured, and
    `inside_interval` where the forecast has no interval. In a run with stages they are about its
    newest one, and `stages` has all. `problems` lists what is wrong with the
    files that it was made from. `settings` are those of the trial that the run is, in a study.
    `profile` is what its newest traces say, where somebody has read them.
    """

    schema: int
    settings: dict[str, str] = field(default_factory=dict)
    model: PlannedModel
    data: DataSource
    chip: str
    chips: int
    devices: int
    pods: int
    steps: int
    steps_done: int
    attempts: int
    first_loss: float | None
    last_loss: float | None
    evaluation: EvaluationReport | None
    forecast: Prediction
    measured: Measurement | None
    not_compared: NotCompared | None
    ratios: tuple[Ratio, ...]
    inside_interval: bool | None
    gap: Gap | None
    goodput: Goodput | None
    outlook: Outlook | None
    memory: MemoryReport
    stages: tuple[StageReport, ...] = ()
    stage_totals: StageTotals | None = None
    profile: Profile | None = None
    problems: tuple[str, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    host_checks: tuple[HostCheck, ...] = ()

    def _line(self) -> str:
        text = f"{self.run}: {self.state}, {self.steps_done:,} of {self.steps:,} steps"
        if measured := self.measured:
            mfu = f", MFU {percent(measured.mfu.median)}" if measured.mfu else ""
            text += f"; a step of {seconds(measured.step_s.median)}{mfu}"
        return text

    def _rows(self) -> list[dict[str, Any]]:
        names = ("run", "state", "chip", "chips", "pods", "steps_done", "last_loss")
        paths = {
            "step_s": "measured.step_s.median",
            "mfu": "measured.mfu.median",
            "tokens_per_s_per_chip": "measured.tokens_per_s_per_chip",
            "expected_s": "forecast.step_s.expected",
            "goodput": "goodput.goodput",
        }
        figures = {name: self._at(self, path) for name, path in paths.items()}
        return [{name: getattr(self, name) for name in names} | self.settings | figures]
