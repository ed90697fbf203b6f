"""The arrays of a file of safetensors on a bucket, of which parts are read in ranges of bytes.

The library reads files of this machine alone. A file begins with the length of a JSON object, which
has the type, the shape and the bytes of each array.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError

from orchestrator.storage.inputs import StoredInput

TYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8,
    "BOOL": np.bool_,
}  # fmt: skip
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000  # as the library has it
# Rows are read so many bytes at a time. What was read last is kept: the devices of a host each want
# other columns of the same rows.
ROWS_BYTES, KEPT = 64 << 20, 16


@dataclass(frozen=True)
class StoredArray:
    """An array of a file, with the methods of the library's slices."""

    file: StoredInput
    begin: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def get_shape(self) -> tuple[int, ...]:
        return self.shape

    def __getitem__(self, part: tuple[slice, ...]) -> np.ndarray:
        if not self.shape:
            return self._rows(0, 1).reshape(())
        first, last, _ = (*part, slice(None))[0].indices(self.shape[0])
        size = max(1, ROWS_BYTES // max(1, self._row_bytes))
        starts = range(first, last, size)
        parts = [self._rows(at, min(at + size, last))[(slice(None), *part[1:])] for at in starts]
        return np.concatenate(parts) if parts else np.empty((0, *self.shape[1:]), self.dtype)

    @property
    def _row_bytes(self) -> int:
        return prod(self.shape[1:]) * self.dtype.itemsize

    def _rows(self, first: int, last: int) -> np.ndarray:
        begin = self.begin + first * self._row_bytes
        content = _kept(self.file, begin, begin + (last - first) * self._row_bytes)
        return np.frombuffer(content, self.dtype).reshape(last - first, *self.shape[1:])


@lru_cache(KEPT)
def _kept(file: StoredInput, start: int, stop: int) -> bytes:
    return file.read(start, stop)


def forget() -> None:
    """Keep nothing any longer of what was read."""
    _kept.cache_clear()


def arrays_of(file: StoredInput) -> dict[str, StoredArray]:
    """The arrays of a file by their names; `SafetensorError` where it is no such file."""
    if file.size < LENGTH_BYTES:
        raise SafetensorError("is too short for safetensors")
    length = int.from_bytes(file.read(0, LENGTH_BYTES), "little")
    begin = LENGTH_BYTES + length
    if not 0 < length <= min(MOST_HEADER_BYTES, file.size - LENGTH_BYTES):
        raise SafetensorError("has no header of safetensors")
    try:
        header = json.loads(file.read(LENGTH_BYTES, begin))
    except (ValueError, RecursionError) as error:
        raise SafetensorError("has a header that is no JSON") from error
    if not isinstance(header, dict):
        raise SafetensorError("has no header of safetensors")
    described = {name: one for name, one in header.items() if name != "__metadata__"}
    return {name: _array(file, begin, name, one) for name, one in described.items()}


def _array(file: StoredInput, begin: int, name: str, described: Mapping[str, Any]) -> StoredArray:
    try:
        dtype, shape = np.dtype(TYPES[described["dtype"]]), tuple(map(int, described["shape"]))
        start, stop = map(int, described["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise SafetensorError(f"{name} is of a type or a shape that is not read") from error
    if stop - start != prod(shape) * dtype.itemsize or start < 0 or begin + stop > file.size:
        raise SafetensorError(f"{name} does not lie inside the file")
    return StoredArray(file, begin + start, dtype, shape)
