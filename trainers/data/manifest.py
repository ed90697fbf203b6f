"""The manifest of a token set on disk, and checks of its shards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from orchestrator.errors import DataUnusable
from orchestrator.storage import address
from orchestrator.types import codec
from trainers.file_digest import file_digest
from trainers.regular_files import check_regular, read_regular

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


def read(path: Path) -> Manifest:
    """The manifest at that path; every shard exists and has the right size."""
    try:
        manifest = codec.from_json(read_regular(path), Manifest)
    except OSError as error:
        raise DataUnusable(
            f"{address(path)}: no token set manifest can be read: {error.strerror}"
        ) from error
    except msgspec.DecodeError as error:
        raise DataUnusable(f"{address(path)}: not a token set manifest: {error}") from error
    for shard in manifest.shards:
        _check_size(path.parent / shard.file, shard.tokens * manifest.wire_dtype.itemsize)
    return manifest


def check_contents(path: Path, manifest: Manifest) -> None:
    """Read every shard through and compare its sha256 with the manifest's."""
    for shard in manifest.shards:
        file = path.parent / shard.file
        actual = file_digest(file)
        if actual != shard.sha256:
            raise DataUnusable(
                f"{address(file)}: sha256 is {actual}, against {shard.sha256} in the manifest:"
                " the shard has changed since it was packed"
            )


def _check_size(shard: Path, expected_bytes: int) -> None:
    try:
        actual_bytes = check_regular(shard)
    except OSError as error:
        raise DataUnusable(f"{address(shard)}: shard cannot be read: {error.strerror}") from error
    if actual_bytes != expected_bytes:
        raise DataUnusable(
            f"{address(shard)}: {actual_bytes} bytes, against {expected_bytes} in the manifest"
        )
