"""The optional dependencies of orch, and what to install where one is missing.

Looking for a package does not import it.
"""

from importlib.util import find_spec

from orchestrator.errors import MissingExtra

# A package for each purpose of an extra; pyproject.toml lists all that it installs.
PACKAGES = {
    "prove": ("jax", "optax", "orbax"),
    "run": ("jax", "optax", "orbax", "ray", "mlflow"),
    "score": ("scipy",),
}


def missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [name for name in PACKAGES[extra] if find_spec(name) is None]


def require(extra: str) -> None:
    """Refuse to go on without an extra; the error says how to install it."""
    if absent := missing(extra):
        raise MissingExtra(extra, absent)
