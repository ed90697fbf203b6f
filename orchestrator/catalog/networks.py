"""Models by name, as shapes."""

from functools import cache
from typing import Any

import msgspec

from orchestrator.catalog.tables import table
from orchestrator.errors import UnknownName
from orchestrator.types.model import Model


@cache
def _entries() -> dict[str, dict[str, Any]]:
    return table("models.toml")


def models() -> tuple[str, ...]:
    """The names of all models, families together and small ones first."""
    return tuple(_entries())


def model(name: str) -> Model:
    """One model, by its exact name."""
    shape = {key: value for key, value in _entry(name).items() if key != "source"}
    return msgspec.convert({"name": name, **shape}, Model)


def model_source(name: str) -> str:
    """The key of the source of that model's shape."""
    source: str = _entry(name)["source"]
    return source


def _entry(name: str) -> dict[str, Any]:
    if name not in _entries():
        raise UnknownName("model", name, list(models()))
    return _entries()[name]
