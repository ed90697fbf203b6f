"""Writes the weights of a checkpoint as Hugging Face has them.

    python -m trainers.huggingface.write < REQUEST

The request is a WeightsRequest as JSON on one line. The answer is a WeightsResult as JSON, the last
of several lines; those before it say how many parameters are written.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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
from trainers.checkpoint import step_folders
from trainers.checkpoint.objects import StepObjects, step_objects, stored_array
from trainers.contract import load
from trainers.huggingface.folder import CONFIG, INDEX, ONE_FILE, NewFile, Shape, new_file
from trainers.huggingface.read import selection, stored_shapes, stored_weights
from trainers.mesh import abstract_mesh_of

# The arrays of a checkpoint, read piece by piece: no process has to hold a whole one.


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


DTYPES: dict[str, Any] = {"fp32": np.float32, "bf16": ml_dtypes.bfloat16}
MOST_BYTES = 5 * 10**9  # of a file, as transformers has them


def write(request: WeightsRequest, plan: Plan) -> WeightsResult:
    """Make the folder, whole or not at all."""
    out, checkpoint = Path(request.out), Path(request.checkpoint)
    if fault := fault_of(checkpoint, request.sha256):
        raise CheckpointFailed(f"{address(checkpoint)}: not whole: {fault}")
    if out.exists():
        raise SpecError(f"{out}: already exists; weights are never overwritten")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        result = _fill(partial, request, checkpoint, weights_of(plan, request.config))
        partial.chmod(0o755)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial)
        raise
    return result


def weights_of(plan: Plan, config: Mapping[str, Any]) -> Sequence[PublishedWeight]:
    """How a config's architecture stores the parameters of a plan's trainer."""
    program = load(plan.trainer).program(plan, abstract_mesh_of(plan))
    return stored_weights(program, str(config["model_type"]))


def _fill(
    folder: Path, request: WeightsRequest, checkpoint: Path, weights: Sequence[PublishedWeight]
) -> WeightsResult:
    dtype = DTYPES[request.dtype]
    shapes = stored_shapes(weights)
    files = list(_files(folder, shapes, dtype))
    arrays = {name: array for file in files for name, array in file.arrays.items()}
    for done, weight in enumerate(weights):
        print(json.dumps({"done": done, "total": len(weights)}), flush=True)
        _copy(saved_array(checkpoint, weight.path), weight, arrays)
    if len(files) > 1:
        _write_index(folder, files)
    (folder / CONFIG).write_text(json.dumps(request.config, indent=2) + "\n", encoding="utf-8")
    for path in map(Path, request.copies):
        shutil.copyfile(path, folder / path.name)
    parameters = sum(prod(shape) for shape in shapes.values())
    return WeightsResult(parameters=parameters, files=len(files))


def _files(folder: Path, shapes: Mapping[str, Shape], dtype: Any) -> Iterator[NewFile]:
    """Files of at most five gigabytes, but for an array that is larger."""
    groups: list[dict[str, Shape]] = [{}]
    size = 0
    for name, shape in shapes.items():
        of_array = prod(shape) * np.dtype(dtype).itemsize
        if groups[-1] and size + of_array > MOST_BYTES:
            groups.append({})
            size = 0
        groups[-1][name] = shape
        size += of_array
    for number, group in enumerate(groups, 1):
        name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        yield new_file(folder / (name if len(groups) > 1 else ONE_FILE), group, dtype)


def _write_index(folder: Path, files: Sequence[NewFile]) -> None:
    names = {name: file.path.name for file in files for name in file.arrays}
    total = sum(array.nbytes for file in files for array in file.arrays.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _copy(
    source: CheckpointArray, weight: PublishedWeight, arrays: Mapping[str, np.ndarray]
) -> None:
    """Copy a parameter, without the rows that no token has."""
    depth = len(weight.stacked)
    for region, piece in source.pieces():
        inner = _within(region[depth:], weight.shape)
        kept = piece[(slice(None),) * depth + tuple(slice(s.stop - s.start) for s in inner)]
        if not kept.size:
            continue
        for place in np.ndindex(*piece.shape[:depth]):
            index = tuple(part.start + at for part, at in zip(region, place, strict=False))
            put(weight, arrays[weight.name_at(index)], inner, kept[place])


def put(weight: PublishedWeight, array: np.ndarray, inner: Region, part: np.ndarray) -> None:
    """Put a part of a weight, in the order of the trainer's dimensions, into a published array."""
    ranges = [range(one.start, one.stop) for one in inner]
    places = [axis.places(ranges) for axis in weight.axes]
    chosen = tuple(map(selection, places))
    if not all(isinstance(one, slice) for one in chosen):
        chosen = np.ix_(*places)
    ordered = part.transpose(weight.order).reshape([len(one) for one in places])
    array[chosen] = ordered.astype(array.dtype)


def _within(region: Region, shape: Shape) -> Region:
    return tuple(
        slice(min(part.start, size), min(part.stop, size))
        for part, size in zip(region, shape, strict=True)
    )


def main() -> int:
    """Answer the request on standard input."""
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
