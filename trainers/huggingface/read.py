"""Reads published weights into the shards of a plan. A process reads what its own devices hold."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Self

import jax
import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from orchestrator.errors import DataUnusable, SpecError
from orchestrator.network.published import PublishedWeight
from orchestrator.storage.addresses import (
    StoredInput,
    address,
    check_regular,
    has_input,
    input_path,
    read_regular,
    stored_input,
)
from trainers.contract import Program

_Tree = dict[str, Any]
Shape = tuple[int, ...]
_Ranges = tuple[range, ...]  # of a shard, in each dimension
# Arrays that no network has, by the ends of their names: caches that old releases stored.
_CACHES = (".rotary_emb.inv_freq", ".masked_bias", ".attention.bias")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_SHOWN = 3  # names in a message


def new_state(program: Program, folder: Path) -> _Tree:
    """Return the state before the first step, with the weights that the plan starts from."""
    start, seed = program.plan.start, program.plan.seed
    if start is None:
        return program.init(seed)
    with _WeightFolder.open(input_path(folder, start.huggingface)) as source:
        weights = _weights_of(program, source)
        state = program.init(seed)
        jax.tree.map(lambda array: array.delete(), state["parameters"])  # there may be no more room
        read = _with_published(program.state["parameters"], weights, source)
    return state | {"parameters": read}


def stored_weights(program: Program, model_type: str) -> Sequence[PublishedWeight]:
    """Return the program's parameters as checkpoints of that `model_type` have them."""
    if program.published is None:
        raise SpecError(
            f"trainer {program.plan.trainer} does not say how checkpoints store its parameters"
        )
    return program.published(model_type)


def stored_shapes(weights: Sequence[PublishedWeight]) -> dict[str, Shape]:
    """Return the shape of each array of the files, by its name."""
    return {
        weight.name_at(index): weight.published_shape
        for weight in weights
        for index in np.ndindex(*weight.stacked)
    }


def selection(places: np.ndarray) -> slice | np.ndarray:
    """These places of an axis: as a slice, which copies nothing, where they are evenly spaced."""
    steps = np.diff(places)
    if steps.size and ((steps != steps[0]).any() or steps[0] < 1):
        return places
    return slice(int(places[0]), int(places[-1]) + 1, int(steps[0]) if steps.size else 1)


def _weights_of(program: Program, folder: "_WeightFolder") -> Sequence[PublishedWeight]:
    """How the folder stores the program's parameters; `DataUnusable` unless it has exactly them."""
    weights = stored_weights(program, folder.model_type)
    expected, where = stored_shapes(weights), address(folder.path)
    if absent := sorted(expected.keys() - folder.names()):
        raise DataUnusable(f"{where}: the model has weights that it lacks: {_shown(absent)}")
    others = sorted(folder.names() - expected.keys())
    unknown = [name for name in others if not name.endswith(_CACHES)]
    if unknown == [_HEAD] and folder.shape(_HEAD) == expected[_EMBEDDING]:
        # Some writers store a tied head a second time.
        same = np.array_equal(folder.read(_HEAD), folder.read(_EMBEDDING))
        unknown = [] if same else unknown
    if unknown:
        raise DataUnusable(f"{where}: weights that the model lacks: {_shown(unknown)}")
    for name, shape in expected.items():
        if folder.shape(name) != shape:
            raise DataUnusable(
                f"{where}: {name} is {list(folder.shape(name))}, against {list(shape)}"
            )
    return weights


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _with_published(
    tree: _Tree, weights: Sequence[PublishedWeight], folder: "_WeightFolder"
) -> _Tree:
    """Return arrays as `tree` shapes, types and shards them, with the weights of a folder."""
    read = dict(tree)
    for weight in weights:
        *outer, name = weight.path
        branch = read
        for key in outer:
            branch[key] = dict(branch[key])
            branch = branch[key]
        branch[name] = _array(branch[name], weight, folder)
    return read


def _array(
    leaf: jax.ShapeDtypeStruct, weight: PublishedWeight, folder: "_WeightFolder"
) -> jax.Array:
    """A leaf of the tree. What it has beyond the weight's rows is zero."""
    # Each array of the files is read for all devices of this process before the next one is.

    def ranges_of(index: tuple[slice, ...] | None) -> _Ranges:
        assert index is not None  # only keys of random numbers have none
        return tuple(
            range(*part.indices(size)) for part, size in zip(index, leaf.shape, strict=True)
        )

    indices = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
    shards = {
        ranges: np.zeros([len(part) for part in ranges], leaf.dtype)
        for ranges in map(ranges_of, indices)
    }
    for place in np.ndindex(*weight.stacked):
        at_place = place
        if len(leaf.shape) > len(place) + len(weight.shape):  # a pipeline stacks layers twice
            at_place = (*divmod(place[0], leaf.shape[1]), *place[1:])
        for ranges, shard in shards.items():
            # The part of a layer's and expert's weight that a shard has.
            outer, inner = ranges[: len(at_place)], ranges[len(at_place) :]
            inside = [
                range(part.start, min(part.stop, size))
                for part, size in zip(inner, weight.shape, strict=True)
            ]
            is_here = all(at in part for at, part in zip(at_place, outer, strict=True))
            if is_here and all(inside):
                here = tuple(part.index(at) for at, part in zip(at_place, outer, strict=True))
                filled = tuple(slice(len(part)) for part in inside)
                array = _part_of(weight, folder, weight.name_at(place), inside)
                shard[here][filled] = array.astype(shard.dtype)
    return jax.make_array_from_callback(
        leaf.shape, leaf.sharding, lambda index: shards[ranges_of(index)]
    )


def _part_of(
    weight: PublishedWeight, folder: "_WeightFolder", name: str, wanted: Sequence[range]
) -> np.ndarray:
    """Read a part of a weight of one layer and expert, in the order of the trainer's dimensions."""
    places = [axis.places(wanted) for axis in weight.axes]
    bounds = [slice(int(axis.min()), int(axis.max()) + 1) for axis in places]
    array = folder.read(name, *bounds)
    for number, (inside, bound) in enumerate(zip(places, bounds, strict=True)):
        array = array[(slice(None),) * number + (selection(inside - bound.start),)]
    order = weight.order
    return array.reshape([len(wanted[place]) for place in order]).transpose(np.argsort(order))


# A folder of safetensors: which file has which array, and parts of an array

CONFIG, INDEX, ONE_FILE = "config.json", "model.safetensors.index.json", "model.safetensors"
# A model that also sees has its text model below one of these.
_PREFIXES = ("language_model.", "model.language_model.")
_LAST_MODEL = "model."


@dataclass
class _WeightFolder:
    """The arrays of a folder, each by the name that it has in a text model."""

    path: Path
    model_type: str
    _arrays: Mapping[str, Any]

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open the arrays of a folder; none is read before it is asked for."""
        model_type = str(_json(path / CONFIG).get("model_type"))
        with ExitStack() as stack, _errors(path):
            stack.callback(_read_part.cache_clear)
            arrays: dict[str, Any] = {}
            for file in _files(path):
                check_regular(file)
                if stored := stored_input(file):
                    arrays |= _arrays_on_bucket(stored)
                    continue
                opened = stack.enter_context(safe_open(file, framework="numpy"))
                arrays |= {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            yield cls(path, model_type, _text_model(arrays))

    def names(self) -> frozenset[str]:
        return frozenset(self._arrays)

    def shape(self, name: str) -> Shape:
        return tuple(self._arrays[name].get_shape())

    def read(self, name: str, *part: slice) -> np.ndarray:
        with _errors(self.path):
            array: np.ndarray = self._arrays[name][part]
            return array


def _files(path: Path) -> list[Path]:
    index = path / INDEX
    if not has_input(index):
        return [path / ONE_FILE]
    files = _json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise DataUnusable(f"{address(index)}: has no weight_map of names and files")
    names = sorted(set(files.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise DataUnusable(f"{address(index)}: {outside[0]} is not a file of this folder")
    return [path / name for name in names]


def _text_model(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of the text model, by the names that it has without the model that sees."""
    for prefix in _PREFIXES:
        below = {name: array for name, array in arrays.items() if name.startswith(prefix)}
        if below:
            head = {name: array for name, array in arrays.items() if name.startswith("lm_head.")}
            new = _LAST_MODEL if prefix.startswith(_LAST_MODEL) else ""
            return head | {new + name.removeprefix(prefix): array for name, array in below.items()}
    if "wte.weight" in arrays:  # GPT-2's own files have no prefix
        return {f"transformer.{name}": array for name, array in arrays.items()}
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
    try:
        yield
    except (OSError, SafetensorError, AttributeError) as error:  # a type that numpy lacks
        reason = _first_line(error)
        raise DataUnusable(f"{address(path)}: its weights cannot be read: {reason}") from error


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).splitlines()[0]


# The arrays of a file of safetensors on a bucket, of which parts are read in ranges of bytes

_TYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8,
    "BOOL": np.bool_,
}  # fmt: skip
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000  # as the library has it
# Bytes of rows that are read at a time. What was read last is kept: the devices of a host each want
# other columns of the same rows.
_ROWS_BYTES, _KEPT = 64 << 20, 16


@dataclass(frozen=True)
class _StoredArray:
    """An array of a file, with the methods of the library's slices."""

    file: StoredInput
    begin: int
    dtype: np.dtype[Any]
    shape: Shape

    def get_shape(self) -> Shape:
        return self.shape

    def __getitem__(self, part: tuple[slice, ...]) -> np.ndarray:
        if not self.shape:
            return self._rows(0, 1).reshape(())
        first, last, _ = (*part, slice(None))[0].indices(self.shape[0])
        size = max(1, _ROWS_BYTES // max(1, self._row_bytes))
        starts = range(first, last, size)
        parts = [self._rows(at, min(at + size, last))[(slice(None), *part[1:])] for at in starts]
        return np.concatenate(parts) if parts else np.empty((0, *self.shape[1:]), self.dtype)

    @property
    def _row_bytes(self) -> int:
        return prod(self.shape[1:]) * self.dtype.itemsize

    def _rows(self, first: int, last: int) -> np.ndarray:
        begin = self.begin + first * self._row_bytes
        content = _read_part(self.file, begin, begin + (last - first) * self._row_bytes)
        return np.frombuffer(content, self.dtype).reshape(last - first, *self.shape[1:])


@lru_cache(_KEPT)
def _read_part(file: StoredInput, start: int, stop: int) -> bytes:
    return file.read(start, stop)


def _arrays_on_bucket(file: StoredInput) -> dict[str, _StoredArray]:
    """The arrays of a file by their names; `SafetensorError` if it is another kind of file."""
    if file.size < _LENGTH_BYTES:
        raise SafetensorError("is too short for safetensors")
    length = int.from_bytes(file.read(0, _LENGTH_BYTES), "little")
    begin = _LENGTH_BYTES + length
    if not 0 < length <= min(_MOST_HEADER_BYTES, file.size - _LENGTH_BYTES):
        raise SafetensorError("has no header of safetensors")
    try:
        header = json.loads(file.read(_LENGTH_BYTES, begin))
    except (ValueError, RecursionError) as error:
        raise SafetensorError("has a header that is not JSON") from error
    if not isinstance(header, dict):
        raise SafetensorError("has no header of safetensors")
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = np.dtype(_TYPES[entry["dtype"]]), tuple(map(int, entry["shape"]))
            start, stop = map(int, entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise SafetensorError(f"{name} is of a type or a shape that is not read") from error
        if stop - start != prod(shape) * dtype.itemsize or start < 0 or begin + stop > file.size:
            raise SafetensorError(f"{name} does not lie inside the file")
        arrays[name] = _StoredArray(file, begin + start, dtype, shape)
    return arrays
