"""The difference between two plans, as values."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class PlanReference:
    """Which plan it is."""

    name: str
    digest: str
    spec_digest: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class KeyDiff:
    """A key whose values differ; None where one of them lacks it."""

    key: str
    first: bool | float | str | None
    second: bool | float | str | None


@dataclass(frozen=True, kw_only=True)
class LineDiff:
    """A ledger line in both plans; None where a plan has no such line.

    `part` is the phase of a line of bytes, or the resource that a line of seconds keeps busy.
    """

    name: str
    part: str
    unit: Literal["bytes", "s"]
    first: float | None
    second: float | None


@dataclass(frozen=True, kw_only=True)
class PlanDiff:
    """What differs between two plans, and what that does to each figure of their forecasts.

    `memory` ends each phase with a line named `sum`. `figures` are the forecast's, by
    their keys in it; `bounds` name what each plan is bound by.
    """

    schema: int
    plans: tuple[PlanReference, PlanReference]
    requested: tuple[KeyDiff, ...]
    decided: tuple[KeyDiff, ...]
    memory: tuple[LineDiff, ...]
    time: tuple[LineDiff, ...]
    figures: tuple[KeyDiff, ...]
    bounds: tuple[str, str]
