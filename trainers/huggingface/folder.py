"""A folder of safetensors: which file has which array, and parts of an array."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import ml_dtypes  # noqa: F401  numpy has no bf16 of its own; safetensors asks for it by name
import numpy as np
from safetensors import SafetensorError, safe_open

from orchestrator.errors import DataUnusable
from orchestrator.storage import address
from orchestrator.storage.inputs import has_input, stored_input
from trainers.huggingface import stored_arrays
from trainers.regular_files import check_regular, read_regular

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
            stack.callback(stored_arrays.forget)
            arrays: dict[str, Any] = {}
            for file in _files(path):
                check_regular(file)
                if stored := stored_input(file):
                    arrays |= stored_arrays.arrays_of(stored)
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
