"""The Plan with its Forecast, or why a spec has no plan. Plain values, no JAX."""

from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import msgspec

from orchestrator.formatting import count, dollars, lasting, percent, seconds
from orchestrator.notes import Note
from orchestrator.values import codec, spec
from orchestrator.values.codec import Shown, Value
from orchestrator.values.goodput import GoodputForecast
from orchestrator.values.model import Model

PLAN_SCHEMA = 6

Link = Literal["dcn", "ici"]
CollectiveKind = Literal[
    "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"
]

# The quantity of a ledger line. Its name is for people, its kind for code.
LineKind = Literal[
    # bytes
    "parameters", "optimizer_state", "copied_heads", "vocab_padding", "routed_rows", "gradients",
    "gradient_sums", "gradient_payload", "compute_copy", "kept_activations", "gathered_weights",
    "working_activations", "logits", "kv_cache",
    # seconds of one device
    "matmul", "unembedding", "matmul_recompute", "expert_padding", "expert_imbalance",
    "orthogonalization", "moment_exchange", "attention", "attention_recompute", "elementwise",
    "weight_traffic", "activation_traffic", "optimizer_update", "offload",
    # seconds of a collective
    "activation_gather", "activation_scatter", "weight_gather", "gradient_scatter", "kv_gather",
    "kv_scatter", "expert_exchange", "expert_gather", "expert_scatter", "gradient_reduction",
    "stage_exchange", "latency",
    # seconds in which a stage waits for the first microbatch, or has done its last
    "pipeline_bubble",
    # seconds that only measured runs show
    "row_moves", "exposed_gathers", "exposed_tensor", "serial_collectives", "slice_wait",
    "busiest_resource", "layers", "outside_layers",
    # seconds that the compiler schedules
    "scheduled",
]  # fmt: skip
ATTENTION_LINES: tuple[LineKind, ...] = ("attention", "attention_recompute")  # what kernels run

# What a person should know before paying for a plan.
WarningCode = Literal[
    "slice_not_rented", "slices_not_joined", "no_memory_margin", "accumulation_faster",
    "attention_positions", "bf16_parameters", "gpu_mixture", "gpu_sequence", "pipeline_bubble",
    "host_memory_unknown", "mtp_left_out", "odd_domain", "other_batch",
    "other_trainer", "few_steps", "long_warmup", "large_batch", "many_years", "failures_unknown",
    "mostly_recovering", "checkpoint_interval", "storage_too_slow", "saves_block", "extrapolation",
    "no_expected", "own_runs", "stale_choice", "unsteady_profile", "input_missing",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlanWarning(Note):
    """One warning: a code, and its figures."""

    code: WarningCode


class TorusSpan(Value):
    """The part of a mesh axis, or of a group of them, that lies on one torus axis.

    Devices `stride` apart along `torus` are neighbours. A `ring` uses both directions; a stride
    above one shares every link with `stride - 1` interleaved groups.
    """

    torus: str
    size: int
    stride: int
    ring: bool


class MeshAxis(Value):
    """One mesh axis and where it lies. Axes between pods lie on no torus axis: their link
    is dcn.
    """

    name: str
    size: int
    link: Link
    spans: tuple[TorusSpan, ...]

    @property
    def torus_text(self) -> str:
        """Its torus axes, each with its stride where it has one: `y/4 z/4`."""
        return " ".join(s.torus + (f"/{s.stride}" if s.stride > 1 else "") for s in self.spans)


class DeviceGroup(Value):
    """The devices that a collective over some mesh axes joins, and the rate each of them gets."""

    axes: tuple[str, ...]
    size: int
    link: Link
    spans: tuple[TorusSpan, ...]
    bytes_per_s: float


class Collective(Value):
    """What one device exchanges in one step: logical payload, before padding or replacement."""

    kind: CollectiveKind
    axes: tuple[str, ...]
    link: Link
    dtype: str
    bytes_per_step: float
    calls_per_step: float


def sent_bytes(kind: str, volume: Any, ways: Any) -> Any:
    """Logical payload of one device: V (n - 1) / n, an all-reduce twice that, a permute V."""
    if kind == "collective-permute":
        return volume
    return volume * (ways - 1) / ways * (2 if kind == "all-reduce" else 1)


class LedgerLine(Value):
    """One line of a ledger: what it counts, how it was computed and from which numbers.

    `resource` is what the seconds keep busy: mxu, hbm, host, or the links of a device group by its
    name; latency occupies nothing. It is None on a line of bytes. Of a collective's seconds
    `serial_s` come before the first layer or after the last backward pass, so that no matmul hides
    them. `sources` are keys of the catalog, or a profile.
    """

    kind: LineKind
    name: str
    value: float
    unit: Literal["bytes", "s"]
    formula: str
    inputs: dict[str, float]
    sources: tuple[str, ...] = ()
    resource: str | None = None
    collective: Collective | None = None
    serial_s: float = 0.0


class MemoryPhase(Value):
    """What is in memory at once in one part of the step."""

    name: str
    lines: tuple[LedgerLine, ...]
    bytes: float


class Estimate(Value):
    """`lower`: peak rates, perfect overlap, a bound. `unoverlapped`: peak rates, nothing hidden.

    `expected` is the estimate from real runs on such chips, `low` to `high` its 80 % prediction
    interval. They are None for chips without published runs, and nothing takes their place: such a
    run takes `lower` at best, and may well take longer than `unoverlapped`. For seconds, days and
    money lower <= low <= expected <= high. For rates, MFU among them, each is the rate at that
    time: `low` is the slow end and `high` the fast end.
    """

    lower: float
    unoverlapped: float
    expected: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def likeliest(self) -> float:
        """What is expected, or the bound where nothing is."""
        return self.lower if self.expected is None else self.expected


class Extrapolation(Value):
    """An axis along which a plan lies outside `low` to `high`, the range of the published runs."""

    axis: str
    value: float
    low: float
    high: float


class SoftwareRuns(Value):
    """Published runs of one software, and the share by which its steps take longer."""

    software: str
    runs: int
    longer: float


class LearnedFrom(Value):
    """The software for whose runs `expected` speaks, and the others with published runs."""

    reference: SoftwareRuns
    others: tuple[SoftwareRuns, ...]


class Witness(Value):
    """What one witness says of a step by itself, and its weight in what both expect."""

    name: Literal["published runs", "the compiler"]
    weight: float
    expected_s: float
    low_s: float
    high_s: float


class Forecast(Value):
    """What the plan should take: bytes per device against HBM, seconds per step, money.

    `peak_flops_per_s` is what MFU is over: of one device, in the compute type. The lines of `time`
    add up to `step_s.unoverlapped`, those of `expected_time` to `.expected`. Computation hides
    `hidden_s` of the transfers to the host. `never_hidden_s` is what the ranking adds to the mean
    of `lower` and `unoverlapped`: passes between matmuls, moves of rows of experts, and half of the
    exchanges that nothing hides. The host's memory is counted for one chip; its size is None where
    no source has it. `witnesses` are what `step_s.expected` rests on where the plan's program was
    compiled; empty where published runs are the only one. `own_runs` is the digest of the own runs
    whose constants `expected` has, and then `learned_from` is None.
    """

    memory_bytes_per_device: float
    hbm_bytes_per_device: float
    host_memory_bytes_per_chip: float = 0.0
    host_bytes_per_chip: float | None = None
    fits: bool
    memory: tuple[MemoryPhase, ...]
    time: tuple[LedgerLine, ...]
    step_s: Estimate
    hidden_s: float = 0.0
    never_hidden_s: float = 0.0
    bound: str
    bound_by: float
    peak_flops_per_s: float
    model_flops_per_step: float
    mfu_definition: str
    mfu: Estimate
    mfu_6p: Estimate
    tokens_per_s: Estimate
    goodput: GoodputForecast
    days: Estimate
    chip_hours: Estimate
    dollars: Estimate | None
    dollars_per_chip_hour: float | None
    expected_time: tuple[LedgerLine, ...] = ()
    extrapolations: tuple[Extrapolation, ...] = ()
    learned_from: LearnedFrom | None = None
    witnesses: tuple[Witness, ...] = ()
    own_runs: str | None = None


class PlannedModel(Model):
    """The model as resolved, with its exact parameter count. `active_parameters` are those that one
    token uses: of experts only its own.
    """

    parameters: int
    active_parameters: int


class PlannedBatch(Value):
    """`sequences_per_replica`: for one index of the axes that split the `batch` (LOGICAL_AXES)."""

    sequences: int
    length: int
    tokens: int
    requested_sequences: int
    sequences_per_replica: int
    microbatches: int


class PlannedPipeline(Value):
    """How layers lie on the stages of a pipeline, and what passes them.

    Chunk `c` of stage `s` holds the `layers_per_chunk` layers from (c x stages + s) x
    layers_per_chunk on; a microbatch passes chunk 0 of all stages, then chunk 1. The last
    `empty_layers` of these places have no layer: they pass their input on. With `weight_gather`
    per_step, a stage gathers its matrices over the axes that split them before its first
    microbatch, and reduces their gradients after its last, in fp32 until then.
    """

    stages: int
    chunks: int
    microbatches: int
    layers_per_chunk: int
    empty_layers: int
    weight_gather: Literal["per_step", "per_layer"]

    @property
    def bubble(self) -> float:
        """The share by which passes take longer as stages wait at the ends of a step."""
        return (self.stages - 1) / (self.microbatches * self.chunks)


class SearchSummary(Value):
    """What the search went through. `alike` other meshes with the plan's tensor size, policy and
    microbatches are slower by less than the forecast knows.
    """

    enumerated: int
    realizable: int
    priced: int
    alike: int
    rule: str


class StageSpan(Value):
    """Where a stage lies in its run: steps before it, and how many it has.

    The learning rate has a schedule of `schedule_steps` that begins after `schedule_first_step`
    steps of the run. Earlier stages take `first_token` tokens of the same data.
    """

    number: int
    of: int
    first_step: int
    steps: int
    schedule_first_step: int
    schedule_steps: int
    first_token: int

    @property
    def end_step(self) -> int:
        """The steps of the run when the stage is over."""
        return self.first_step + self.steps


class Plan(Shown, Value):
    """What will be done. `digest` is over every field but itself, `name`, `trainer`,
    `ledger_describes_trainer`, `run_steps`, `overrides`, `warnings`, `search`, `forecast` and
    `choice`: two plans that run the same program of a trainer on the same chips share it.
    `chip_profile` is the digest of the ChipProfile that the forecast is made with; None where it is
    made with datasheets. `loss_chunk_tokens`: the loss of a device takes at least so many tokens at
    a time. `mesh` lacks axes that only some plans have (`orchestrator.network.mesh_axes`), where
    they have one device. `loss_gradient`: whether the gradient of the unembedding's table is summed
    over devices in each chunk of these, or once. `ledger_describes_trainer`: whether the forecast
    is about the program that `trainer` runs; the ledger describes only the built-in trainer
    `llama`.

    With `stages` there is a plan for each, which has its place as `stage`. All else is then that of
    the first, but tokens, goodput, days, chip-hours, dollars and `fits` count the whole run, and
    `bound` and `bound_by` of the longest stage.
    """

    schema: int
    digest: str
    name: str
    trainer: str
    ledger_describes_trainer: bool
    spec_digest: str
    overrides: tuple[str, ...]
    model: PlannedModel
    tokens: int
    run_steps: int | None
    batch: PlannedBatch
    optimizer: spec.Optimizer
    precision: spec.Precision
    remat: spec.Remat
    data: spec.DataSource
    start: spec.StartingWeights | None = None
    seed: int
    compiler_options: dict[str, bool | int | float | str]
    chip: str
    chip_definition: dict[str, Any] | None = None
    topology: str
    pods: int
    chips: int
    devices: int
    hosts: int
    mesh: dict[str, int]
    axes: tuple[MeshAxis, ...]
    groups: dict[str, DeviceGroup]
    gradient_reduction: Literal["at_end", "per_layer"]
    loss_chunk_tokens: int
    loss_gradient: Literal["at_end", "per_chunk"] = "at_end"
    chip_profile: str | None
    forecast: Forecast
    search: SearchSummary
    warnings: tuple[PlanWarning, ...]
    choice: spec.CompilersChoice | None = None
    pipeline: PlannedPipeline | None = None
    stage: StageSpan | None = None
    stages: "tuple[Plan, ...]" = ()

    def _line(self) -> str:
        forecast = self.forecast
        step_s, mfu = forecast.step_s, percent(forecast.mfu.likeliest)
        is_known = step_s.expected is not None
        figures = [
            f"{seconds(step_s.likeliest)} a step, MFU {mfu}",
            lasting(forecast.days.likeliest),
            *([dollars(forecast.dollars.likeliest)] if forecast.dollars else []),
        ]
        return (
            f"{self.name} {codec.short(self.digest)}: {count(self.chips)} {self.chip} chips,"
            f" {self.pods} x {self.topology}; {'expected' if is_known else 'at best'}"
            f" {', '.join(figures)}; {'fits' if forecast.fits else 'does not fit'}"
        )

    def _rows(self) -> list[dict[str, Any]]:
        """Return the lines of all ledgers: memory at its peak, peak rates, the expected step."""
        rows = []
        for number, stage in enumerate(self.each_stage, 1):
            forecast = stage.forecast
            peak = max(forecast.memory, key=lambda phase: phase.bytes, default=None)
            ledgers = {"memory": peak.lines if peak else (), "time": forecast.time}
            for ledger, lines in (ledgers | {"expected": forecast.expected_time}).items():
                for line in lines:
                    names = ("name", "resource", "value", "unit", "formula")
                    row = {"stage": number, "ledger": ledger}
                    rows.append(row | {name: getattr(line, name) for name in names})
        return rows

    @property
    def slice_kind(self) -> str:
        """Chip and topology, as slices are named: v5p 4x4x4."""
        return f"{self.chip} {self.topology}"

    @property
    def devices_per_slice(self) -> int:
        return self.devices // self.pods

    @property
    def hosts_per_slice(self) -> int:
        return self.hosts // self.pods

    @property
    def chips_per_host(self) -> int:
        return self.chips // self.hosts

    @property
    def devices_per_host(self) -> int:
        return self.devices // self.hosts

    @property
    def total_steps(self) -> int:
        if self.stages:
            return self.stages[-1].end_step
        return self.stage.steps if self.stage else ceil(self.tokens / self.batch.tokens)

    @property
    def first_step(self) -> int:
        """The steps of the run before this plan's."""
        return self.stage.first_step if self.stage else 0

    @property
    def end_step(self) -> int:
        """The steps of the run when those of this plan are done."""
        return self.first_step + self.total_steps

    @property
    def schedule_span(self) -> tuple[int, int]:
        """The step of the run at which the schedule of the learning rate begins, and its steps."""
        if self.stage:
            return self.stage.schedule_first_step, self.stage.schedule_steps
        return 0, self.total_steps

    @property
    def each_stage(self) -> "tuple[Plan, ...]":
        """The plan of every stage; itself without stages."""
        return self.stages or (self,)

    def stage_of(self, step: int) -> "Plan":
        stages = self.each_stage
        return next((stage for stage in stages if step < stage.end_step), stages[-1])

    def run_s(self, steps: int) -> float:
        """Return seconds that the first `steps` steps should take, without failures and saves."""
        return sum(
            max(min(steps, stage.end_step) - stage.first_step, 0) * stage.forecast.step_s.likeliest
            for stage in self.each_stage
        )

    @property
    def run_share(self) -> float:
        """The share of the time after which `run.steps` of the spec ends the run; 1 without it."""
        steps = self.run_steps or self.end_step
        return min(self.run_s(steps) / self.run_s(self.end_step), 1.0)


_UNDIGESTED = {
    "digest", "name", "trainer", "ledger_describes_trainer", "run_steps", "overrides", "warnings",
    "search", "forecast", "choice",
}  # fmt: skip
_DIGESTED_IF_GIVEN = (
    "chip_definition", "chip_profile", "start", "pipeline", "stage", "stages",
)  # fmt: skip


# Those of the precision, of the model and of its mixture.
_LATER_KEYS: tuple[tuple[str, ...], ...] = (
    ("first_moment",),
    ("learned_positions", "global_head_dim", "global_kv_heads", "global_rotary_share",
     "keys_as_values", "value_norm", "layer_scale"),
    ("with_mlp",),
)  # fmt: skip


def plan_digest(plan: Plan) -> str:
    """Return the identity of what will be done, without its name and its forecast."""
    return codec.digest(_digested(plan))


def program_digest(plan: Plan) -> str:
    """Return the identity of the program: plans share it whose specs asked for it in other words,
    as one that leaves the mesh to the search, and one that pins what the search found.
    """
    digested = _digested(plan)
    del digested["spec_digest"], digested["batch"]["requested_sequences"]
    return codec.digest(digested)


def _digested(plan: Plan) -> dict[str, Any]:
    digested = {
        key: msgspec.to_builtins(value)
        for key in Plan.__struct_fields__
        if key not in _UNDIGESTED
        and ((value := getattr(plan, key)) or key not in _DIGESTED_IF_GIVEN)
    }
    if plan.stages:
        digested["stages"] = [stage.digest for stage in plan.stages]
    _leave_out(digested)
    return digested


def experiment_digest(experiment: spec.Experiment) -> str:
    """Return the identity of an experiment. What it leaves out cannot differ."""
    values = msgspec.to_builtins(experiment)
    if not experiment.stages:
        values.pop("stages", None)
    _leave_out(values)
    return codec.digest(values)


def _leave_out(values: dict[str, Any]) -> None:
    """Remove keys that earlier versions had not, where they change nothing."""
    model = values.get("model", {})
    sections = values.get("precision", {}), model, model.get("moe") or {}
    for section, keys in zip(sections, _LATER_KEYS, strict=True):
        for key in keys:
            if not section.get(key):
                section.pop(key, None)


# Why a spec has no plan, and the specs near it that have one.

ReasonCode = Literal[
    "stage", "memory", "host_memory", "more_chips_needed", "model_not_divisible",
    "largest_slice", "largest_domain",
    "slice_factors", "batch_not_divisible", "dimension_not_divisible", "no_mixture",
    "sequences_not_whole",
    "too_few_layers", "no_pattern", "microbatch_groups", "pipeline_offloads", "requested_mesh",
    "mesh_size", "pods_not_divisible", "no_mesh",
    "beyond_all_chips", "nothing_near",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Reason(Note):
    """One reason: a code, and its figures."""

    code: ReasonCode


class Suggestion(Value):
    """Overrides that lead to a plan, and what that plan takes and costs. `batch_change` is the
    relative change of the requested batch. `dollars` is None where the chip has no price.
    """

    overrides: tuple[str, ...]
    chip: str
    topology: str
    pods: int
    chips: int
    mesh: dict[str, int]
    sequences: int
    batch_change: float
    remat: spec.Remat
    memory_bytes_per_device: float
    hbm_bytes_per_device: float
    step_s: Estimate
    mfu: Estimate
    days: Estimate
    dollars: Estimate | None


# What `--json` prints instead of a result when a command fails.
class Hint(Value):
    """What to write or to type instead. `kind` says what `value` is: a value, a name, a command.

    For a spec without a plan `overrides` are those of a spec near it, and `leads_to` has its plan.
    """

    kind: str
    value: str
    text: str
    overrides: tuple[str, ...] = ()
    leads_to: Suggestion | None = None


class ErrorDetail(Value):
    """One thing that is wrong, and where: the key, and a line and a column that count from 1."""

    code: str
    message: str
    key: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    suggestions: tuple[Hint, ...] = ()


class ErrorReport(ErrorDetail):
    """An error, with the fields of its first problem.

    `problems` are all that is wrong with a file, `reasons` why a spec has no plan.
    """

    exit_code: int
    problems: tuple[ErrorDetail, ...] = ()
    reasons: tuple[Reason, ...] = ()
