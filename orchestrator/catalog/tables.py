"""Reads the TOML files of the catalog."""

import tomllib
from typing import Any

from orchestrator.resources import resource

FOLDER = resource("catalog")


def table(name: str) -> dict[str, Any]:
    """The content of one file of this folder, named relative to it."""
    with (FOLDER / name).open("rb") as file:
        return tomllib.load(file)
