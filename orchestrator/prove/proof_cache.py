"""Prove room: what was compiled before, on disk, so that the same question is answered at once.

The key is everything that the program depends on: what the plan does, the sources of the trainers
and of what they import here, the sources that read the program, and the compiler's versions. The
Forecast is not in it: what was compiled is held against the Forecast of the day.
"""

import hashlib
import os
import re
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

import msgspec

from orchestrator.errors import ProofUnavailable
from orchestrator.prove.compiled import PACKAGES, CacheEntry
from orchestrator.types import codec
from orchestrator.types.plan import Plan

READERS = ("compile_process.py", "compiled.py", "targets.py")  # and all of hlo/
IMPORTED = re.compile(
    r"^from (orchestrator\.[\w.]+) import|^import (orchestrator\.[\w.]+)", re.MULTILINE
)


@dataclass(frozen=True)
class ProofCache:
    """What was compiled, and the seconds since."""

    recorded: CacheEntry
    age_s: float


def folder() -> Path:
    """Where the results lie: below XDG_CACHE_HOME, which is ~/.cache unless it says otherwise."""
    said = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(said) if Path(said).is_absolute() else Path.home() / ".cache"
    return home / "orch" / "proofs"


def find(plan: Plan, trainer: str) -> ProofCache | None:
    """The result for that very program; what cannot be read is as good as absent."""
    path = _path(plan, trainer)
    try:
        text = path.read_bytes()
        age_s = max(0.0, time.time() - path.stat().st_mtime)
        return ProofCache(codec.from_json(text, CacheEntry), age_s)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def keep(plan: Plan, trainer: str, recorded: CacheEntry) -> None:
    """Written whole or not at all, whoever else writes the same."""
    path = _path(plan, trainer)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
            part.write(codec.to_json(recorded))
        Path(part.name).replace(path)
    except OSError as error:
        raise ProofUnavailable(
            f"{path.parent}: no proof can be kept there: {error.strerror}"
        ) from error


def _path(plan: Plan, trainer: str) -> Path:
    key = [plan.digest, trainer, sources_digest(), *versions().values()]
    return folder() / f"{codec.digest(key)}.json"


def versions() -> dict[str, str]:
    """Of what compiles; empty for a package that this machine lacks."""
    return {package: _version(package) for package in PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def sources_digest() -> str:
    """Of every file that says what is compiled or how it is read."""
    trainers = sorted(_module("trainers").parent.rglob("*.py"))
    room = Path(__file__).parent
    readers = [*map(room.joinpath, READERS), *sorted((room / "hlo").glob("*.py"))]
    imported = {name for path in trainers for name in _imports(path.read_text(encoding="utf-8"))}
    found = hashlib.sha256()
    for path in [*trainers, *readers, *map(_module, sorted(imported))]:
        found.update(path.read_bytes())
    return found.hexdigest()


def _imports(text: str) -> list[str]:
    return [a or b for a, b in IMPORTED.findall(text)]


def _module(name: str) -> Path:
    spec = util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)
