"""The optional dependencies of orch, and what to install where one is missing.

Looking for a package does not import it.
"""

import re
from importlib import metadata
from importlib.util import find_spec

from orchestrator.errors import MissingExtra

# A package for each purpose of an extra; pyproject.toml lists all that it installs.
PACKAGES = {
    "prove": ("jax", "optax", "orbax", "safetensors"),
    "run": ("jax", "optax", "orbax", "safetensors", "ray", "mlflow"),
    "score": ("scipy",),
    "bucket": ("obstore",),
}

PINNED = re.compile(r"([\w.-]+)(?:\[[^]]*\])?==([\w.]+)(?:;.*)?")


def pinned() -> dict[str, str]:
    """The packages with an exact version, because orch depends on how that version behaves."""
    lines = [PINNED.fullmatch(line) for line in metadata.requires("orch") or ()]
    return {match[1]: match[2] for match in lines if match}


def missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [name for name in PACKAGES[extra] if find_spec(name) is None]


def require(extra: str) -> None:
    """Refuse to go on without an extra; the error says how to install it."""
    if absent := missing(extra):
        raise MissingExtra(extra, absent)
