"""Writes states to a bucket and reads them, by TensorStore: each process writes its own shards, as
zarr 3 chunks with CRC-32C. The primary writes the manifest once all others have written.
"""

import hashlib
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jax
import msgspec
import numpy as np
import tensorstore as ts

from orchestrator.storage.addresses import Place, place_of
from orchestrator.storage.bucket import Bucket, gcs_endpoint, s3_settings
from orchestrator.values import codec
from trainers.checkpoint import step_folders
from trainers.checkpoint.step_folders import (
    NO_TABLES,
    TIMEOUT_S,
    Rows,
    leaf_name,
    named_leaves,
    owner_of,
)

_MANIFEST = "manifest.json"
_NOTES = "written/"  # by each process, once its shards are there
# An object's size, and the sum that the store made of its bytes.
_Sum = tuple[int, str]


class _Leaf(msgspec.Struct, frozen=True):
    """An array of a state: its type, its shape, and the shape of the chunks that objects hold."""

    dtype: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]


class _StepManifest(msgspec.Struct, frozen=True):
    leaves: dict[str, _Leaf]
    objects: dict[str, _Sum]


@dataclass(frozen=True)
class StepObjects:
    """The steps below a folder of a bucket, each named by its number and by whose it is."""

    place: Place

    @property
    def folder(self) -> Path:
        return self.place.path

    @property
    def bucket(self) -> Bucket:
        return self.place.bucket

    def names(self) -> list[str]:
        """Return the names of the saved steps, oldest first, whole or not."""
        _, prefixes = self.bucket.inside(self.place.prefix)
        names = [prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes]
        names = [name for name in names if step_folders.NAME.fullmatch(name)]
        return sorted(names, key=step_folders.age)

    def prefix(self, name: str) -> str:
        return f"{self.place.prefix}{name}/"

    def prepare(self) -> None:
        """A bucket has no folders to make."""

    def delete(self, name: str) -> None:
        """Remove a step, its manifest first: without it the step does not count."""
        self.bucket.delete([self.prefix(name) + _MANIFEST])
        self.bucket.delete([stored.name for stored in self.bucket.below(self.prefix(name))])

    def set_aside(self, name: str) -> None:
        """A damaged step stays where it is, as another attempt saves under another name."""

    def sweep(self, owner: step_folders.Owner) -> None:
        for name in self.names():
            if owner_of(name) <= owner and not self.is_whole(name):
                self.delete(name)

    def read_small(self, name: str) -> bytes:
        return self.bucket.read(self.place.prefix + name)[0]

    def create_small(self, name: str, content: bytes) -> None:
        with suppress(FileExistsError):
            self.bucket.create(self.place.prefix + name, content)

    def is_whole(self, name: str) -> bool:
        """Whether a step has its manifest: it comes last."""
        return self.bucket.has(self.prefix(name) + _MANIFEST)

    def manifest(self, name: str) -> _StepManifest:
        return codec.from_json(self.bucket.read(self.prefix(name) + _MANIFEST)[0], _StepManifest)

    def write_manifest(self, name: str, leaves: dict[str, _Leaf]) -> None:
        manifest = _StepManifest(leaves=leaves, objects=self._sums(name))
        content = msgspec.json.encode(manifest, order="sorted")
        self.bucket.create(self.prefix(name) + _MANIFEST, content)

    def sums_digest(self, name: str) -> str:
        return hashlib.sha256(self.bucket.read(self.prefix(name) + _MANIFEST)[0]).hexdigest()

    def fault(
        self, name: str, *, sha256: str | None = None, share: int = 0, of: int = 1
    ) -> str | None:
        """Return what is wrong with a step, or None. The first of several readers looks for all."""
        assert of > share
        if share:
            return None
        try:
            expected = self.manifest(name).objects
        except FileNotFoundError:
            return f"{_MANIFEST} is missing"
        except (OSError, msgspec.DecodeError) as error:
            return f"{_MANIFEST} cannot be read: {error}"
        if sha256 is not None and self.sums_digest(name) != sha256:
            return f"{_MANIFEST} is not the one that was recorded"
        found = self._sums(name)
        if lost := sorted(set(expected) - set(found)):
            return f"{lost[0]} is missing"
        if changed := sorted(part for part, summed in expected.items() if found[part] != summed):
            return f"{changed[0]} is not as it was written"
        return None

    def _sums(self, name: str) -> dict[str, _Sum]:
        prefix, sums = self.prefix(name), {}
        for found in self.bucket.below(prefix):
            part = found.name.removeprefix(prefix)
            if part != _MANIFEST and not part.startswith(_NOTES):
                versions: dict[str, str | None] = msgspec.json.decode(found.version)
                sums[part] = found.size, versions["e_tag"] or versions["version"] or ""
        return sums

    def note_written(self, name: str, process: int, error: str = "") -> None:
        self.bucket.replace(f"{self.prefix(name)}{_NOTES}{process}", error.encode())

    def notes(self, name: str) -> Sequence[str]:
        """Return what each process that has written said: an error, or nothing."""
        found = self.bucket.below(self.prefix(name) + _NOTES)
        return [self.bucket.read(note.name)[0].decode() if note.size else "" for note in found]


def step_objects(folder: Path) -> StepObjects | None:
    """Return the steps of a folder that a bucket has; None for one of a file system."""
    place = place_of(folder)
    return None if place is None else StepObjects(place)


_Tree = Any
_CHUNK_BYTES = 64 << 20
POLL_S = 0.2
_THREADS = 16
_CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]


class ObjectSaver:
    """Saves one state at a time in the background."""

    def __init__(self, steps: StepObjects) -> None:
        self._steps, self._process = steps, jax.process_index()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, name: str, state: _Tree) -> None:
        """Copy the state off the devices, and write it in the background."""
        self.wait()
        arrays = dict(named_leaves(state))
        leaves = {
            leaf: _Leaf(
                dtype=str(array.dtype),
                shape=array.shape,
                chunk=_chunk_shape(array.sharding.shard_shape(array.shape), array.dtype.itemsize),
            )
            for leaf, array in arrays.items()
        }
        shards = [
            (name, shard.index, np.array(shard.data, copy=True))
            for name, array in arrays.items()
            for shard in array.addressable_shards
            if shard.replica_id == 0
        ]

        def write() -> None:
            try:
                self._write(name, leaves, shards)
            except BaseException as error:  # noqa: BLE001  `wait` raises it where it is awaited
                self._error = error

        self._thread = threading.Thread(target=write, name="checkpoint", daemon=True)
        self._thread.start()

    def _write(self, name: str, leaves: dict[str, _Leaf], shards: list[Any]) -> None:
        try:
            if self._process == 0:
                for leaf, kind in leaves.items():
                    stored_array(self._steps, name, leaf, kind, create=True)
            writes = [
                stored_array(self._steps, name, leaf, leaves[leaf])[index].write(data)
                for leaf, index, data in shards
            ]
            for write in writes:
                write.result()
        except BaseException as error:
            self._steps.note_written(name, self._process, str(error) or type(error).__name__)
            raise
        self._steps.note_written(name, self._process)
        deadline = time.monotonic() + TIMEOUT_S
        while not self._all_wrote(name):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name}: not every process has written after {TIMEOUT_S} s")
            time.sleep(POLL_S)
        if self._process == 0:
            self._steps.write_manifest(name, leaves)

    def _all_wrote(self, name: str) -> bool:
        if self._process:
            return self._steps.is_whole(name)
        notes = self._steps.notes(name)
        if failed := next(filter(None, notes), None):
            raise OSError(f"a process could not write its shards: {failed}")
        return len(notes) == jax.process_count()

    def wait(self) -> None:
        """Wait until the last save has ended; raise what failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise what failed, without waiting."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    close = wait

    def shapes(self, name: str) -> step_folders.Shapes:
        leaves = self._steps.manifest(name).leaves
        return {leaf: (kind.dtype, kind.shape) for leaf, kind in leaves.items()}

    def restore(self, name: str, target: _Tree, table_rows: Rows = NO_TABLES) -> _Tree:
        """Return a state as `target` shapes and shards it; rows that a table lacks are zeros."""
        del table_rows  # the target has as many rows as it has
        leaves = self._steps.manifest(name).leaves
        named, tree = jax.tree_util.tree_flatten_with_path(target)

        def read(path_and_leaf: tuple[Any, Any]) -> jax.Array:
            path, leaf = path_and_leaf
            stored = stored_array(self._steps, name, leaf_name(path), leaves[leaf_name(path)])
            return jax.make_array_from_callback(
                leaf.shape, leaf.sharding, lambda index: _read_part(stored, index or (), leaf)
            )

        with ThreadPoolExecutor(_THREADS) as pool:
            return jax.tree_util.tree_unflatten(tree, list(pool.map(read, named)))


def stored_array(
    steps: StepObjects, name: str, leaf: str, kind: _Leaf, *, create: bool = False
) -> Any:
    """Open an array of a step, as TensorStore reads and writes it."""
    bucket = steps.bucket
    path = f"{steps.prefix(name)}{quote(leaf, safe='._-')}/"
    spec = {
        "driver": "zarr3",
        "kvstore": {**driver(bucket.scheme), "bucket": bucket.name, "path": path},
        "metadata": {
            "shape": kind.shape,
            "data_type": kind.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": kind.chunk}},
            "codecs": _CODECS,
        },
        "create": create,
        "open": True,
        "assume_metadata": not create,
    }
    return ts.open(spec).result()


def driver(scheme: str) -> dict[str, Any]:
    """Return TensorStore's driver for a kind of bucket, at the endpoint of the environment."""
    if scheme == "gs":
        if url := gcs_endpoint():
            os.environ["TENSORSTORE_GCS_HTTP_URL"] = url
        return {"driver": "gcs"}
    settings = s3_settings()
    where: dict[str, Any] = {"endpoint": settings["endpoint"]} if "endpoint" in settings else {}
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        where["aws_credentials"] = {"type": "environment"}  # else it asks everywhere, loudly
    return {"driver": "s3", "aws_region": settings["region"], **where}


def _chunk_shape(shard: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """Return a part that divides a shard, of at most _CHUNK_BYTES if its sizes have divisors."""
    chunk = [max(size, 1) for size in shard]
    while int(np.prod(chunk)) * item_bytes > _CHUNK_BYTES:
        sizes = [(size, axis) for axis, size in enumerate(chunk) if size > 1]
        _, axis = max(sizes)
        size = chunk[axis]
        chunk[axis] = size // next(n for n in range(2, size + 1) if size % n == 0)
    return tuple(chunk)


def _read_part(stored: Any, index: tuple[slice, ...], leaf: Any) -> np.ndarray[Any, Any]:
    """The part of an array that a device wants; zeros where the array has no such rows."""
    bounds = [side.indices(size)[:2] for side, size in zip(index, leaf.shape, strict=True)]
    there = tuple(
        slice(start, min(stop, size))
        for (start, stop), size in zip(bounds, stored.shape, strict=True)
    )
    part = np.zeros([stop - start for start, stop in bounds], leaf.dtype)
    if all(side.start < side.stop for side in there):
        inside = tuple(slice(0, side.stop - side.start) for side in there)
        part[inside] = stored[there].read().result()
    return part
