"""Catalog room: chips from their datasheets, one TOML file each."""

from functools import cache
from typing import Any

from orchestrator.catalog.chip import Chip, Quantity, Slices
from orchestrator.catalog.tables import FOLDER, table
from orchestrator.errors import UnknownName


@cache
def chips() -> tuple[str, ...]:
    """The names of all chips: those of the files."""
    return tuple(sorted(path.stem for path in (FOLDER / "chips").glob("*.toml")))


@cache
def chip(name: str) -> Chip:
    """One chip, by its exact name."""
    if name not in chips():
        raise UnknownName("chip", name, list(chips()))
    entries = {key: _value(entry) for key, entry in table(f"chips/{name}.toml").items()}
    slices = Slices(**entries.pop("slices"))
    return Chip(name=name, slices=slices, **entries)


def _value(entry: Any) -> Any:
    """A list is a tuple, {value, source} a Quantity, any other table holds more of these."""
    if isinstance(entry, list):
        return tuple(map(_value, entry))
    if not isinstance(entry, dict):
        return entry
    if entry.keys() == {"value", "source"}:
        return Quantity(value=float(entry["value"]), source=entry["source"])
    return {key: _value(inner) for key, inner in entry.items()}
