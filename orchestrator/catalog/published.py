"""What real runs reach, learned by `make score` from published runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import msgspec

from orchestrator.catalog.chips import table
from orchestrator.values.goodput import Uncertain

LEARNED = "efficiency.toml"
REFERENCE, OTHER = "maxtext", "other"  # software: most runs are of the first


@dataclass(frozen=True, kw_only=True)
class LearnedConstant:
    """A constant, and the published runs that it was learned from.

    `unsure` is the standard deviation, as a share of the value, with which it changes as documents
    are left out.
    """

    value: float
    unsure: float = 0.0
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Range:
    """The least and the most of something among the published runs."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What a kind of chip reaches on each kind of work.

    `matmul` and `attention` are shares of the peak, in (0, 1]. `exposed_gathers` and
    `exposed_tensor` are the shares of the time of collectives that nothing hides, in [0, 1]: of
    gathers and scatters of weights and gradients, and of exchanges over `tensor`. A reduction
    between n slices takes `slice_wait_s`, and `slice_hop_s` for each of its n - 1 hops. `spread` is
    the half width of the 80 % interval, as the logarithm of a factor, for all but REFERENCE.
    `ranges` are those of the published runs, by the axes of `plan.extrapolation`.

    The others are of published runs alone. The older kernel reaches `flash_attention` of the peak
    with a head of 128. A figure that averages a whole run has `run_overhead_s` more than a steady
    step, and `run_share` of it is no step. `software` adds a share to the step of REFERENCE; OTHER
    is for software without runs. `reference_spread` is the spread for REFERENCE.
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
    software: Mapping[str, LearnedConstant] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)


@cache
def efficiency(chip: str) -> Efficiency | None:
    """What that kind of chip reaches; None where no run of it was ever published here."""
    learned = table(LEARNED)
    if chip not in learned["matmul"]:
        return None
    shared = {name: _learned(entry) for name, entry in learned["shared"].items()}
    software = {name: _learned(entry) for name, entry in learned["software"].items()}
    return Efficiency(
        matmul=_learned(learned["matmul"][chip]),
        software=software,
        ranges=_ranges(learned["range"], chip),
        **shared,
    )


def shared_efficiency(name: str) -> LearnedConstant:
    """A constant that is the same for all kinds of chips."""
    return _learned(table(LEARNED)["shared"][name])


def _ranges(entries: dict[str, Any], chip: str) -> dict[str, Range]:
    """The ranges of all runs, and that of chips among the runs of that kind."""
    own = entries["chips"][chip]
    return {
        axis: Range(low=float(low), high=float(high))
        for axis, (low, high) in {**entries, "chips": own}.items()
    }


def _learned(entry: dict[str, Any]) -> LearnedConstant:
    return LearnedConstant(
        value=float(entry["value"]), unsure=float(entry["unsure"]), rows=tuple(entry["rows"])
    )


# Published figures, each with its source and the formula that gives it, as data.


@dataclass(frozen=True, kw_only=True)
class BookQuestion:
    """What a publication asks, exactly: a model, a batch, slices of a chip.

    It is quoted for specs of the model on so many of the slices; without `quoted_for_pods`, for any
    spec of the model.
    """

    title: str
    model: str
    sequences: int
    length: int
    tokens: int
    chip: str
    topology: str
    pods: int
    quoted_for_pods: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RemarkFormula:
    """A formula whose value belongs beside a figure; in its unit, unless another is named."""

    says: str
    formula: str
    inputs: dict[str, float] = field(default_factory=dict)
    unit: str | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """A figure as printed, and what gives it.

    `formula` gives it with `inputs` in place of the question's own numbers. `exact`, or else
    `formula`, with the question's own numbers and `exact_inputs`, is what it should have been.
    """

    questions: tuple[str, ...]
    about: str
    printed: str
    unit: str
    source: str
    formula: str
    inputs: dict[str, float] = field(default_factory=dict)
    exact: str | None = None
    exact_inputs: dict[str, float] = field(default_factory=dict)
    asides: tuple[RemarkFormula, ...] = ()
    why: str = ""


@cache
def questions() -> dict[str, BookQuestion]:
    """All questions, in the order in which they are quoted."""
    return {key: BookQuestion(**_tuples(entry)) for key, entry in _quotes()["questions"].items()}


@cache
def figures() -> tuple[PublishedFigure, ...]:
    """All figures, in the order in which they are quoted."""
    return tuple(map(_figure, _quotes()["figures"]))


def _figure(entry: dict[str, Any]) -> PublishedFigure:
    asides = [RemarkFormula(**beside) for beside in entry.get("asides", ())]
    return PublishedFigure(**_tuples(entry | {"asides": asides}))


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}


@cache
def _quotes() -> dict[str, Any]:
    return table("quotes.toml")


# Published shares of effective time, with what their sources say of failures and recoveries.


Wait = Literal["poll", "settling", "hang", "node_loss"]


@dataclass(frozen=True, kw_only=True)
class GoodputRun:
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


@dataclass(frozen=True, kw_only=True)
class CampaignFault:
    """A kind of fault of this project's campaign, and the median seconds until a step was done."""

    id: str
    waits: tuple[Wait, ...]
    recorded_s: float
    faults: int


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """The campaign of faults, with its own restarts and hang limit."""

    restart_s: float
    hang_limit_s: float
    faults: tuple[CampaignFault, ...]


@cache
def goodput_runs() -> tuple[GoodputRun, ...]:
    """All published runs."""
    return msgspec.convert(table("goodput_runs.toml")["runs"], tuple[GoodputRun, ...])


@cache
def campaign() -> Campaign:
    """The campaign of faults."""
    return msgspec.convert(table("goodput_runs.toml")["campaign"], Campaign)


# What it takes to go on after a failure, where no chip and no spec says so.


@dataclass(frozen=True, kw_only=True)
class RecoveryTime(Uncertain):
    """A number with its source: a key of the catalog."""

    source: str


@dataclass(frozen=True, kw_only=True)
class Recovery:
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
def recovery() -> Recovery:
    """All of them."""
    return msgspec.convert(table("recovery.toml"), Recovery)
