"""The tokens of a shard: memory-mapped where a file system has it, read in ranges from a bucket."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from orchestrator.storage.inputs import StoredInput, stored_input


class Tokens(Protocol):
    """A row of tokens, of which a part is read at a time."""

    def __getitem__(self, part: slice, /) -> np.ndarray: ...


@dataclass(frozen=True)
class StoredTokens:
    """The tokens of an object. Nothing of it is kept here."""

    stored: StoredInput
    dtype: np.dtype[Any]
    count: int

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(self.count)
        first, last = start * self.dtype.itemsize, stop * self.dtype.itemsize
        return np.frombuffer(self.stored.read(first, last), self.dtype)


def tokens_in(path: Path, dtype: np.dtype[Any]) -> Tokens:
    """The tokens of a shard."""
    if stored := stored_input(path):
        return StoredTokens(stored, dtype, stored.size // dtype.itemsize)
    return np.memmap(path, dtype=dtype, mode="r")
