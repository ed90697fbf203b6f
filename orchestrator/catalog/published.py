"""What real runs reach, learned by `make score` from published runs."""

from collections.abc import Mapping
from functools import cache
from math import hypot
from typing import Any, Literal

import msgspec
from msgspec import field

from orchestrator.catalog.chips import Chip, table
from orchestrator.values.codec import Value
from orchestrator.values.goodput import Uncertain

_LEARNED = "efficiency.toml"
REFERENCE, OTHER = "maxtext", "other"  # software: most runs are of the first


class LearnedConstant(Value):
    """A constant and its runs; `unsure` is its relative deviation as documents are left out."""

    value: float
    unsure: float = 0.0
    rows: tuple[str, ...] = ()


class Range(Value):
    low: float
    high: float


class Efficiency(Value):
    """What a kind of chip reaches on each kind of work. `matmul` and `attention` are shares of the
    peak, in (0, 1]. `exposed_gathers` and `exposed_tensor` are the shares of the time of
    collectives that nothing hides, in [0, 1]: of gathers and scatters of weights and gradients, and
    of exchanges over `tensor`. A reduction between n slices takes `slice_wait_s`, and `slice_hop_s`
    for each of its n - 1 hops. `spread` is the half width of the 80 % interval, as the logarithm of
    a factor, for all but REFERENCE. `ranges` are those of the published runs, by the axes of
    `plan.extrapolation`. Each row of an expert that a device moves takes `row_move_s`;
    `mixture_spread` is the spread for mixtures.

    The others apply only to published runs. Experts' biases take `bias_row_s` for each row, and
    products with masks of rows `mask_products` of the time of others. The older kernel reaches
    `flash_attention` of the peak with a head of 128. A figure that averages a whole run has
    `run_overhead_s` more than a steady step, and `run_share` of it is outside of steps. `software`
    adds a share to the step of REFERENCE; OTHER is for software without runs. `reference_spread` is
    the spread for REFERENCE.
    """

    matmul: LearnedConstant
    attention: LearnedConstant
    exposed_gathers: LearnedConstant
    exposed_tensor: LearnedConstant
    slice_wait_s: LearnedConstant
    slice_hop_s: LearnedConstant
    spread: LearnedConstant
    flash_attention: LearnedConstant
    run_overhead_s: LearnedConstant
    run_share: LearnedConstant
    reference_spread: LearnedConstant
    row_move_s: LearnedConstant
    mixture_spread: LearnedConstant
    bias_row_s: LearnedConstant
    mask_products: LearnedConstant
    software: Mapping[str, LearnedConstant] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)


# Axes whose range is that of the runs on one kind of chip.
PER_CHIP = ("chips", "host_share", "mfu", "mixture_mfu")
NARROW = frozenset({"int8", "fp8"})  # types of products alone
# How far the share of a narrower type is from that of bf16, where no run of the chip shows it.
UNKNOWN_TYPE = 0.15


@cache
def efficiency(chip: str, compute: str = "bf16") -> Efficiency | None:
    """Return what a kind of chip reaches in that type; None where no run of it is published."""
    learned = table(_LEARNED)
    if chip not in learned["matmul"]:
        return None
    matmul = learned["matmul"][chip]
    if compute in NARROW:
        unknown = matmul | {"unsure": UNKNOWN_TYPE, "rows": ()}
        matmul = learned["quantized"].get(chip_kind(chip, compute), unknown)
    # The ranges of all runs, and some among the runs of that kind of chip, in that type.
    ranges = {axis: ends for axis, ends in learned["range"].items() if axis not in PER_CHIP}
    for axis in PER_CHIP:
        of_chip = learned["range"][axis]
        if ends := of_chip.get(range_kind(axis, chip, compute)):
            ranges[axis] = ends
    content = {
        **learned["shared"],
        "matmul": matmul,
        "software": learned["software"],
        "ranges": {axis: {"low": low, "high": high} for axis, (low, high) in ranges.items()},
    }
    return msgspec.convert(content, Efficiency)


def chip_kind(chip: str, compute: str) -> str:
    return f"{chip}-{compute}" if compute in NARROW else chip


def range_kind(axis: str, chip: str, compute: str) -> str:
    """Return whose runs the range of an axis is that of: MFU is over the peak of a type."""
    return chip_kind(chip, compute) if axis.endswith("mfu") else chip


@cache
def shared_efficiency(name: str) -> LearnedConstant:
    return msgspec.convert(table(_LEARNED)["shared"][name], LearnedConstant)


# Months from the end of 2025 after which software fuses what surrounds the products of experts.
FUSED = 6
SMALL_DOMAIN = 8  # GPUs of a node: larger domains have dispatchers of their own


class GpuEfficiency(Value):
    """What a kind of GPU reaches in one type with one software: shares of the peak on `matmul`, on
    products in the type of activations (`wide`) and on `attention`; `mixtures` is a factor of the
    time of experts for the date of the software, `software` of all. `shared` is the same for all
    GPUs (docs/score-gpus.md). `spread` is the half width of the 80 % interval, as the logarithm of
    a factor. `runs` of `programs` are those that all constants come from.
    """

    matmul: Any
    wide: Any
    attention: Any
    mixtures: Any
    software: Any
    shared: Mapping[str, float]
    spread: float
    runs: int = 0
    programs: int = 0
    ranges: Mapping[str, Range] = field(default_factory=dict)


class GpuConstants(Value):
    """Learned constants of GPUs, and how many jobs each comes from. `chips` are shares of the peak
    in fp8, `types` factors of them, `kinds` what a type on a chip adds; `attention` is by compute
    capability, `old` for kernels older than the chip. `months` is by how much mixtures gain in a
    month of software. `spreads` are by what is priced: dense or mixture, of known software or new.
    """

    chips: Mapping[str, float]
    types: Mapping[str, float]
    kinds: Mapping[str, float]
    attention: Mapping[str, float]
    shared: Mapping[str, float]
    software: Mapping[str, float]
    months: float
    latest: int
    runs: int
    spreads: Mapping[str, float]
    jobs: Mapping[str, int]
    ranges: Mapping[str, Range] = field(default_factory=dict)

    def efficiency(
        self, chip: Chip, kind: str, software: str = "other", *, mixture: bool,
        months: int | None = None, old_kernel: bool = False,
    ) -> GpuEfficiency | None:  # fmt: skip
        """Return what such a chip reaches; None where no run of it was learned from."""
        if chip.name not in self.chips or chip.xla_gpu is None or kind not in self.types:
            return None
        capability = chip.xla_gpu.compute_capability.rstrip("af")
        of_kernel = f"{capability} old"
        has_old = old_kernel and of_kernel in self.attention
        share = self.chips[chip.name]
        new = "" if software in self.software and software != OTHER else "new "
        what = "mixture" if mixture else "dense" if kind == "bf16" else "narrow"
        name = f"{chip.name}-{kind}"
        age = self.latest if months is None else months
        fused = age >= FUSED and chip.pod_chips.value > SMALL_DOMAIN
        return GpuEfficiency(
            matmul=min(share * self.types[kind] * self.kinds.get(name, 1.0), 1.0),
            wide=min(share * self.types["bf16"] * self.kinds.get(f"{chip.name}-bf16", 1.0), 1.0),
            attention=self.attention[of_kernel if has_old else capability],
            mixtures=(1 - self.months) ** age * (self.shared["fused"] if fused else 1.0),
            software=self.software.get(software, self.software[OTHER]),
            shared=self.shared,
            # A type's surplus on a chip without such runs is as unsure as its prior.
            spread=hypot(
                self.spreads[f"{new}{what}"], 0.0 if self.jobs.get(name) else UNKNOWN_TYPE
            ),
            runs=self.runs,
            programs=len(self.software) - 1,
            ranges=self.ranges,
        )


_GPU_LEARNED = "gpu_efficiency.toml"


@cache
def gpu_constants() -> GpuConstants:
    return msgspec.convert(table(_GPU_LEARNED), GpuConstants)


class ScheduleScore(Value):
    """How well the schedule of a compiled program says what its step was measured to take, learned
    by `make bench-schedule` from MaxText's programs of `rows`, with that version of `compiler`.

    Measured over scheduled seconds are within a factor of exp(`spread`) in four rows of five.
    `kinds` is all that programs have, `least_tokens` the fewest that one of them gives a device.
    """

    date: str
    compiler: str
    spread: float
    least_tokens: float
    kinds: tuple[str, ...]
    rows: tuple[str, ...]


@cache
def schedule_score() -> ScheduleScore:
    return msgspec.convert(table("schedule.toml")["score"], ScheduleScore)


# Published figures, each with its source and the formula that gives it, as data.


class BookQuestion(Value):
    """What a publication asks: model, batch, slices; quoted only on `quoted_for_pods`, if given."""

    title: str
    model: str
    sequences: int
    length: int
    tokens: int
    chip: str
    topology: str
    pods: int
    quoted_for_pods: tuple[int, ...] = ()


class _RemarkFormula(Value):
    """A formula whose value belongs to a figure; in its unit, unless another is named."""

    says: str
    formula: str
    inputs: dict[str, int | float] = field(default_factory=dict)
    unit: str | None = None


class PublishedFigure(Value):
    """A figure as printed. `formula` gives it with `inputs`; `exact`, or else `formula`, with the
    question's own numbers and `exact_inputs`, is what it should have been.
    """

    questions: tuple[str, ...]
    about: str
    printed: str
    unit: str
    source: str
    formula: str
    inputs: dict[str, int | float] = field(default_factory=dict)
    exact: str | None = None
    exact_inputs: dict[str, int | float] = field(default_factory=dict)
    asides: tuple[_RemarkFormula, ...] = ()
    why: str = ""


@cache
def questions() -> dict[str, BookQuestion]:
    return msgspec.convert(table("quotes.toml")["questions"], dict[str, BookQuestion])


@cache
def figures() -> tuple[PublishedFigure, ...]:
    return msgspec.convert(table("quotes.toml")["figures"], tuple[PublishedFigure, ...])


# Published shares of effective time, with what their sources say of failures and recoveries.


Wait = Literal["poll", "settling", "hang", "node_loss"]


class GoodputRun(Value):
    """A run of others. Without `interval_s` it saves at the best interval."""

    id: str
    source: str
    reported: float
    reported_is: Literal["at_least", "about"]
    failures_per_day: Uncertain
    recovery_s: Uncertain
    blocking_s: Uncertain
    write_s: Uncertain
    interval_s: float | None = None
    note: str = ""


class _CampaignFault(Value):
    """A kind of fault of this project's campaign, and the median seconds until a step was done."""

    id: str
    waits: tuple[Wait, ...]
    recorded_s: float
    faults: int


class _Campaign(Value):
    restart_s: float
    hang_limit_s: float
    faults: tuple[_CampaignFault, ...]


@cache
def goodput_runs() -> tuple[GoodputRun, ...]:
    return msgspec.convert(table("goodput_runs.toml")["runs"], tuple[GoodputRun, ...])


@cache
def campaign() -> _Campaign:
    return msgspec.convert(table("goodput_runs.toml")["campaign"], _Campaign)


# Recovery times after a failure, where neither chip nor spec has them.


class RecoveryTime(Uncertain):
    """A number with its source: a key of the catalog."""

    source: str


class _Recovery(Value):
    """The numbers of `recovery.toml`, which says what each is."""

    restart_s: RecoveryTime
    repair_s: RecoveryTime
    reroute_s: RecoveryTime
    node_loss_s: RecoveryTime
    hang_share: RecoveryTime
    storage_bytes_per_s: RecoveryTime
    save_overhead_s: RecoveryTime
    switches_per_chip: RecoveryTime


@cache
def recovery() -> _Recovery:
    return msgspec.convert(table("recovery.toml"), _Recovery)
