"""A new file of safetensors on disk, whose arrays are filled in any order.

The library writes arrays that are in memory. A model may be larger than any memory.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

TYPES = {np.dtype("float32"): "F32", np.dtype(ml_dtypes.bfloat16): "BF16"}
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
            "dtype": TYPES[type_],
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
