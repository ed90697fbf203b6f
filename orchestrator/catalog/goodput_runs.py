"""Published shares of effective time, with what their sources say of failures and recoveries."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec

from orchestrator.catalog.tables import table
from orchestrator.types.goodput import Uncertain

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
