"""The arrays of a checkpoint, read piece by piece: no process has to hold a whole one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from orchestrator.errors import CheckpointFailed
from orchestrator.storage import address
from trainers.checkpoint import step_folders
from trainers.checkpoint.object_saver import stored_array
from trainers.checkpoint.step_objects import StepObjects, step_objects

Region = tuple[slice, ...]
PARAMETERS = "parameters"  # their place in a trainer's state


class CheckpointArray:
    """A parameter of a checkpoint."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self._array = name, array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape)

    @property
    def dtype(self) -> Any:
        return self._array.dtype.numpy_dtype

    def pieces(self) -> Iterator[tuple[Region, np.ndarray]]:
        """Its parts as they were written: each part of each host once."""
        chunk: Any = self._array.chunk_layout.read_chunk.shape
        counts = [-(-size // part) for size, part in zip(self.shape, chunk, strict=True)]
        for place in np.ndindex(*counts):
            region = tuple(
                slice(at * part, min((at + 1) * part, size))
                for at, part, size in zip(place, chunk, self.shape, strict=True)
            )
            yield region, self._array[region].read().result()


def fault_of(checkpoint: Path, sha256: str | None) -> str | None:
    """What is wrong with a checkpoint, of a file system or of a bucket, or None."""
    if objects := step_objects(checkpoint.parent):
        return objects.fault(checkpoint.name, sha256=sha256)
    return step_folders.fault(checkpoint, sha256=sha256)


def saved_array(checkpoint: Path, path: tuple[str, ...]) -> CheckpointArray:
    """A parameter of a checkpoint; `CheckpointFailed` where it has none of that name."""
    name, objects = ".".join((PARAMETERS, *path)), step_objects(checkpoint.parent)
    try:
        array = (
            _in_folder(checkpoint, name)
            if objects is None
            else _on_bucket(objects, checkpoint.name, name)
        )
    except (ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        where = address(checkpoint)
        raise CheckpointFailed(f"{where}: {name} cannot be read: {reason}") from error
    return CheckpointArray(name, array)


def _in_folder(checkpoint: Path, name: str) -> Any:
    base = {"driver": "ocdbt", "base": f"file://{checkpoint.absolute()}/"}
    spec = {"driver": "zarr", "kvstore": {**base, "path": f"{name}/"}}
    return tensorstore.open(spec, open=True, read=True).result()


def _on_bucket(objects: StepObjects, step: str, name: str) -> Any:
    return stored_array(objects, step, name, objects.manifest(step).leaves[name])
