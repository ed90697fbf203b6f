"""Writes the weights of a checkpoint as Hugging Face has them: a WeightsRequest as a line of JSON
on the standard input, a WeightsResult as the last line; progress before.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import tensorstore

from orchestrator.errors import CheckpointFailed, OrchError, SpecError
from orchestrator.network.published import PublishedWeight
from orchestrator.storage.addresses import address
from orchestrator.values import codec
from orchestrator.values.plan import Plan
from orchestrator.values.run import WeightsRequest, WeightsResult
from trainers.checkpoint.objects import step_objects, stored_array
from trainers.checkpoint.step_folders import StepFolders
from trainers.contract import load
from trainers.data.pack import new_folder
from trainers.huggingface import read
from trainers.mesh import abstract_mesh_of

_PARAMETERS = "parameters"  # their place in a trainer's state
_DTYPES: dict[str, Any] = {"fp32": np.float32, "bf16": ml_dtypes.bfloat16}
_MOST_BYTES = 5 * 10**9  # of a file, as transformers has them


def write(request: WeightsRequest, plan: Plan) -> WeightsResult:
    """Make the folder, whole or not at all."""
    out, checkpoint = Path(request.out), Path(request.checkpoint)
    steps = step_objects(checkpoint.parent) or StepFolders(checkpoint.parent)
    if fault := steps.fault(checkpoint.name, sha256=request.sha256):
        raise CheckpointFailed(f"{address(checkpoint)}: not whole: {fault}")
    if out.exists():
        raise SpecError(f"{out}: already exists; weights are never overwritten")
    # How the architecture of the config stores the parameters of the plan's trainer.
    program = load(plan.trainer).program(plan, abstract_mesh_of(plan))
    weights = read.stored_weights(program, str(request.config["model_type"]))
    shapes, dtype = read.stored_shapes(weights), _DTYPES[request.dtype]
    # Files of at most five gigabytes or one array.
    groups: list[dict[str, read.Shape]] = [{}]
    size = 0
    for name, shape in shapes.items():
        array_bytes = prod(shape) * np.dtype(dtype).itemsize
        if groups[-1] and size + array_bytes > _MOST_BYTES:
            groups.append({})
            size = 0
        groups[-1][name] = shape
        size += array_bytes
    names, last = [read.ONE_FILE], len(groups)
    if last > 1:
        names = [f"model-{number:05d}-of-{last:05d}.safetensors" for number in range(1, last + 1)]
    with new_folder(out) as folder:
        files = {
            name: _new_arrays(folder / name, group, dtype)
            for name, group in zip(names, groups, strict=True)
        }
        arrays = {name: array for file in files.values() for name, array in file.items()}
        for done, weight in enumerate(weights):
            print(json.dumps({"done": done, "total": len(weights)}), flush=True)
            _copy(_saved_array(checkpoint, weight.path), weight, arrays)
        if len(files) > 1:
            places = {name: file for file, inside in files.items() for name in inside}
            total = sum(array.nbytes for array in arrays.values())
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
            (folder / read.INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        config = json.dumps(request.config, indent=2) + "\n"
        (folder / read.CONFIG).write_text(config, encoding="utf-8")
        for path in map(Path, request.copies):
            shutil.copyfile(path, folder / path.name)
    parameters = sum(prod(shape) for shape in shapes.values())
    return WeightsResult(parameters=parameters, files=len(files))


# The arrays of a checkpoint, read piece by piece: no process has to hold a whole one


def _saved_array(checkpoint: Path, path: tuple[str, ...]) -> Any:
    """A parameter of a checkpoint; raise `CheckpointFailed` if it has no such name."""
    name, objects = ".".join((_PARAMETERS, *path)), step_objects(checkpoint.parent)
    try:
        if objects is not None:
            leaf = objects.manifest(checkpoint.name).leaves[name]
            return stored_array(objects, checkpoint.name, name, leaf)
        base = {"driver": "ocdbt", "base": f"file://{checkpoint.absolute()}/"}
        spec = {"driver": "zarr", "kvstore": {**base, "path": f"{name}/"}}
        return tensorstore.open(spec, open=True, read=True).result()
    except (ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        where = address(checkpoint)
        raise CheckpointFailed(f"{where}: {name} cannot be read: {reason}") from error


def _copy(source: Any, weight: PublishedWeight, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy a parameter, without rows that no token has, in the parts that were written."""
    depth, chunk = len(source.shape) - len(weight.shape), source.chunk_layout.read_chunk.shape
    counts = [-(-size // part) for size, part in zip(source.shape, chunk, strict=True)]
    for number in np.ndindex(*counts):
        region = tuple(
            slice(at * part, min((at + 1) * part, size))
            for at, part, size in zip(number, chunk, source.shape, strict=True)
        )
        piece = source[region].read().result()
        inner = tuple(
            slice(min(part.start, size), min(part.stop, size))
            for part, size in zip(region[depth:], weight.shape, strict=True)
        )
        filled = piece[(slice(None),) * depth + tuple(slice(s.stop - s.start) for s in inner)]
        if not filled.size:
            continue
        for place in np.ndindex(*piece.shape[:depth]):
            index = tuple(part.start + at for part, at in zip(region, place, strict=False))
            if depth > len(weight.stacked):  # a pipeline stacks layers twice
                index = (index[0] * source.shape[1] + index[1], *index[2:])
                if index[0] >= weight.stacked[0]:
                    continue
            _put(weight, arrays[weight.name_at(index)], inner, filled[place])


def _put(
    weight: PublishedWeight, array: np.ndarray, inner: tuple[slice, ...], part: np.ndarray
) -> None:
    """Put a part of a weight, in the order of the trainer's dimensions, into a published array."""
    ranges = [range(side.start, side.stop) for side in inner]
    places = [axis.places(ranges) for axis in weight.axes]
    chosen = tuple(map(read.selection, places))
    if not all(isinstance(side, slice) for side in chosen):
        chosen = np.ix_(*places)
    ordered = part.transpose(weight.order).reshape([len(side) for side in places])
    array[chosen] = ordered.astype(array.dtype)


# New files of safetensors on disk, whose arrays are filled in any order

_TYPE_NAMES = {np.dtype("float32"): "F32", np.dtype(ml_dtypes.bfloat16): "BF16"}
_FORMAT = {"__metadata__": {"format": "pt"}}  # without it transformers refuses a file
_ALIGNED = 8  # bytes


def _new_arrays(path: Path, shapes: Mapping[str, read.Shape], dtype: Any) -> dict[str, np.ndarray]:
    """A file of zeros as arrays, by name; what is written to these is in the file."""
    type_, header, end = np.dtype(dtype), dict[str, Any](_FORMAT), 0
    places = {}
    for name in sorted(shapes):
        size = prod(shapes[name]) * type_.itemsize
        header[name] = {
            "dtype": _TYPE_NAMES[type_],
            "shape": list(shapes[name]),
            "data_offsets": [end, end + size],
        }
        places[name], end = slice(end, end + size), end + size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(_ALIGNED, "little") + text)
        file.truncate(_ALIGNED + len(text) + end)
    data = np.memmap(path, np.uint8, "r+")[_ALIGNED + len(text) :]
    return {name: data[at].view(type_).reshape(shapes[name]) for name, at in places.items()}


def main() -> int:
    request = codec.from_json(sys.stdin.readline().encode(), WeightsRequest)
    try:
        result = write(request, codec.from_json(request.plan.encode(), Plan))
    except OSError as error:
        print(f"error: {request.out}: {error.strerror or error}", file=sys.stderr)
        return OrchError.exit_code
    except OrchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps({"result": msgspec.to_builtins(result)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
