"""A formula is one text, both shown and computed, so that the two cannot differ."""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, exp, floor, log2, sqrt
from typing import Any, Literal

from orchestrator.values.codec import Value
from orchestrator.values.plan import Forecast

_DifferenceCode = Literal[
    "mesh", "batch", "tensor", "links", "bound", "memory", "recompute", "days", "renting"
]
# The figures of each difference between plan and derivation; None without such a difference.
PlanDifferences = dict[_DifferenceCode, dict[str, Any] | None]
# How a recomputed value stands to a printed figure: the figure is the value rounded or cut to the
# digits that were printed, or it is another number.
Agreement = Literal["rounded", "cut", "differs"]
# What a section asks.
QuestionCode = Literal[
    "pod_holds_it", "sequence_for_every_chip", "fsdp_bound", "tensor_reach", "mixed_bound",
    "mixed_bound_by_all_matmuls", "mlp_bound", "dcn_bound",
]  # fmt: skip


class Input(Value):
    """A symbol and the number it stands for. `source` is None for what the spec asks itself."""

    symbol: str
    value: float
    meaning: str
    source: str | None = None


class ComputedValue(Value):
    """A formula in the symbols of `inputs`, and what it comes to with those numbers put in."""

    formula: str
    inputs: dict[str, float]
    value: float


class Derivation(Value):
    """One line of a section. `sources` are those of the inputs that come from outside."""

    name: str
    symbol: str
    unit: str
    computed: ComputedValue
    sources: tuple[str, ...] = ()


class Verdict(Value):
    """The answer to a section's question, and the figures that decide it."""

    question: QuestionCode
    holds: bool
    figures: dict[str, bool | float]


class DerivationSection(Value):
    """One question of the book, worked out for this spec."""

    title: str
    lines: tuple[Derivation, ...] = ()
    verdicts: tuple[Verdict, ...] = ()


class Remark(Value):
    """A value that is shown with a quoted figure."""

    says: str
    unit: str
    computed: ComputedValue


class QuotedFigure(Value):
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


class QuotedFigures(Value):
    """The published figures of one question."""

    title: str
    figures: tuple[QuotedFigure, ...]


class Constant(Value):
    """A constant of the catalog under its symbol in a formula, and the runs it is learned from.

    `unsure` is its relative standard deviation when documents are left out; zero where that was not
    asked.
    """

    symbol: str
    unsure: float
    rows: tuple[str, ...]


class ExpectedPart(Value):
    """One part of the expected step, in seconds, and the constants in its formula."""

    name: str
    computed: ComputedValue
    constants: tuple[Constant, ...]


class ExpectedStep(Value):
    """The estimate of the plan's step from real runs: the parts add up to `expected_s`.

    `spread` is the half width of the interval, as the logarithm of a factor, that remains
    apart from the uncertainty of the constants; `rows` are the runs that it was learned from.
    """

    parts: tuple[ExpectedPart, ...]
    expected_s: float
    low_s: float
    high_s: float
    spread: float
    rows: tuple[str, ...]
    source: str


class Citation(Value):
    """A source that the sheet names."""

    key: str
    title: str
    where: str
    date: str


class ExplanationSummary(Value):
    """The derivation in a line: days at an MFU, and by how much FSDP + tensor is compute-bound.

    `mixed_times` is None on one chip, and of pure FSDP where tensor does not pay. The plan's
    `forecast` is None without a plan.
    """

    days: float
    mfu: float
    mixed_times: float | None
    tensor_pays: bool
    tokens: float
    forecast: Forecast | None


class Explanation(Value):
    """Everything `orch explain` says. Without a plan, `no_plan` says why, and there
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


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    function.__name__: function for function in (ceil, exp, floor, log2, max, min, round, sqrt)
}


def compute(formula: str, numbers: Mapping[str, float]) -> ComputedValue:
    """Return a formula with its numbers, in the order of their first use, and its value."""
    parsed = ast.parse(formula, mode="eval").body
    named = [node for node in ast.walk(parsed) if isinstance(node, ast.Name)]
    named.sort(key=lambda node: node.col_offset)
    inputs = {node.id: numbers[node.id] for node in named if node.id not in _FUNCTIONS}
    return ComputedValue(formula=formula, inputs=inputs, value=_value(parsed, inputs))


def _value(node: ast.expr, numbers: Mapping[str, float]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        return numbers[node.id]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, numbers), _value(node.right, numbers)
        return float(_OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _FUNCTIONS[node.func.id](*(_value(argument, numbers) for argument in node.args))
    raise ValueError(f"not part of a formula: {ast.unparse(node)}")


@dataclass(frozen=True)
class Formula:
    """A line to work out: what it is, its symbol, its formula and its unit."""

    name: str
    symbol: str
    text: str
    unit: str


class Worksheet:
    """The symbols worked out so far. A formula may use every symbol before it."""

    def __init__(self, inputs: tuple[Input, ...]) -> None:
        self.inputs = inputs
        self.numbers: dict[str, float] = {entry.symbol: entry.value for entry in inputs}
        self.sources = {entry.symbol: entry.source for entry in inputs}

    def __getitem__(self, symbol: str) -> float:
        return self.numbers[symbol]

    def section(self, title: str, formulas: Iterable[Formula]) -> DerivationSection:
        return DerivationSection(title=title, lines=tuple(map(self.line, formulas)))

    def line(self, formula: Formula) -> Derivation:
        computed = compute(formula.text, self.numbers)
        self.numbers[formula.symbol] = computed.value
        sources = dict.fromkeys(self.sources.get(symbol) for symbol in computed.inputs)
        return Derivation(
            name=formula.name,
            symbol=formula.symbol,
            unit=formula.unit,
            computed=computed,
            sources=tuple(source for source in sources if source is not None),
        )


def assumed(mfu: float) -> str:
    return f"{mfu * 100:g} % MFU"


def bound_by(times: float) -> str:
    """Return what binds: `times` is what there is over what computing takes."""
    return f"compute-bound by {times:.3g} x" if times > 1 else f"comms-bound by {1 / times:.3g} x"
