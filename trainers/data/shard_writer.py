"""Write tokens to shard files of bounded size, each with its count and sha256."""

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from trainers.data.manifest import Shard


class ShardWriter:
    """Writes tokens in order; `shards` lists the finished files."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], shard_tokens: int) -> None:
        self.shards: list[Shard] = []
        self._folder, self._dtype, self._shard_tokens = folder, dtype, shard_tokens
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._finish()

    def write(self, tokens: np.ndarray) -> None:
        """Append tokens; a full shard is followed by a new one."""
        while len(tokens):
            if self._file is None:
                self._begin()
            taken = tokens[: self._shard_tokens - self._written]
            self._append(taken.astype(self._dtype).tobytes(), len(taken))
            tokens = tokens[len(taken) :]
            if self._written == self._shard_tokens:
                self._finish()

    def _begin(self) -> None:
        self._name = f"tokens-{len(self.shards):05d}.bin"
        self._file = (self._folder / self._name).open("wb")
        self._sum = hashlib.sha256()
        self._written = 0

    def _append(self, data: bytes, count: int) -> None:
        assert self._file is not None
        self._file.write(data)
        self._sum.update(data)
        self._written += count

    def _finish(self) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        self.shards.append(
            Shard(file=self._name, tokens=self._written, sha256=self._sum.hexdigest())
        )
