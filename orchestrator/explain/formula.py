"""Explain room: a formula is one text, both shown and computed, so that the two cannot differ."""

import ast
import operator
from collections.abc import Callable, Mapping
from math import ceil, floor, log2, sqrt
from typing import Any

OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
FUNCTIONS: dict[str, Callable[..., float]] = {
    "ceil": ceil,
    "floor": floor,
    "log2": log2,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": sqrt,
}


def evaluate(formula: str, numbers: Mapping[str, float]) -> float:
    """What a formula comes to with these numbers put in for its symbols."""
    return _value(_parsed(formula), numbers)


def symbols(formula: str) -> tuple[str, ...]:
    """The symbols of a formula in the order in which they first stand there."""
    named = [node for node in ast.walk(_parsed(formula)) if isinstance(node, ast.Name)]
    named.sort(key=lambda node: node.col_offset)
    return tuple(dict.fromkeys(node.id for node in named if node.id not in FUNCTIONS))


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
