"""The saved steps in a folder: each appears and disappears as a whole, and has checksums.

Orbax restores flipped bits silently, so a step is restored only if its files have their sha256.
"""

import errno
import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from orchestrator.values import codec
from trainers.files import file_digest, read_regular

Owner = tuple[int, int]  # a claim and an attempt

DELETED, DAMAGED = "deleted", "damaged"
UNFINISHED = "*.orbax-checkpoint-tmp*"
NAME = re.compile(r"(\d+)(?:-claim-(\d+)-attempt-(\d+))?")
CHECKSUMS = "sha256.json"
SHARD_SUMS = "sha256.process_{}.json"  # while a step is written
# What Orbax names the shards of a process, and their description.
SHARD = re.compile(r"(?:ocdbt\.process_(\d+)/|array_metadatas/process_(\d+)$)")
THREADS = 8
# Orbax's own notes, written after the sums are made. Restoring needs none of them.
NOT_SUMMED = {CHECKSUMS, "_CHECKPOINT_METADATA", "commit_success.txt"}
NOTES_OF_SHARDS = re.compile(r"sha256\.process_\d+\.json(\.partial)?")


@dataclass(frozen=True)
class StepFolders:
    """A folder with one directory per saved step, named by its number and by whose it is."""

    folder: Path

    def names(self) -> list[str]:
        """The names of the saved steps, oldest first."""
        names = [path.name for path in self.folder.iterdir() if NAME.fullmatch(path.name)]
        return sorted(names, key=lambda name: (step_of(name), owner_of(name)))

    def path(self, name: str) -> Path:
        return self.folder / name

    def prepare(self) -> None:
        """Make the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def read_small(self, name: str) -> bytes:
        """A file beside the steps."""
        return read_regular(self.folder / name)

    def create_small(self, name: str, content: bytes) -> None:
        """Create a file beside the steps, unless it is there."""
        path = self.folder / name
        if not path.exists():
            partial = path.with_suffix(".partial")
            partial.write_bytes(content)
            partial.rename(path)

    def is_whole(self, name: str) -> bool:
        """Whether a step has its sums: they come last."""
        return (self.folder / name / CHECKSUMS).exists()

    def sums_digest(self, name: str) -> str:
        """The sha256 of a step's manifest."""
        return sums_digest(self.folder / name)

    def fault(
        self, name: str, *, sha256: str | None = None, share: int = 0, of: int = 1
    ) -> str | None:
        """What is wrong with a step, or None. Each of several readers verifies its share."""
        return fault(self.folder / name, sha256=sha256, share=share, of=of)

    def delete(self, name: str) -> None:
        """Remove a step: one rename takes it out of the folder, then its files are deleted."""
        shutil.rmtree(self._move(name, DELETED))

    def set_aside(self, name: str) -> None:
        """Move a damaged step where it can be inspected, out of the way of the next save."""
        with suppress(FileNotFoundError):  # what is missing cannot be inspected
            self._move(name, DAMAGED)

    def sweep(self, owner: Owner) -> None:
        """Remove the half-written and half-deleted steps of killed processes, of an owner and of
        those before it: later ones may live.
        """
        for path in [*self.folder.glob(UNFINISHED), *self.folder.glob(f"{DELETED}/*")]:
            if owner_of(path.name) <= owner:
                shutil.rmtree(path, ignore_errors=True)  # its writer may still be at it
        with suppress(OSError):
            (self.folder / DELETED).rmdir()

    def _move(self, name: str, where: str) -> Path:
        target = self.folder / where / name
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        return self.path(name).rename(target)


def step_of(name: str) -> int:
    """The step that a folder is named after."""
    match = NAME.match(name)
    return int(match[1]) if match else 0


def owner_of(name: str) -> Owner:
    """The claim and the attempt that a folder is named after; zeros where there is no claim."""
    match = NAME.match(name)
    return (int(match[2]), int(match[3])) if match and match[2] else (0, 0)


# --- checksums


def sum_shards(step: Path, process: int) -> None:
    """Sum the files that a process wrote into a step, for whoever writes its manifest."""
    mine = [name for name in _files(step) if _writer(name) == process]
    _write_sums(step / SHARD_SUMS.format(process), _sums(step, mine))


def write_checksums(step: Path, processes: int) -> None:
    """Write the manifest of a step, which appears whole or not at all.

    It has the sums that the processes made of their shards, and those of the other files, which are
    small: descriptions and indices.
    """
    sums: dict[str, str] = {}
    for process in range(processes):
        # By name: a shared file system may list the files of other hosts a minute later.
        sums |= _read_sums(step / SHARD_SUMS.format(process))
    others = [name for name in _files(step) if name not in sums]
    if shards := [name for name in others if _writer(name) is not None]:
        raise OSError(errno.EIO, f"{shards[0]} has no sum of the process that wrote it", str(step))
    _write_sums(step / CHECKSUMS, sums | _sums(step, others))
    for process in range(processes):
        (step / SHARD_SUMS.format(process)).unlink()


def _writer(name: str) -> int | None:
    """The process that wrote a file; None for the files of the primary."""
    match = SHARD.match(name)
    return int(match[1] or match[2]) if match else None


def _sums(step: Path, names: Sequence[str]) -> dict[str, str]:
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(names, pool.map(lambda name: file_digest(step / name), names), strict=True))


def _write_sums(path: Path, sums: dict[str, str]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(msgspec.json.encode(sums, order="sorted"))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def _read_sums(path: Path) -> dict[str, str]:
    return codec.from_json(read_regular(path), dict[str, str])


def fault(step: Path, *, sha256: str | None = None, share: int = 0, of: int = 1) -> str | None:
    """What is wrong with a step, or None. Each of several readers verifies its share of files.

    `sha256` is that of the sums, as they were recorded.
    """
    try:
        expected = _read_sums(step / CHECKSUMS)
    except FileNotFoundError:
        return f"{CHECKSUMS} is missing"
    except (OSError, msgspec.DecodeError) as error:
        return f"{CHECKSUMS} cannot be read: {error}"
    if sha256 is not None and sums_digest(step) != sha256:
        return f"{CHECKSUMS} is not the one that was recorded"
    if unexpected := set(_files(step)) - set(expected):
        return f"{min(unexpected)} is not in {CHECKSUMS}"
    mine = sorted(expected.items())[share::of]
    with ThreadPoolExecutor(THREADS) as pool:
        checked = pool.map(lambda item: _file_fault(step / item[0], item[1]), mine)
        faults = [f"{name} {what}" for (name, _), what in zip(mine, checked, strict=True) if what]
    return faults[0] if faults else None


def sums_digest(step: Path) -> str:
    """The sha256 of a step's manifest."""
    return file_digest(step / CHECKSUMS)


def _files(step: Path) -> list[str]:
    paths = (path for path in step.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(step)) for path in paths if not _is_note(path.name))


def _is_note(name: str) -> bool:
    return name in NOT_SUMMED or NOTES_OF_SHARDS.fullmatch(name) is not None


def _file_fault(path: Path, expected: str) -> str | None:
    try:
        actual = file_digest(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if actual == expected else f"has sha256 {actual[:8]}, against {expected[:8]}"


# Which checkpoints of a run count: as its driver has recorded them, or all that a folder has.


class RecordedSave(Protocol):
    """A checkpoint that counts. `sha256` is that of its sums, None where nobody recorded it."""

    @property
    def step(self) -> int: ...
    @property
    def folder(self) -> str: ...
    @property
    def sha256(self) -> str | None: ...


class SaveLog(Protocol):
    """The checkpoints of a run, for one of its attempts."""

    def recorded(self) -> Sequence[RecordedSave]:
        """The newest checkpoints that count, the newest last."""
        ...

    def folder(self, step: int) -> str:
        """The name of the folder of a checkpoint that this attempt saves."""
        ...

    def report(self, step: int, sha256: str) -> None:
        """Report that a checkpoint of this attempt is whole."""
        ...

    def settle(self) -> None:
        """Wait a moment until the last report is recorded."""
        ...


class NamedSteps(Protocol):
    """The saved steps in a folder, or on a bucket."""

    def names(self) -> list[str]:
        """Their names, oldest first."""
        ...


@dataclass(frozen=True)
class ListedSave:
    """A checkpoint that was found in a folder."""

    step: int
    sha256: str | None = None

    @property
    def folder(self) -> str:
        return str(self.step)


@dataclass(frozen=True)
class ListedSaves:
    """Every checkpoint in a folder counts: one attempt at a time uses it."""

    folders: NamedSteps

    def recorded(self) -> Sequence[RecordedSave]:
        return [ListedSave(step_of(name)) for name in self.folders.names() if name.isdecimal()]

    def folder(self, step: int) -> str:
        return str(step)

    def report(self, step: int, sha256: str) -> None:
        """Its folder says that it is there."""

    def settle(self) -> None:
        """Nobody records."""
