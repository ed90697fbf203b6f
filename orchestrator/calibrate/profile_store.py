"""Stores chip profiles, each in a file with its digest as the name."""

import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs

from orchestrator.errors import MeasurementFailed, UnknownName
from orchestrator.types import codec
from orchestrator.types.chip_profile import ChipProfile, Machine

SCHEMA = 6


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
    """The machine's profile that was stored last."""
    return next((one for one in stored_profiles() if one.profile.machine == machine), None)


def find(prefix: str) -> StoredProfile:
    """The profile whose digest has that prefix."""
    profiles = stored_profiles()
    same = [one for one in profiles if prefix and one.path.stem.startswith(prefix)]
    if len(same) == 1:
        return same[0]
    known = [codec.short(one.path.stem) for one in profiles]
    raise UnknownName("chip profile", prefix, known or ["none: orch calibrate makes one"])


def stored_profiles() -> list[StoredProfile]:
    """All of them, the newest first. A file that cannot be read counts as absent."""
    ages = {}
    for path in folder().glob("*.json"):
        with suppress(OSError, msgspec.DecodeError):
            profile = codec.from_json(path.read_bytes(), ChipProfile)
            if profile.schema == SCHEMA and codec.digest(profile) == path.stem:
                ages[path] = path.stat().st_mtime, profile
    ordered = sorted(ages.items(), key=lambda one: -one[1][0])
    return [StoredProfile(profile, path) for path, (_, profile) in ordered]
