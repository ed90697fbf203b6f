"""A formula is one text, both shown and computed, so that the two cannot differ."""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, exp, floor, log2, sqrt
from typing import Any

from orchestrator.types.explanation import (
    ComputedValue,
    Derivation,
    DerivationSection,
    Input,
    Verdict,
)

OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
FUNCTIONS: dict[str, Callable[..., float]] = {
    "ceil": ceil,
    "exp": exp,
    "floor": floor,
    "log2": log2,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": sqrt,
}


def evaluate(formula: str, numbers: Mapping[str, float]) -> float:
    """The value of a formula with these numbers for its symbols."""
    return _value(_parsed(formula), numbers)


def symbols(formula: str) -> tuple[str, ...]:
    """The symbols of a formula, in the order of their first use."""
    named = [node for node in ast.walk(_parsed(formula)) if isinstance(node, ast.Name)]
    named.sort(key=lambda node: node.col_offset)
    return tuple(dict.fromkeys(node.id for node in named if node.id not in FUNCTIONS))


def compute(formula: str, numbers: Mapping[str, float]) -> ComputedValue:
    """A formula with the numbers of its symbols, and its value."""
    inputs = {symbol: numbers[symbol] for symbol in symbols(formula)}
    return ComputedValue(formula=formula, inputs=inputs, value=evaluate(formula, inputs))


def _parsed(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


def _value(node: ast.expr, numbers: Mapping[str, float]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        return numbers[node.id]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, numbers), _value(node.right, numbers)
        return float(OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return FUNCTIONS[node.func.id](*(_value(argument, numbers) for argument in node.args))
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

    def section(
        self,
        title: str,
        formulas: Iterable[Formula],
        *verdicts: Callable[["Worksheet"], Verdict],
    ) -> DerivationSection:
        """Work out formulas, and answer the section's questions with them."""
        lines = tuple(self.line(formula) for formula in formulas)
        answers = tuple(verdict(self) for verdict in verdicts)
        return DerivationSection(title=title, lines=lines, verdicts=answers)

    def line(self, formula: Formula) -> Derivation:
        """Work out one formula and remember its symbol."""
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
