"""Where each outside number comes from."""

from dataclasses import dataclass
from functools import cache

from orchestrator.catalog.tables import table


@dataclass(frozen=True, kw_only=True)
class Source:
    """A public document or an observation. An undated one has `date` = "read" and the day."""

    key: str
    title: str
    where: str
    date: str
    note: str = ""


@cache
def sources() -> dict[str, Source]:
    """Every source that a quantity, a chip or a model names, by its key."""
    return {key: Source(key=key, **entry) for key, entry in table("sources.toml").items()}
