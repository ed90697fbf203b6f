"""Calibrate room: the profiles that are kept, each in a file that its digest names."""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.errors import MeasurementFailed, UnknownName
from orchestrator.types import codec
from orchestrator.types.chip_profile import ChipProfile, Machine

SCHEMA = 3


@dataclass(frozen=True)
class Kept:
    """A profile, where it lies, and the seconds since it was measured."""

    profile: ChipProfile
    path: Path
    age_s: float


def folder() -> Path:
    """Below XDG_CACHE_HOME, which is ~/.cache unless it says otherwise."""
    said = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(said) if Path(said).is_absolute() else Path.home() / ".cache"
    return home / "orch" / "profiles"


def keep(profile: ChipProfile) -> Kept:
    """Written whole or not at all; a profile that is there already is the same."""
    path = folder() / f"{codec.digest(profile)}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
            part.write(codec.to_pretty_json(profile).encode())
        Path(part.name).replace(path)
    except OSError as error:
        raise MeasurementFailed(f"{path}: cannot be written: {error.strerror}") from error
    return Kept(profile, path, 0.0)


def newest(machine: Machine) -> Kept | None:
    """The profile of that machine that was kept last; what cannot be read is as good as absent."""
    paths = sorted(folder().glob("*.json"), key=_written_s, reverse=True)
    found = (_read(path) for path in paths)
    return next((kept for kept in found if kept and kept.profile.machine == machine), None)


def find(beginning: str) -> Kept:
    """The profile whose digest begins like that."""
    paths = sorted(folder().glob(f"{beginning}*.json")) if beginning.isalnum() else []
    if len(paths) == 1 and (kept := _read(paths[0])):
        return kept
    known = [codec.short(path.stem) for path in sorted(folder().glob("*.json"))]
    raise UnknownName("chip profile", beginning, known or ["none: orch calibrate makes one"])


def _read(path: Path) -> Kept | None:
    try:
        profile = codec.from_json(path.read_bytes(), ChipProfile)
    except (OSError, msgspec.DecodeError):
        return None
    if profile.schema != SCHEMA or codec.digest(profile) != path.stem:
        return None
    return Kept(profile, path, max(0.0, time.time() - _written_s(path)))


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
