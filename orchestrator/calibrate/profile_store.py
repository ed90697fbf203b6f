"""Stores chip profiles, each in a file with its digest as the name."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs

from orchestrator.errors import MeasurementFailed, UnknownName
from orchestrator.types import codec
from orchestrator.types.chip_profile import ChipProfile, Machine

SCHEMA = 4


@dataclass(frozen=True)
class StoredProfile:
    """A profile and its file."""

    profile: ChipProfile
    path: Path


def folder() -> Path:
    """~/.cache/orch/profiles, or below XDG_CACHE_HOME."""
    return platformdirs.user_cache_path("orch") / "profiles"


def store(profile: ChipProfile) -> StoredProfile:
    """Write the whole file or none. A file that exists already is the same."""
    path = folder() / f"{codec.digest(profile)}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
            part.write(codec.to_pretty_json(profile).encode())
        Path(part.name).replace(path)
    except OSError as error:
        raise MeasurementFailed(f"{path}: cannot be written: {error.strerror}") from error
    return StoredProfile(profile, path)


def newest(machine: Machine) -> StoredProfile | None:
    """The machine's profile that was stored last. An unreadable file counts as absent."""
    paths = sorted(folder().glob("*.json"), key=modified_s, reverse=True)
    stored = (read(path) for path in paths)
    return next((one for one in stored if one and one.profile.machine == machine), None)


def find(prefix: str) -> StoredProfile:
    """The profile whose digest has that prefix."""
    paths = sorted(folder().glob(f"{prefix}*.json")) if prefix.isalnum() else []
    if len(paths) == 1 and (stored := read(paths[0])):
        return stored
    stored_names = [codec.short(path.stem) for path in sorted(folder().glob("*.json"))]
    raise UnknownName("chip profile", prefix, stored_names or ["none: orch calibrate makes one"])


def read(path: Path) -> StoredProfile | None:
    try:
        profile = codec.from_json(path.read_bytes(), ChipProfile)
    except (OSError, msgspec.DecodeError):
        return None
    if profile.schema != SCHEMA or codec.digest(profile) != path.stem:
        return None
    return StoredProfile(profile, path)


def modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
