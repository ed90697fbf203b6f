"""The sha256 of every file of a step, in a file of the step.

Orbax restores flipped bits silently; what these sums do not confirm is not restored.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

FILE_NAME = "sha256.json"
THREADS = 8
# Orbax's own notes, written after the sums are made. Restoring needs none of them.
NOT_SUMMED = {FILE_NAME, "_CHECKPOINT_METADATA", "commit_success.txt"}


def write(step: Path) -> None:
    """Sum every file of a step into its manifest, which appears whole or not at all."""
    names = _files(step)
    with ThreadPoolExecutor(THREADS) as pool:
        sums = dict(zip(names, pool.map(lambda name: _sum(step / name), names), strict=True))
    partial = step / f"{FILE_NAME}.partial"
    with partial.open("wb") as file:
        file.write(msgspec.json.encode(sums, order="sorted"))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(step / FILE_NAME)


def fault(step: Path, *, share: int = 0, of: int = 1) -> str | None:
    """What is wrong with a step, or None. Each of several readers verifies its share of files."""
    try:
        expected = msgspec.json.decode((step / FILE_NAME).read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return f"{FILE_NAME} is missing"
    except (OSError, msgspec.DecodeError) as error:
        return f"{FILE_NAME} cannot be read: {error}"
    if unexpected := set(_files(step)) - set(expected):
        return f"{min(unexpected)} is not in {FILE_NAME}"
    mine = sorted(expected.items())[share::of]
    with ThreadPoolExecutor(THREADS) as pool:
        checked = pool.map(lambda item: _file_fault(step / item[0], item[1]), mine)
        faults = [f"{name} {what}" for (name, _), what in zip(mine, checked, strict=True) if what]
    return faults[0] if faults else None


def _files(step: Path) -> list[str]:
    paths = (path for path in step.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(step)) for path in paths if path.name not in NOT_SUMMED)


def _file_fault(path: Path, expected: str) -> str | None:
    try:
        actual = _sum(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if actual == expected else f"has sha256 {actual[:8]}, against {expected[:8]}"


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
