"""Compiled programs on disk, so that the same question is answered at once.

A file's name begins with the plan's digest. What follows is a digest of the compiler's other input:
the trainer, the topology as the compiler names it, the rates that price its schedule, and the
versions of the compiler. An entry is valid while the code that the compile process loaded is the
same. The Forecast is not cached: a program is compared with the current one.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator import plugins
from orchestrator.errors import ProofUnavailable, UnknownName
from orchestrator.proving.compiled import PACKAGES, CacheEntry, version
from orchestrator.proving.compiler import schedule_rates, target
from orchestrator.proving.proof_folder import folder
from orchestrator.values import codec
from orchestrator.values.plan import Plan


@dataclass(frozen=True)
class _CachedProgram:
    """What was compiled, and the seconds since."""

    entry: CacheEntry
    age_s: float


def find(plan: Plan) -> _CachedProgram | None:
    """The result for that very program. A file that cannot be read counts as absent."""
    try:
        key = _key(plan)
    except (ProofUnavailable, UnknownName):  # neither compiler nor trainer, and so no proof
        return None
    for path in folder().glob(f"{key}.*.json"):
        try:
            entry = codec.from_json(path.read_bytes(), CacheEntry)
            age_s = max(0.0, time.time() - path.stat().st_mtime)
        except (FileNotFoundError, msgspec.DecodeError):
            continue
        if entry.compiled.code.is_current():
            return _CachedProgram(entry, age_s)
    return None


def save(plan: Plan, entry: CacheEntry) -> None:
    """Write the entry whole or not at all, whoever else writes the same."""
    code = codec.short(codec.digest(entry.compiled.code))
    path = folder() / f"{_key(plan)}.{code}.json"
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
    trainer = plugins.trainer_entry_point(plan.trainer).value
    rates = codec.to_json(schedule_rates(plan)).decode()
    compiler = codec.digest([trainer, target(plan), rates, _versions()])
    return f"{plan.digest}.{codec.short(compiler)}"


def _versions() -> dict[str, str]:
    """Versions of what compiles; empty for a package that this machine lacks."""
    return {package: version(package) for package in PACKAGES}
