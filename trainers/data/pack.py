"""The command that makes a token set.

    python -m trainers.data.pack OUT INPUTS... [--glob '*.py'] [--tokenizer bytes]

An input is a file or a directory (every file below it that matches the glob, in order of name).
The tokenizer `bytes` is built in: it reads any file, a token is a byte and 256 ends a document.
With any other name the inputs are arrays of its tokens: .npy, or .bin in the type of the set.
"""

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.errors import DataUnusable
from orchestrator.types import codec
from trainers.data.manifest import FILE_NAME, Manifest, Shard

PIECE = 1 << 24
END_OF_TEXT = 256
BYTES_VOCAB = 257


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer's name, for the manifest, and the number of its tokens."""

    name: str
    vocab: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that holds every token."""
        return np.dtype("<u2" if self.vocab <= 1 << 16 else "<u4")


BYTES = Tokenizer(name="bytes", vocab=BYTES_VOCAB)


def pack(
    out: Path, inputs: list[Path], tokenizer: Tokenizer = BYTES, *, shard_tokens: int = 1 << 27
) -> Manifest:
    """Write a new token set at `out`, whole or not at all."""
    if out.exists():
        raise DataUnusable(f"{out}: already exists; a token set is never overwritten")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        manifest = _write(partial, inputs, tokenizer, shard_tokens)
        partial.chmod(0o755)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial)
        raise
    return manifest


def files_of(inputs: list[Path], glob: str) -> list[Path]:
    """The files of the inputs; those below a directory in order of name."""
    files: list[Path] = []
    for path in inputs:
        below = _files_below(path, glob) if path.is_dir() else [path]
        if not below or not below[0].is_file():
            raise DataUnusable(f"{path}: no file that matches {glob!r}")
        files += below
    return files


def _files_below(folder: Path, glob: str) -> list[Path]:
    """Hidden files and caches are left out."""
    paths = (path.relative_to(folder) for path in folder.rglob(glob) if path.is_file())
    return [folder / path for path in sorted(paths) if not any(map(_is_hidden, path.parts))]


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or part == "__pycache__"


def _write(folder: Path, inputs: list[Path], tokenizer: Tokenizer, shard_tokens: int) -> Manifest:
    pieces = (piece for path in inputs for piece in _pieces(path, tokenizer))
    shards = tuple(
        _write_shard(folder / f"tokens-{number:05d}.bin", (part for _, part in parts), tokenizer)
        for number, parts in groupby(_cut(pieces, shard_tokens), key=itemgetter(0))
    )
    if not shards:
        raise DataUnusable(f"no token in {', '.join(map(str, inputs))}")
    manifest = Manifest(
        tokenizer=tokenizer.name,
        vocab=tokenizer.vocab,
        dtype="uint16" if tokenizer.dtype.itemsize == 2 else "uint32",
        shards=shards,
    )
    (folder / FILE_NAME).write_text(codec.to_pretty_json(manifest))
    return manifest


def _cut(pieces: Iterator[np.ndarray], shard_tokens: int) -> Iterator[tuple[int, np.ndarray]]:
    """Each piece with the number of its shard; a piece is cut where a shard is full."""
    count = 0
    for piece in pieces:
        rest = piece
        while len(rest):
            number, used = divmod(count, shard_tokens)
            part, rest = np.split(rest, [shard_tokens - used])
            yield number, part
            count += len(part)


def _write_shard(path: Path, parts: Iterator[np.ndarray], tokenizer: Tokenizer) -> Shard:
    digest, tokens = hashlib.sha256(), 0
    with path.open("wb") as file:
        for part in parts:
            data = part.astype(tokenizer.dtype).tobytes()
            file.write(data)
            digest.update(data)
            tokens += len(part)
        file.flush()
        os.fsync(file.fileno())
    return Shard(file=path.name, tokens=tokens, sha256=digest.hexdigest())


def _pieces(path: Path, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The tokens of a file, a bounded number at a time."""
    if tokenizer == BYTES:
        yield from _text_pieces(path)
        return
    tokens = _token_array(path, tokenizer)
    for start in range(0, len(tokens), PIECE):
        piece = tokens[start : start + PIECE]
        low, high = int(piece.min()), int(piece.max())
        if low < 0 or high >= tokenizer.vocab:
            wrong = low if low < 0 else high
            raise DataUnusable(f"{path}: token {wrong}, against 0 to {tokenizer.vocab - 1}")
        yield piece


def _text_pieces(path: Path) -> Iterator[np.ndarray]:
    if path.suffix in (".npy", ".bin"):
        raise DataUnusable(f"{path}: an array of tokens; name the tokenizer that made it")
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield np.frombuffer(piece, np.uint8)
    yield np.array([END_OF_TEXT])


def _token_array(path: Path, tokenizer: Tokenizer) -> np.ndarray:
    try:
        tokens = _mapped(path, tokenizer.dtype)
    except (EOFError, OSError, ValueError) as error:
        raise DataUnusable(f"{path}: not an array of tokens: {error}") from error
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise DataUnusable(f"{path}: {tokens.dtype}{list(tokens.shape)}, against a row of integers")
    return tokens


def _mapped(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    if path.suffix == ".npy":
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
    if path.suffix == ".bin":
        return np.memmap(path, dtype=dtype, mode="r")
    raise ValueError("its name ends in neither .npy nor .bin")


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainers.data.pack", description=__doc__)
    parser.add_argument("out", type=Path, help="directory to make; must not exist")
    parser.add_argument("inputs", type=Path, nargs="+", help="files or directories")
    parser.add_argument("--glob", default="*", help="which files below a directory")
    parser.add_argument("--tokenizer", default=BYTES.name, help="bytes, or what made the arrays")
    parser.add_argument("--vocab", type=int, help="how many tokens the tokenizer has")
    parser.add_argument("--shard-tokens", type=int, default=1 << 27)
    arguments = parser.parse_args(argv)
    if (arguments.tokenizer == BYTES.name) != (arguments.vocab is None):
        parser.error(f"--vocab belongs to every tokenizer but {BYTES.name!r}, and to those alone")
    return arguments


def main(argv: list[str]) -> int:
    """Pack, and print one line about the result."""
    options = _arguments(argv)
    tokenizer = Tokenizer(name=options.tokenizer, vocab=options.vocab) if options.vocab else BYTES
    try:
        inputs = files_of(options.inputs, options.glob)
        manifest = pack(options.out, inputs, tokenizer, shard_tokens=options.shard_tokens)
    except DataUnusable as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(
        f"{options.out / FILE_NAME}: {manifest.tokens:,} tokens of {len(inputs):,} files in"
        f" {len(manifest.shards)} shards, vocabulary {manifest.vocab:,}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
