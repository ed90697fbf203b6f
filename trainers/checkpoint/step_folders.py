"""The saved steps in a folder: each appears and disappears as a whole, and has checksums.

Orbax restores flipped bits silently, so a step is restored only if its files have their sha256.
"""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trainers.file_digest import file_digest

DELETED, DAMAGED = "deleted", "damaged"
UNFINISHED = "*.orbax-checkpoint-tmp*"
CHECKSUMS = "sha256.json"
THREADS = 8
# Orbax's own notes, written after the sums are made. Restoring needs none of them.
NOT_SUMMED = {CHECKSUMS, "_CHECKPOINT_METADATA", "commit_success.txt"}


@dataclass(frozen=True)
class StepFolders:
    """A folder with one directory per step, named by its number."""

    folder: Path

    def steps(self) -> list[int]:
        """The saved steps, oldest first."""
        names = [path.name for path in self.folder.iterdir()]
        return sorted(int(name) for name in names if name.isdecimal())

    def path(self, step: int) -> Path:
        return self.folder / str(step)

    def delete(self, step: int) -> None:
        """Remove a step: one rename takes it out of the folder, then its files are deleted."""
        shutil.rmtree(self._move(step, DELETED))

    def set_aside(self, step: int) -> None:
        """Move a damaged step where it can be inspected, out of the way of the next save."""
        self._move(step, DAMAGED)

    def sweep(self) -> None:
        """Remove the half-written and half-deleted steps of a killed process."""
        for path in [*self.folder.glob(UNFINISHED), self.folder / DELETED]:
            if path.exists():
                shutil.rmtree(path)

    def _move(self, step: int, where: str) -> Path:
        target = self.folder / where / str(step)
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        return self.path(step).rename(target)


# --- checksums


def write_checksums(step: Path) -> None:
    """Sum every file of a step into its manifest, which appears whole or not at all."""
    names = _files(step)
    with ThreadPoolExecutor(THREADS) as pool:
        digests = pool.map(lambda name: file_digest(step / name), names)
        sums = dict(zip(names, digests, strict=True))
    partial = step / f"{CHECKSUMS}.partial"
    with partial.open("wb") as file:
        file.write(msgspec.json.encode(sums, order="sorted"))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(step / CHECKSUMS)


def fault(step: Path, *, share: int = 0, of: int = 1) -> str | None:
    """What is wrong with a step, or None. Each of several readers verifies its share of files."""
    try:
        expected = msgspec.json.decode((step / CHECKSUMS).read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return f"{CHECKSUMS} is missing"
    except (OSError, msgspec.DecodeError) as error:
        return f"{CHECKSUMS} cannot be read: {error}"
    if unexpected := set(_files(step)) - set(expected):
        return f"{min(unexpected)} is not in {CHECKSUMS}"
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
        actual = file_digest(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if actual == expected else f"has sha256 {actual[:8]}, against {expected[:8]}"
