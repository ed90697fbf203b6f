"""A folder of safetensors: which file has which array, and parts of an array."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Self

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from orchestrator.errors import DataUnusable
from orchestrator.storage.addresses import StoredInput, address, has_input, stored_input
from trainers.files import check_regular, read_regular

# The arrays of a file of safetensors on a bucket, of which parts are read in ranges of bytes.


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


CONFIG, INDEX, ONE_FILE = "config.json", "model.safetensors.index.json", "model.safetensors"
# A model that also sees has its text model below one of these.
PREFIXES = ("", "language_model.", "model.language_model.")
LAST_MODEL = "model."


@dataclass
class WeightFolder:
    """The arrays of a folder, each by its name as a text model alone would have it."""

    path: Path
    model_type: str
    _arrays: Mapping[str, Any]

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """The arrays of a folder; none is read before it is asked for."""
        model_type = str(_json(path / CONFIG).get("model_type"))
        with ExitStack() as stack, _errors(path):
            stack.callback(forget)
            arrays: dict[str, Any] = {}
            for file in _files(path):
                check_regular(file)
                if stored := stored_input(file):
                    arrays |= arrays_of(stored)
                    continue
                opened = stack.enter_context(safe_open(file, framework="numpy"))
                arrays |= {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            yield cls(path, model_type, _text_model(arrays))

    def names(self) -> frozenset[str]:
        return frozenset(self._arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._arrays[name].get_shape())

    def read(self, name: str, *part: slice) -> np.ndarray:
        """A part of an array, as stored."""
        with _errors(self.path):
            array: np.ndarray = self._arrays[name][part]
            return array


def _files(path: Path) -> list[Path]:
    """The files of the arrays: those of the index, or the only one."""
    index = path / INDEX
    if not has_input(index):
        return [path / ONE_FILE]
    files = _json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(one, str) for one in files.values()):
        raise DataUnusable(f"{address(index)}: has no weight_map of names and files")
    names = sorted(set(files.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise DataUnusable(f"{address(index)}: {outside[0]} is no file of this folder")
    return [path / name for name in names]


def _text_model(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of the text model, by the names that it has alone."""
    for prefix in PREFIXES[1:]:
        below = {name: array for name, array in arrays.items() if name.startswith(prefix)}
        if below:
            head = {name: array for name, array in arrays.items() if name.startswith("lm_head.")}
            new = LAST_MODEL if prefix.startswith(LAST_MODEL) else ""
            return head | {new + name.removeprefix(prefix): one for name, one in below.items()}
    return dict(arrays)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataUnusable(f"{address(path)}: cannot be read: {_first_line(error)}") from error
    if not isinstance(content, dict):
        raise DataUnusable(f"{address(path)}: not a JSON object")
    return content


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Errors of files as `DataUnusable`."""
    try:
        yield
    except (OSError, SafetensorError, AttributeError) as error:  # a type that numpy lacks
        reason = _first_line(error)
        raise DataUnusable(f"{address(path)}: its weights cannot be read: {reason}") from error


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).splitlines()[0]


# A new file of safetensors on disk, whose arrays are filled in any order.


TYPE_NAMES = {np.dtype("float32"): "F32", np.dtype(ml_dtypes.bfloat16): "BF16"}
FORMAT = {"__metadata__": {"format": "pt"}}  # without it transformers refuses a file
ALIGNED = 8  # bytes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class NewFile:
    """A file, as one array for each name; what is written to these is in the file."""

    path: Path
    arrays: Mapping[str, np.ndarray]


def new_file(path: Path, shapes: Mapping[str, Shape], dtype: Any) -> NewFile:
    """Create a file of arrays that are all zero, in the order of their names."""
    type_, header, end = np.dtype(dtype), dict[str, Any](FORMAT), 0
    places = {}
    for name in sorted(shapes):
        size = prod(shapes[name]) * type_.itemsize
        header[name] = {
            "dtype": TYPE_NAMES[type_],
            "shape": list(shapes[name]),
            "data_offsets": [end, end + size],
        }
        places[name], end = end, end + size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    begin = ALIGNED + len(text)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(ALIGNED, "little") + text)
        file.truncate(begin + end)
    mapped = np.memmap(path, np.uint8, "r+")
    arrays = {
        name: mapped[begin + place :][: prod(shapes[name]) * type_.itemsize]
        .view(type_)
        .reshape(shapes[name])
        for name, place in places.items()
    }
    return NewFile(path, arrays)
