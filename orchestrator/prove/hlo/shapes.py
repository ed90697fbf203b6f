"""Parse the shapes of HLO text."""

import re
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
BITS = re.compile(r"[a-z]+(\d+)")
TILE = re.compile(r"T\(([\d,]+)\)")
SPACE = re.compile(r"S\((\d+)\)")
HBM = 0  # the memory that a layout does not name


@dataclass(frozen=True)
class Array:
    """One array; `layout` as written: dimensions from minor to major, tiles, memory space."""

    dtype: str
    dimensions: tuple[int, ...]
    layout: str = ""

    @cached_property
    def elements(self) -> int:
        return prod(self.dimensions)

    @property
    def bytes(self) -> float:
        return self.elements * bits(self.dtype) / 8

    @property
    def is_in_hbm(self) -> bool:
        match = SPACE.search(self.layout)
        return (int(match[1]) if match else HBM) == HBM

    @cached_property
    def padded_bytes(self) -> float:
        """Bytes in memory, where the minor dimensions are padded to whole tiles."""
        order = [int(d) for d in self.layout.split(":")[0].split(",") if d.isdigit()]
        sizes = [self.dimensions[d] for d in reversed(order)] or list(self.dimensions)
        tiles = TILE.search(self.layout)
        tile = _numbers(tiles[1]) if tiles else ()
        for back, length in enumerate(reversed(tile), start=1):
            if back <= len(sizes):
                sizes[-back] = ceil(sizes[-back] / length) * length
        return prod(sizes) * bits(self.dtype) / 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dimensions))}]"


def bits(dtype: str) -> int:
    """Bits of an element: bf16 16, f8e4m3fn 8, pred 8; tokens and opaque values hold none."""
    if dtype in {"token", "opaque"}:
        return 0
    match = BITS.match(dtype)
    return int(match[1]) if match else 8


def arrays(shape: str) -> tuple[Array, ...]:
    """All arrays of a shape as written: one, or those of a tuple."""
    return tuple(
        Array(dtype, _numbers(sizes), layout) for dtype, sizes, layout in ARRAY.findall(shape)
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def end_of_shape(line: str, start: int) -> int:
    """The end of the shape at `start`: a tuple's closing bracket, or the next space."""
    if line[start] != "(":
        return line.index(" ", start)
    depth = 0
    for place in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        if depth == 0:
            return place + 1
    raise ValueError(f"a tuple is never closed: {line[start : start + 80]}")
