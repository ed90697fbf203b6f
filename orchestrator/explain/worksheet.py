"""Explain room: the symbols found so far, each with its number and where that came from."""

from orchestrator.explain.formula import evaluate, symbols
from orchestrator.types.explanation import ComputedValue, Derivation, Input


class Worksheet:
    """Grows line by line; a line may use every symbol of the lines before it."""

    def __init__(self, given: tuple[Input, ...]) -> None:
        self.given = given
        self.numbers: dict[str, float] = {entry.symbol: entry.value for entry in given}
        self.sources = {entry.symbol: entry.source for entry in given}

    def __getitem__(self, symbol: str) -> float:
        return self.numbers[symbol]

    def line(
        self, name: str, symbol: str, formula: str, unit: str, value: float | None = None
    ) -> Derivation:
        """Work out a formula and remember its symbol.

        A `value` that another room computes is taken from there; the formula then only shows it.
        """
        computed = compute(formula, self.numbers)
        if value is not None:
            computed = ComputedValue(formula=formula, inputs=computed.inputs, value=value)
        self.numbers[symbol] = computed.value
        outside = dict.fromkeys(self.sources.get(used) for used in computed.inputs)
        return Derivation(
            name=name,
            symbol=symbol,
            unit=unit,
            computed=computed,
            sources=tuple(source for source in outside if source is not None),
        )


def compute(formula: str, numbers: dict[str, float]) -> ComputedValue:
    """A formula with the numbers that its symbols stand for."""
    inputs = {symbol: numbers[symbol] for symbol in symbols(formula)}
    return ComputedValue(formula=formula, inputs=inputs, value=evaluate(formula, inputs))
