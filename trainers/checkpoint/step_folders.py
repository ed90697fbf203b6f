"""The saved steps in a folder: each appears and disappears as a whole, and has checksums. Orbax
writes and reads them, but restores flipped bits and casts types silently: so each process sums its
shards before a step becomes visible, and a restore first checks sums and shapes.
"""

import errno
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import msgspec
import orbax.checkpoint as ocp
from orbax.checkpoint import options

from orchestrator.storage.addresses import file_digest, read_regular
from orchestrator.values import codec

_Tree = Any
Owner = tuple[int, int]  # a claim and an attempt

_DELETED, _DAMAGED = "deleted", "damaged"
_UNFINISHED = "*.orbax-checkpoint-tmp*"
NAME = re.compile(r"(\d+)(?:-claim-(\d+)-attempt-(\d+))?")
_CHECKSUMS = "sha256.json"
_SHARD_SUMS = "sha256.process_{}.json"  # while a step is written
# What Orbax names the shards of a process, and their description.
_SHARD = re.compile(r"(?:ocdbt\.process_(\d+)/|array_metadatas/process_(\d+)$)")
_THREADS = 8
_Shape = tuple[str, tuple[int, ...]]  # the type of a leaf, and its shape
Shapes = dict[str, _Shape]  # by the names of leaves
Rows = Mapping[str, int]  # rows of a table, by the last part of its name
NO_TABLES: Rows = {}
# Orbax's own notes, written after the sums are made. Restoring needs none of them.
_NOT_SUMMED = {_CHECKSUMS, "_CHECKPOINT_METADATA", "commit_success.txt"}
_NOTES_OF_SHARDS = re.compile(r"sha256\.process_\d+\.json(\.partial)?")


@dataclass(frozen=True)
class StepFolders:
    """A folder with one directory per saved step, named by its number and by whose it is."""

    folder: Path

    def names(self) -> list[str]:
        names = [path.name for path in self.folder.iterdir() if NAME.fullmatch(path.name)]
        return sorted(names, key=age)

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def read_small(self, name: str) -> bytes:
        return read_regular(self.folder / name)

    def create_small(self, name: str, content: bytes) -> None:
        """Create a file in the folder of the steps, unless it is there."""
        path = self.folder / name
        if not path.exists():
            partial = path.with_suffix(".partial")
            partial.write_bytes(content)
            partial.rename(path)

    def is_whole(self, name: str) -> bool:
        """Whether a step has its sums: they come last."""
        return (self.folder / name / _CHECKSUMS).exists()

    def sums_digest(self, name: str) -> str:
        return file_digest(self.folder / name / _CHECKSUMS)

    def fault(
        self, name: str, *, sha256: str | None = None, share: int = 0, of: int = 1
    ) -> str | None:
        """Return what is wrong with a step, or None. Each of several readers verifies its share."""
        step = self.folder / name
        try:
            expected = _read_sums(step / _CHECKSUMS)
        except FileNotFoundError:
            return f"{_CHECKSUMS} is missing"
        except (OSError, msgspec.DecodeError) as error:
            return f"{_CHECKSUMS} cannot be read: {error}"
        if sha256 is not None and self.sums_digest(name) != sha256:
            return f"{_CHECKSUMS} is not the one that was recorded"
        if unexpected := set(_files(step)) - set(expected):
            return f"{min(unexpected)} is not in {_CHECKSUMS}"

        def file_fault(file: str) -> str | None:
            try:
                actual = file_digest(step / file)
            except OSError as error:
                return f"{file} cannot be read: {error.strerror}"
            if actual == expected[file]:
                return None
            return f"{file} has sha256 {actual[:8]}, against {expected[file][:8]}"

        with ThreadPoolExecutor(_THREADS) as pool:
            faults = pool.map(file_fault, sorted(expected)[share::of])
        return next(filter(None, faults), None)

    def delete(self, name: str) -> None:
        """Remove a step: one rename takes it out of the folder, and then its files are deleted."""
        shutil.rmtree(self._move(name, _DELETED))

    def set_aside(self, name: str) -> None:
        """Move a damaged step where it can be inspected, out of the way of the next save."""
        with suppress(FileNotFoundError):  # what is missing cannot be inspected
            self._move(name, _DAMAGED)

    def sweep(self, owner: Owner) -> None:
        """Remove half-written and half-deleted steps of killed processes up to this owner."""
        for path in [*self.folder.glob(_UNFINISHED), *self.folder.glob(f"{_DELETED}/*")]:
            if owner_of(path.name) <= owner:
                shutil.rmtree(path, ignore_errors=True)  # its writer may still be at it
        with suppress(OSError):
            (self.folder / _DELETED).rmdir()

    def _move(self, name: str, where: str) -> Path:
        target = self.folder / where / name
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        return (self.folder / name).rename(target)


def age(name: str) -> tuple[int, Owner]:
    match = NAME.match(name)
    return int(match[1]) if match else 0, owner_of(name)


def owner_of(name: str) -> Owner:
    """Return the claim and the attempt that a folder is named after; zeros if it names none."""
    match = NAME.match(name)
    return (int(match[2]), int(match[3])) if match and match[2] else (0, 0)


def _sum_shards(step: Path, process: int) -> None:
    """Sum the files that a process wrote into a step, for whoever writes its manifest."""
    mine = [name for name in _files(step) if _writer(name) == process]
    _write_sums(step / _SHARD_SUMS.format(process), _sums(step, mine))


def _write_checksums(step: Path, processes: int) -> None:
    """Write the manifest of a step, which appears whole or not at all."""
    # It has the sums of the shards, and those of other files, which are small.
    sums: dict[str, str] = {}
    for process in range(processes):
        # By name: a shared file system may list the files of other hosts a minute later.
        sums |= _read_sums(step / _SHARD_SUMS.format(process))
    others = [name for name in _files(step) if name not in sums]
    if shards := [name for name in others if _writer(name) is not None]:
        raise OSError(errno.EIO, f"{shards[0]} has no sum of the process that wrote it", str(step))
    _write_sums(step / _CHECKSUMS, sums | _sums(step, others))
    for process in range(processes):
        (step / _SHARD_SUMS.format(process)).unlink()


def _writer(name: str) -> int | None:
    """The process that wrote a file; None for a file of the primary."""
    match = _SHARD.match(name)
    return int(match[1] or match[2]) if match else None


def _sums(step: Path, names: Sequence[str]) -> dict[str, str]:
    with ThreadPoolExecutor(_THREADS) as pool:
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


def _files(step: Path) -> list[str]:
    paths = (path for path in step.rglob("*") if path.is_file())
    return sorted(
        str(path.relative_to(step))
        for path in paths
        if path.name not in _NOT_SUMMED and not _NOTES_OF_SHARDS.fullmatch(path.name)
    )


# Orbax, with these checksums

TIMEOUT_S = 600
# Orbax logs its own steps there; they would hide those of the run.
logging.getLogger("absl").setLevel(logging.WARNING)


class _Summed(ocp.StandardCheckpointHandler):  # type: ignore[misc]
    """Orbax's handler of a tree of arrays. The primary finalizes once all have written."""

    async def async_save(self, directory: Any, *args: Any, **named: Any) -> list[Any]:
        """Write the shards of this process and then sum them: each process reads only its own."""
        written = await super().async_save(directory, *args, **named)
        return [_SummedShards(written or [], directory)]

    def finalize(self, directory: Any) -> None:
        """Complete the hidden directory of a step; Orbax renames it afterwards."""
        super().finalize(directory)
        _write_checksums(Path(directory), jax.process_count())


class _SummedShards:
    """Orbax waits for this future of a process before it tells the others that it has written."""

    def __init__(self, written: Sequence[Any], directory: Any) -> None:
        self._written, self._directory = written, directory

    def result(self, timeout: float | None = None) -> None:
        """Wait until the shards are written, and sum them."""
        for future in self._written:
            future.result(timeout)
        # Orbax may pass a directory that it is still creating; it exists once shards are written.
        directory = getattr(self._directory, "path", self._directory)
        _sum_shards(Path(directory), jax.process_index())


@ocp.args.register_with_handler(_Summed, for_save=True)
class _Save(ocp.args.StandardSave):  # type: ignore[misc]
    """A state to save."""


@ocp.args.register_with_handler(_Summed, for_restore=True)
class _Restore(ocp.args.StandardRestore):  # type: ignore[misc]
    """Shapes and shardings to restore into."""


class OrbaxSaver:
    """Saves one state at a time in the background, into a folder below one of a file system."""

    def __init__(self, folder: Path) -> None:
        # Processes that are named meet at the coordination service. Otherwise Orbax's threads would
        # meet in collectives on the devices, which would fall between those of the step.
        everyone = options.MultiprocessingOptions(active_processes=set(range(jax.process_count())))
        self._folder = folder
        self._checkpointer = ocp.AsyncCheckpointer(
            _Summed(multiprocessing_options=everyone),
            timeout_secs=TIMEOUT_S,
            multiprocessing_options=everyone,
        )

    def save(self, name: str, state: _Tree) -> None:
        self._checkpointer.save(self._folder / name, args=_Save(state))

    def check(self) -> None:
        self._checkpointer.check_for_errors()

    def wait(self) -> None:
        self._checkpointer.wait_until_finished()

    def close(self) -> None:
        self._checkpointer.close()

    def shapes(self, name: str) -> Shapes:
        tree = self._checkpointer.metadata(self._folder / name).item_metadata.tree
        return {leaf.name: _shape(leaf) for leaf in jax.tree.leaves(tree)}

    def restore(self, name: str, target: _Tree, table_rows: Rows = NO_TABLES) -> _Tree:
        """Return a state as `target` shapes and shards it; rows that a table lacks are zeros."""
        how = _Restore(target, strict=not table_rows)
        return self._checkpointer.restore(self._folder / name, args=how)


def shapes_of(tree: _Tree) -> Shapes:
    return {name: _shape(leaf) for name, leaf in named_leaves(tree)}


def named_leaves(tree: _Tree) -> list[tuple[str, Any]]:
    return [(leaf_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def difference(saved: Shapes, expected: Shapes, table_rows: Rows = NO_TABLES) -> str | None:
    """Return the first leaf that differs, as text, except in rows beyond those of `table_rows`."""

    def filled(name: str, shape: _Shape | None) -> _Shape | None:
        rows = table_rows.get(name.rpartition(".")[2])
        if not shape or not rows or not shape[1] or shape[1][0] < rows:
            return shape
        return shape[0], (rows, *shape[1][1:])

    for name in sorted({*saved, *expected}):
        was, now = saved.get(name), expected.get(name)
        if filled(name, was) != filled(name, now):
            return f"{name} was {_shown(was)} when saved, against {_shown(now)} in the program"
    return None


def leaf_name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _shape(leaf: Any) -> _Shape:
    return str(leaf.dtype), tuple(leaf.shape)


def _shown(shape: _Shape | None) -> str:
    return f"{shape[0]}{list(shape[1])}" if shape else "absent"
