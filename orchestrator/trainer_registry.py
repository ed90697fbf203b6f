"""The trainers that orch finds: built in, installed, or any module by its dotted name.

A trainer is a module, or an object in a module, with `program(plan, mesh)`; `trainers.contract`
says what it returns. Nothing here imports a trainer: planning needs no JAX.
"""

import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from orchestrator.errors import UnknownName

ENTRY_POINTS = "orch.trainers"  # the group in which an installed package registers its trainers
BUILT_IN = {"llama": "trainers.llama", "mlp": "trainers.mlp"}


def names() -> list[str]:
    """Every trainer with a name of its own: the built-in ones, then the installed ones."""
    installed = {one.name for one in entry_points(group=ENTRY_POINTS)}
    return [*BUILT_IN, *sorted(installed - set(BUILT_IN))]


def find(name: str) -> EntryPoint:
    """Where the trainer is: `module` or `module:attribute`. Its `load()` imports it."""
    if name in BUILT_IN:
        return EntryPoint(name, BUILT_IN[name], ENTRY_POINTS)
    for one in entry_points(group=ENTRY_POINTS, name=name):
        return one
    reference = EntryPoint(name, name, ENTRY_POINTS)
    if EntryPoint.pattern.fullmatch(name) and set(name) & {".", ":"} and source(reference.module):
        return reference
    raise UnknownName("trainer", name, names())


def source(module: str) -> Path | None:
    """The file of a module, found without importing the module or its parents."""
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        if spec and spec.submodule_search_locations is None:
            return None
        folders = spec.submodule_search_locations if spec else None
        spec = _spec(".".join(parts[:depth]), folders)
        if spec is None:
            return None
    return Path(spec.origin) if spec and spec.origin else None


def _spec(name: str, folders: list[str] | None) -> ModuleSpec | None:
    found = (finder.find_spec(name, folders) for finder in sys.meta_path)
    return next(filter(None, found), None)
