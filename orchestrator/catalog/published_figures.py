"""Published figures, each with its source and the formula that gives it, as data."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from orchestrator.catalog.tables import table


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
