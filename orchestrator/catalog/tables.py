"""Catalog room: the one way its TOML files are read. Knows where they lie, not what they mean."""

import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def table(name: str) -> dict[str, Any]:
    """The content of one file of this folder, named relative to it."""
    with (FOLDER / name).open("rb") as file:
        return tomllib.load(file)
