"""Batches from a token set on disk, shuffled by epoch. The set is a ring of tokens, cut into
windows of `length` tokens without end. An epoch is the next `tokens // length` windows, in its own
order: it uses no token twice and leaves out fewer than `length`, with which the next begins. A
window is read with one more token, its last target. Stages follow one another in the ring, so none
repeats what another has used while the set lasts.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from orchestrator.errors import DataUnusable
from orchestrator.storage.addresses import (
    StoredInput,
    address,
    check_regular,
    file_digest,
    is_copy,
    read_regular,
    stored_input,
)
from orchestrator.values import codec


@dataclass(frozen=True)
class _StoredTokens:
    """The tokens of a shard on a bucket. Nothing of it is kept here."""

    stored: StoredInput
    dtype: np.dtype[Any]
    count: int

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(self.count)
        first, last = start * self.dtype.itemsize, stop * self.dtype.itemsize
        return np.frombuffer(self.stored.read(first, last), self.dtype)


FILE_NAME = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of tokens, little-endian, without a header."""

    file: str
    tokens: Annotated[int, msgspec.Meta(ge=1)]
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A token set: documents in order, each followed by the tokenizer's end-of-text token."""

    schema: Literal[1] = 1
    tokenizer: str
    vocab: int
    dtype: Literal["uint16", "uint32"]
    shards: Annotated[tuple[Shard, ...], msgspec.Meta(min_length=1)]

    @property
    def wire_dtype(self) -> np.dtype[Any]:
        """The type in the files, which is little-endian on every machine."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)


_ROUNDS = 6  # of the Feistel network that shuffles
_READERS = 32  # of windows of a bucket at once: an answer takes tens of milliseconds


@dataclass(frozen=True)
class _TokenSet:
    path: Path
    manifest: Manifest
    _shards: tuple[np.ndarray | _StoredTokens, ...] = field(repr=False)
    _ends: np.ndarray = field(repr=False)

    @staticmethod
    def open(path: Path, *, verify: bool = False) -> "_TokenSet":
        """Open the set of that manifest; `verify` reads it through and checks every sha256."""
        try:
            manifest = codec.from_json(read_regular(path), Manifest)
        except OSError as error:
            fault = f"no token set manifest can be read: {error.strerror}"
            raise DataUnusable(f"{address(path)}: {fault}") from error
        except msgspec.DecodeError as error:
            raise DataUnusable(f"{address(path)}: not a token set manifest: {error}") from error
        dtype, shards = manifest.wire_dtype, list[np.ndarray | _StoredTokens]()
        for shard in manifest.shards:  # every one exists and has the right size
            where = address(path.parent / shard.file)
            try:
                actual_bytes = check_regular(path.parent / shard.file)
            except OSError as error:
                raise DataUnusable(f"{where}: shard cannot be read: {error.strerror}") from error
            expected = shard.tokens * dtype.itemsize
            if actual_bytes != expected:
                why = f"{actual_bytes} bytes, against {expected} in the manifest"
                raise DataUnusable(f"{where}: {why}")
        for shard in manifest.shards:
            file = path.parent / shard.file
            if verify and (actual := file_digest(file)) != shard.sha256:
                raise DataUnusable(
                    f"{address(file)}: sha256 is {actual}, against {shard.sha256} in the manifest:"
                    " the shard has changed since it was packed"
                )
            stored = stored_input(file)
            shards.append(
                _StoredTokens(stored, dtype, stored.size // dtype.itemsize)
                if stored
                else np.memmap(file, dtype=dtype, mode="r")
            )
        ends = np.array(list(accumulate(shard.tokens for shard in manifest.shards)), np.int64)
        return _TokenSet(path, manifest, tuple(shards), ends)

    def read(self, start: int, count: int) -> np.ndarray:
        """`count` tokens from `start` on, around the ring, as int32."""
        pieces = []
        while count > 0:
            start %= self.manifest.tokens
            shard = int(np.searchsorted(self._ends, start, side="right"))
            taken = min(count, int(self._ends[shard]) - start)
            offset = start - int(self._ends[shard]) + self.manifest.shards[shard].tokens
            piece = self._shards[shard][offset : offset + taken]
            if int(piece.max()) >= self.manifest.vocab:
                where = int(np.argmax(piece >= self.manifest.vocab))
                raise DataUnusable(
                    f"{address(self.path.parent / self.manifest.shards[shard].file)}: token"
                    f" {offset + where} is {piece[where]}, against a vocabulary of"
                    f" {self.manifest.vocab}"
                )
            pieces.append(piece.astype(np.int32))
            start, count = start + taken, count - taken
        return np.concatenate(pieces)

    def windows(self, starts: Iterable[int], count: int) -> np.ndarray:
        """`count` tokens from each start on, as int32 [starts, count]."""
        if not is_copy(self.path):
            return np.stack([self.read(start, count) for start in starts])
        with ThreadPoolExecutor(_READERS) as pool:
            return np.stack(list(pool.map(lambda start: self.read(start, count), starts)))


def open_for(vocab: int, path: Path, *, verify: bool = False) -> _TokenSet:
    """Open the set of that manifest for a model with `vocab` words."""
    source = _TokenSet.open(path, verify=verify)
    if source.manifest.vocab > vocab:
        raise DataUnusable(
            f"{address(path)}: tokens of {source.manifest.tokenizer!r} reach"
            f" {source.manifest.vocab - 1}, against a model vocabulary of {vocab}"
        )
    return source


@dataclass(frozen=True)
class ShuffledWindows:
    """Windows of a token set from `first_token` on; an epoch has at most `most_windows`."""

    source: _TokenSet
    sequences: int
    length: int
    seed: int
    first_token: int = 0
    most_windows: int | None = None

    def __post_init__(self) -> None:
        windows = self.source.manifest.tokens // self.length
        if windows < self.sequences:
            raise DataUnusable(
                f"{address(self.source.path)}: {self.source.manifest.tokens} tokens are {windows}"
                f" windows of {self.length}, against {self.sequences} sequences in one batch"
            )

    @property
    def digest(self) -> str:
        # The sha256 of every shard is part of it.
        return codec.digest(self.source.manifest)

    @property
    def windows(self) -> int:
        """Windows in an epoch."""
        whole = self.source.manifest.tokens // self.length
        return whole if self.most_windows is None else min(whole, self.most_windows)

    def batch(self, step: int, rows: range) -> np.ndarray:
        # The number of each row's window, counted from the beginning of the first epoch.
        samples = step * self.sequences + np.asarray(rows, np.int64)
        epochs, places = np.divmod(samples, self.windows)
        windows = np.empty_like(samples)
        for epoch in np.unique(epochs):
            mine = epochs == epoch
            order = _permuted(places[mine], self.windows, seed=self.seed, epoch=int(epoch))
            windows[mine] = epoch * self.windows + order
        starts = self.first_token + windows * self.length
        return self.source.windows(map(int, starts), self.length + 1)


def _permuted(indices: np.ndarray, size: int, *, seed: int, epoch: int) -> np.ndarray:
    """Return the indices in the pseudo-random order of (seed, epoch), which permutes 0 .. size - 1.
    A Feistel network permutes 2^(2h) >= size numbers; an image outside `size` goes through it
    again. So the whole is a bijection, and an epoch needs no list in memory.
    """
    keys = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(_ROUNDS)
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    images = _network(indices.astype(np.uint64), keys, half_bits)
    while (outside := images >= size).any():
        images[outside] = _network(images[outside], keys, half_bits)
    return images.astype(np.int64)


def _network(values: np.ndarray, keys: np.ndarray, half_bits: int) -> np.ndarray:
    """The Feistel network: each round swaps the halves and hashes one into the other."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        # A 64-bit hash of each value: every bit of the input moves every bit of the output.
        hashed = right ^ key
        for _ in range(2):
            hashed = (hashed ^ (hashed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        hashed ^= hashed >> np.uint64(32)
        left, right = right, left ^ (hashed & mask)
    joined: np.ndarray = (left << shift) | right
    return joined
