"""Reads chips from their datasheets, one TOML file each."""

from functools import cache
from typing import Any

import msgspec

from orchestrator.catalog.chip import Chip, NamesChip
from orchestrator.catalog.tables import FOLDER, table
from orchestrator.errors import UnknownName


@cache
def chips() -> tuple[str, ...]:
    """The names of all chips: those of the files."""
    return tuple(sorted(path.stem for path in (FOLDER / "chips").glob("*.toml")))


@cache
def chip(name: str) -> Chip:
    """One chip of the catalog, by its exact name."""
    if name not in chips():
        raise UnknownName("chip", name, list(chips()))
    return defined(name, table(f"chips/{name}.toml"))


def chip_of(resources: NamesChip) -> Chip:
    """The chip of a spec's resources or of a plan."""
    if resources.chip_definition is None:
        return chip(resources.chip)
    return defined(resources.chip, resources.chip_definition)


def defined(name: str, definition: dict[str, Any]) -> Chip:
    """The chip that the content of a file defines."""
    return msgspec.convert({**definition, "name": name}, Chip)
