"""Explanations for tests, each derived once."""

from collections.abc import Iterator
from functools import cache

from orchestrator.catalog.published import questions
from orchestrator.evidence.explain.assemble import _quoted, explain
from orchestrator.evidence.explain.formula import Derivation, Explanation, QuotedFigure, Verdict
from orchestrator.values.spec import Spec
from tests.example_specs import spec_of

# Model, chip, topology, pods, sequences, length: every kind of chip, of axis and of answer.
REQUESTS = {
    "70b-one-pod": ("llama3-70b", "v5p", "16x20x28", 1, 1024, 4096),
    "70b-four-pods": ("llama3-70b", "v5p", "16x20x28", 4, 1024, 4096),
    "405b-eight-pods": ("llama3-405b", "v5p", "16x20x28", 8, 1024, 4096),
    "8b-v5e": ("llama3-8b", "v5e", "16x16", 2, 512, 8192),
    "8b-half-ring": ("llama3-8b", "v5e", "8x16", 1, 256, 4096),
    "8b-h100": ("llama3-8b", "h100", "8", 4, 512, 4096),
    "70b-tpu7x": ("llama3-70b", "tpu7x", "8x8x8", 2, 1024, 4096),
    "tied-one-chip": ("llama-small", "v6e", "1x1", 1, 16, 1024),
}


def spec_for(key: str) -> Spec:
    model, chip, topology, pods, sequences, length = REQUESTS[key]
    return spec_of(
        model, chip=chip, topology=topology, pods=pods, sequences=sequences, length=length
    )


@cache
def explanation_of(key: str) -> Explanation:
    return explain(spec_for(key))


@cache
def quotes_of(question: str) -> tuple[QuotedFigure, ...]:
    return _quoted(question, questions()[question]).figures


def lines_of(sheet: Explanation) -> Iterator[Derivation]:
    return (line for section in sheet.sections for line in section.lines)


def values_of(sheet: Explanation) -> dict[str, float]:
    """The first value of every symbol: those by the vendor's figures come last."""
    found = {entry.symbol: entry.value for entry in sheet.inputs}
    for line in lines_of(sheet):
        found.setdefault(line.symbol, line.computed.value)
    return found


def verdicts_of(sheet: Explanation, title: str) -> tuple[Verdict, ...]:
    return next(section.verdicts for section in sheet.sections if section.title == title)
