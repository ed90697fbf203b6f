"""Compiled programs on disk, so that the same question is answered at once.

A file's name begins with the plan's digest, and goes on with a digest of its trainer and of the
versions of the compiler. An entry is
valid while its sources are the same: those of the trainer, of what it imports, and of the modules
that read the program. The Forecast is not cached: a program is compared with the current one.
"""

import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec
import platformdirs

from orchestrator.errors import ProofUnavailable
from orchestrator.prove import import_closure
from orchestrator.prove.compiled import PACKAGES, CacheEntry
from orchestrator.types import codec
from orchestrator.types.plan import Plan


@dataclass(frozen=True)
class CachedProgram:
    """What was compiled, and the seconds since."""

    entry: CacheEntry
    age_s: float


def folder() -> Path:
    return platformdirs.user_cache_path("orch") / "proofs"


def has_plan(plan: Plan) -> bool:
    """Whether any compiler's result for a plan is there: to know which is current takes longer."""
    return any(folder().glob(f"{plan.digest}.*"))


def find(plan: Plan) -> CachedProgram | None:
    """The result for that very program. A file that cannot be read counts as absent."""
    for path in folder().glob(f"{_key(plan)}.*.json"):
        try:
            entry = codec.from_json(path.read_bytes(), CacheEntry)
            age_s = max(0.0, time.time() - path.stat().st_mtime)
        except (FileNotFoundError, msgspec.DecodeError):
            continue
        if import_closure.are_current(entry.compiled.sources):
            return CachedProgram(entry, age_s)
    return None


def save(plan: Plan, entry: CacheEntry) -> None:
    """Write the entry whole or not at all, whoever else writes the same."""
    sources = codec.short(codec.digest(entry.compiled.sources))
    path = folder() / f"{_key(plan)}.{sources}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
            part.write(codec.to_json(entry))
        Path(part.name).replace(path)
    except OSError as error:
        raise ProofUnavailable(
            f"{path.parent}: no proof can be saved there: {error.strerror}"
        ) from error


def _key(plan: Plan) -> str:
    compiler = codec.digest([plan.trainer, *versions().values()])
    return f"{plan.digest}.{codec.short(compiler)}"


def versions() -> dict[str, str]:
    """Versions of what compiles; empty for a package that this machine lacks."""
    return {package: _version(package) for package in PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
