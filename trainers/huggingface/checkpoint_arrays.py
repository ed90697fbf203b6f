"""The arrays of a checkpoint, read piece by piece: no process has to hold a whole one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from orchestrator.errors import CheckpointFailed

Region = tuple[slice, ...]
PARAMETERS = "parameters"  # their place in a trainer's state


class CheckpointArray:
    """A parameter of a checkpoint."""

    def __init__(self, checkpoint: Path, path: tuple[str, ...]) -> None:
        self.name = ".".join((PARAMETERS, *path))
        base = {"driver": "ocdbt", "base": f"file://{checkpoint.absolute()}/"}
        spec = {"driver": "zarr", "kvstore": {**base, "path": f"{self.name}/"}}
        try:
            self._array = tensorstore.open(spec, open=True, read=True).result()
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise CheckpointFailed(f"{checkpoint}: {self.name} cannot be read: {reason}") from error

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
