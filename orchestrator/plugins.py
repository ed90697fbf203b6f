"""Finds trainers, trackers and backends by name: built in, an entry point of the group `orch.KINDs`
in an installed package, or `package.module:attribute` (for a trainer, a module).
"""

import json
import re
import sys
from contextlib import suppress
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.errors import MissingExtra, SpecError, UnknownName

_BUILT_IN = {
    "trainer": {"llama": "trainers.llama", "mlp": "trainers.mlp"},
    "backend": {
        "ray": "orchestrator.launch.ray.backend:RayBackend",
        "hosts": "orchestrator.launch.hosts.backend:HostsBackend",
    },
    "tracker": {
        "mlflow": "orchestrator.tracking.mlflow:MLflowTracker",
        "lines": "orchestrator.tracking.lines:LinesTracker",
        "wandb": "orchestrator.tracking.wandb:WandbTracker",
    },
}
# A module with one of these lines is a trainer: it need not be part of a package.
_PROGRAM = re.compile(
    r"^(def program\b|program\s*[:=]|from\s.*\bimport\b.*\bprogram\b)", re.MULTILINE
)


def trainer_entry_point(name: str) -> EntryPoint:
    """Return the entry point of a trainer. It is not imported, because planning needs no JAX."""
    return entry_point("trainer", name)


def load(kind: str, name: str) -> Any:
    try:
        return entry_point(kind, name).load()
    except (ImportError, AttributeError) as error:
        raise SpecError(f"{kind} {name!r} cannot be imported: {error}") from error


def entry_point(kind: str, name: str) -> EntryPoint:
    group, built_in = f"orch.{kind}s", _BUILT_IN[kind]
    if name in built_in:  # a search through installed packages would slow every plan
        return EntryPoint(name, built_in[name], group)
    # No package can take the name of a built-in one.
    installed = sorted(entry_points(group=group), key=lambda point: point.name)
    registered = {point.name: point for point in installed if point.name not in built_in}
    if name in registered:
        return registered[name]
    reference = EntryPoint(name, name, group)
    with suppress(OSError):  # the working directory was removed
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)  # the last one: no file there hides another module
    if kind == "trainer" and name.isidentifier():
        # A module of its own whose file defines a `program`; nothing is imported.
        file = source(name)
        if file is not None and file.suffix == ".py":
            text = file.read_text(encoding="utf-8", errors="replace")
            if _PROGRAM.search(text):
                return reference
    if EntryPoint.pattern.fullmatch(name) and set(name) & {".", ":"} and source(reference.module):
        return reference
    raise UnknownName(kind, name, [*built_in, *registered])


def source(module: str) -> Path | None:
    """Return the file of a module, found without importing the module or its parents."""
    first, *inner = module.split(".")
    spec = next(filter(None, (finder.find_spec(first, None) for finder in sys.meta_path)), None)
    for name in inner:
        folders = spec.submodule_search_locations if spec else None
        # By its own name: a folder without __init__.py would look for its parent in sys.modules.
        spec = PathFinder.find_spec(name, folders) if folders is not None else None
    return Path(spec.origin) if spec and spec.origin else None


# A package for each purpose of an extra; pyproject.toml lists all that it installs.
PACKAGES = {
    "prove": ("jax", "optax", "orbax", "safetensors"),
    "run": ("jax", "optax", "orbax", "safetensors", "ray", "mlflow"),
    "score": ("scipy",),
    "bucket": ("obstore",),
    "data": ("tokenizers",),
    "gpu": ("jax", "optax", "orbax", "safetensors", "jax_cuda12_plugin"),
}

_PINNED = re.compile(r"([\w.-]+)(?:\[[^]]*\])?==([\w.]+)(?:;.*)?")


def pinned() -> dict[str, str]:
    """Return the packages with an exact version, on whose behavior orch depends."""
    lines = [_PINNED.fullmatch(line) for line in metadata.requires("orch") or ()]
    return {match[1]: match[2] for match in lines if match}


def missing(extra: str) -> list[str]:
    return [name for name in PACKAGES[extra] if find_spec(name) is None]


def require(extra: str) -> None:
    """Refuse to go on without an extra; the error says how to install it."""
    if absent := missing(extra):
        missing_packages = f"not installed here: {', '.join(absent)}"
        raise MissingExtra(missing_packages, next_command=install_command(extra))


def install_command(extra: str) -> str:
    """Return what installs an extra, from the wheel or folder that pip installed orch from. No
    package index carries this project: where pip left no record, a person names the wheel.
    """
    record = metadata.distribution("orch").read_text("direct_url.json")
    origin = json.loads(record)["url"] if record else "file:///PATH/TO/WHEEL"
    return f"pip install 'orch[{extra}] @ {origin}'"
