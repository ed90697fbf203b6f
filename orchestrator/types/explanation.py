"""Explanation: a spec worked out by hand, with what was published about it. Plain values."""

from dataclasses import dataclass
from typing import Literal

from orchestrator.types.plan import Forecast
from orchestrator.types.plan_differences import PlanDifferences

# How a recomputed value stands to a printed figure: the figure is the value rounded or cut to the
# digits that were printed, or it is another number.
Agreement = Literal["rounded", "cut", "differs"]
# What a section asks.
QuestionCode = Literal[
    "pod_holds_it",
    "sequence_for_every_chip",
    "fsdp_bound",
    "tensor_reach",
    "mixed_bound",
    "mixed_bound_by_all_matmuls",
    "mlp_bound",
    "dcn_bound",
]


@dataclass(frozen=True, kw_only=True)
class Input:
    """A symbol and the number it stands for. `source` is None for what the spec asks itself."""

    symbol: str
    value: float
    meaning: str
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class ComputedValue:
    """A formula in the symbols of `inputs`, and what it comes to with those numbers put in."""

    formula: str
    inputs: dict[str, float]
    value: float


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """One line of a section. `sources` are those of the inputs that come from outside."""

    name: str
    symbol: str
    unit: str
    computed: ComputedValue
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to a section's question, and the figures that decide it."""

    question: QuestionCode
    holds: bool
    figures: dict[str, bool | float]


@dataclass(frozen=True, kw_only=True)
class DerivationSection:
    """One question of the book, worked out for this spec."""

    title: str
    lines: tuple[Derivation, ...] = ()
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A value that belongs beside a quoted figure."""

    says: str
    unit: str
    computed: ComputedValue


@dataclass(frozen=True, kw_only=True)
class QuotedFigure:
    """A published figure, the inputs that give it, and what exact inputs give instead.

    `printed` has the digits that were printed, in the unit: 20.9e12 bytes was printed as 20.9 TB.
    """

    about: str
    printed: str
    unit: str
    source: str
    reproduced: ComputedValue
    agreement: Agreement
    exact: ComputedValue
    asides: tuple[Remark, ...] = ()
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class QuotedFigures:
    """The published figures of one question."""

    title: str
    figures: tuple[QuotedFigure, ...]


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A constant of the catalog under its symbol in a formula, and the runs it is learned from.

    `unsure` is its standard deviation, as a share of it, as documents are left out; zero where that
    was not asked.
    """

    symbol: str
    unsure: float
    rows: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ExpectedPart:
    """One part of the expected step, in seconds, and the constants in its formula."""

    name: str
    computed: ComputedValue
    constants: tuple[Constant, ...]


@dataclass(frozen=True, kw_only=True)
class ExpectedStep:
    """The estimate of the plan's step from real runs: the parts add up to `expected_s`.

    `spread` is the half width of the interval, as the logarithm of a factor, that is left beside
    what is not sure of the constants; `rows` are the runs that it was learned from.
    """

    parts: tuple[ExpectedPart, ...]
    expected_s: float
    low_s: float
    high_s: float
    spread: float
    rows: tuple[str, ...]
    source: str


@dataclass(frozen=True, kw_only=True)
class Citation:
    """A source that the sheet names."""

    key: str
    title: str
    where: str
    date: str


@dataclass(frozen=True, kw_only=True)
class ExplanationSummary:
    """The derivation in a line: days at an MFU, and by how much FSDP + tensor is compute-bound.

    `mixed_times` is None on one chip, and the plan's `forecast` without a plan.
    """

    days: float
    mfu: float
    mixed_times: float | None
    tokens: float
    forecast: Forecast | None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Everything `orch explain` says. Without a plan, `no_plan` says why there is none, and there
    are no `differences`.

    `expectation` is None without a plan, and for chips of which no run was ever published here;
    `goodput` without a plan, where the spec states it, and where nothing is known to fail.
    """

    schema: int
    name: str
    overrides: tuple[str, ...]
    model: str
    chip: str
    topology: str
    pods: int
    chips: int
    mfu_definition: str
    inputs: tuple[Input, ...]
    sections: tuple[DerivationSection, ...]
    quotes: tuple[QuotedFigures, ...]
    plan_digest: str | None
    differences: PlanDifferences | None
    expectation: ExpectedStep | None
    goodput: DerivationSection | None
    no_plan: str | None
    sources: tuple[Citation, ...]
    summary: ExplanationSummary
