"""Finds trainers, trackers and backends by name: built in, installed, or by their dotted name.

A name is built in, or an entry point in the group `orch.KINDs` of an installed package, or a
reference `package.module:attribute`. A trainer may also be a whole module, `package.module`.
"""

import re
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.errors import MissingExtra, SpecError, UnknownName

TRAINERS = {"llama": "trainers.llama", "mlp": "trainers.mlp"}
BACKENDS = {
    "ray": "orchestrator.launch.ray.backend:RayBackend",
    "hosts": "orchestrator.launch.hosts.backend:HostsBackend",
}
TRACKERS = {"mlflow": "orchestrator.tracking.mlflow:MLflowTracker"}
# A module with one of these lines is a trainer: it need not stand in a package.
PROGRAM = re.compile(
    r"^(def program\b|program\s*[:=]|from\s.*\bimport\b.*\bprogram\b)", re.MULTILINE
)


def trainer_entry_point(name: str) -> EntryPoint:
    """The entry point of a trainer. It is not imported, because planning needs no JAX."""
    return _find("trainer", name, TRAINERS)


def backend_entry_point(name: str) -> EntryPoint:
    """The entry point of a backend, not imported."""
    return _find("backend", name, BACKENDS)


def tracker_entry_point(name: str) -> EntryPoint:
    """The entry point of a tracker, not imported."""
    return _find("tracker", name, TRACKERS)


def load(kind: str, name: str, built_in: Mapping[str, str]) -> Any:
    """The object with that name, imported."""
    try:
        return _find(kind, name, built_in).load()
    except (ImportError, AttributeError) as error:
        raise SpecError(f"{kind} {name!r} cannot be imported: {error}") from error


def _find(kind: str, name: str, built_in: Mapping[str, str]) -> EntryPoint:
    group = f"orch.{kind}s"
    if name in built_in:  # a search through installed packages would slow every plan
        return EntryPoint(name, built_in[name], group)
    registered = _registered(kind, built_in)
    if name in registered:
        return registered[name]
    reference = EntryPoint(name, name, group)
    if kind == "trainer" and name.isidentifier() and _has_program(source(name)):
        return reference
    if EntryPoint.pattern.fullmatch(name) and set(name) & {".", ":"} and source(reference.module):
        return reference
    raise UnknownName(kind, name, list(registered))


def _registered(kind: str, built_in: Mapping[str, str]) -> dict[str, EntryPoint]:
    """The entry points of a kind by name. No package can take the name of a built-in one."""
    group = f"orch.{kind}s"
    installed = sorted(entry_points(group=group), key=lambda one: one.name)
    ours = {name: EntryPoint(name, value, group) for name, value in built_in.items()}
    return ours | {one.name: one for one in installed if one.name not in ours}


def _has_program(file: Path | None) -> bool:
    """Whether a module's file defines a `program`; nothing is imported."""
    if file is None or file.suffix != ".py":
        return False
    return PROGRAM.search(file.read_text(encoding="utf-8", errors="replace")) is not None


def source(module: str) -> Path | None:
    """The file of a module, found without importing the module or its parents."""
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        if spec and spec.submodule_search_locations is None:
            return None
        folders = spec.submodule_search_locations if spec else None
        spec = _module_spec(".".join(parts[:depth]), folders)
        if spec is None:
            return None
    return Path(spec.origin) if spec and spec.origin else None


def _module_spec(name: str, folders: list[str] | None) -> ModuleSpec | None:
    specs = (finder.find_spec(name, folders) for finder in sys.meta_path)
    return next(filter(None, specs), None)


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
