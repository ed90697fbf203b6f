"""What serving engines reach on each kind of chip, and answers that others published."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import NamedTuple

import msgspec
from msgspec import field

from orchestrator.catalog.chips import table
from orchestrator.catalog.published import PublishedFigure
from orchestrator.values.codec import Value
from orchestrator.values.serving import ANY_ENGINE, EngineConstants

_LEARNED = "serving.toml"
_QUOTES = "serving_quotes.toml"


class ServingConstants(EngineConstants):
    """Constants of an engine on a kind of chip, the `runs` that they were learned from, and the
    half width of the 80 % interval as the logarithm of a factor.
    """

    runs: int
    spread: float

    @property
    def engine(self) -> EngineConstants:
        own = {each.name: getattr(self, each.name) for each in fields(EngineConstants)}
        return EngineConstants(**own)


class FirstToken(NamedTuple):
    """The TTFT of an engine: `begins_s` before the first step of a request, and a `share` of the
    time that a simulation with its constants has.
    """

    begins_s: float
    share: float


_Table = Mapping[str, Mapping[str, Mapping[str, float]]]


class _Learned(Value):
    """The file: half widths of intervals by what is known of a run, the factors over all times of
    versions of a software, constants by engine and chip, those of `disaggregated` slices, what
    becomes of prompts there (`handover`), first tokens, and the shares of a baseline.
    """

    spread: Mapping[str, float]
    version: Mapping[str, float]
    constants: _Table
    disaggregated: _Table
    disaggregated_version: Mapping[str, float]
    handover: Mapping[str, float]
    ttft: Mapping[str, FirstToken]
    baseline: Mapping[str, float]


class OpenAnswer(Value):
    """An exercise without a printed answer, and this project's."""

    about: str
    unit: str
    formula: str
    inputs: dict[str, int | float] = field(default_factory=dict)
    value: float


@cache
def answers() -> tuple[OpenAnswer, ...]:
    return msgspec.convert(table(_QUOTES)["answers"], tuple[OpenAnswer, ...])


class _ServingQuestion(Value):
    """A part of the book that has answers on inference; `None` suits every model, or every chip."""

    title: str
    model: str | None = None
    chip: str | None = None


@cache
def questions() -> dict[str, _ServingQuestion]:
    return msgspec.convert(table(_QUOTES)["questions"], dict[str, _ServingQuestion])


@cache
def figures() -> tuple[PublishedFigure, ...]:
    return msgspec.convert(table(_QUOTES)["figures"], tuple[PublishedFigure, ...])


@cache
def learned() -> _Learned:
    return msgspec.convert(table(_LEARNED), _Learned)


def engines() -> tuple[str, ...]:
    """Return the names of engines with published runs, and that of all others."""
    return (ANY_ENGINE, *sorted(name for name in learned().constants if name != ANY_ENGINE))


def constants_of(engine: str, chip: str, *, disaggregated: bool = False) -> ServingConstants:
    """Return the constants of an engine on a chip: of the engine by itself where no run on the chip
    is published, and of any engine where none is.
    """
    table = learned().disaggregated if disaggregated else learned().constants
    own = table.get(engine, {})
    found, spread = own.get(chip, own.get(ANY_ENGINE)), "known"
    if found is None or engine == ANY_ENGINE:
        others = table[ANY_ENGINE]
        found, spread = others.get(chip, others[ANY_ENGINE]), "unknown"
    elif disaggregated:
        spread = "disaggregated"
    numbers = {name: value for name, value in found.items() if name != "runs"}
    return msgspec.convert(
        {**numbers, "runs": int(found["runs"]), "spread": learned().spread[spread]},
        ServingConstants,
    )
