"""The command that makes a token set; `orch data pack` runs it."""

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from orchestrator.errors import DataUnusable, Interrupted, OrchError, Usage
from orchestrator.formatting import counted
from orchestrator.values import codec
from orchestrator.values.refusal import ErrorReport, Hint
from trainers.data.documents import (
    FIELD,
    Bytes,
    Encoder,
    HuggingFaceTokenizer,
    TokenArrays,
    check_local,
    dtype_of,
    files_of,
    has_rows,
    tokenizer_file,
)
from trainers.data.tokens import FILE_NAME, Manifest, Shard

BYTES = Bytes()
ABOUT = """\
Pack text, JSON lines or Parquet into a token set.

With a tokenizer.json, JSON lines (.jsonl, also .gz) and Parquet have a document in each row, and
any other file is one document. The tokenizer `bytes` reads any file: a byte is a token, and 256
ends a document. With the name of another tokenizer and --vocab, inputs are arrays of its tokens:
.npy, or .bin in the type of the set.

Example: orch data pack tokens texts/ --glob '*.jsonl' --tokenizer SmolLM2-135M
"""
SHOW_EVERY_S = 2.0


def pack(
    out: Path, inputs: list[Path], encoder: Encoder = BYTES, *, shard_tokens: int = 1 << 27
) -> Manifest:
    """Write a new token set at `out`, whole or not at all."""
    if shard_tokens < 1:
        raise DataUnusable(f"--shard-tokens {shard_tokens}: must be at least 1")
    check_local(out, "pack into a folder here, and copy it there")
    if os.path.lexists(out):
        raise DataUnusable(f"{out}: already exists; choose another folder, or remove this one")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        manifest = _write(partial, inputs, encoder, shard_tokens)
        partial.chmod(0o755)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial)
        raise
    return manifest


def _write(folder: Path, inputs: list[Path], encoder: Encoder, shard_tokens: int) -> Manifest:
    dtype = dtype_of(encoder)
    pieces = _counted(piece for path in inputs for piece in encoder.pieces(path))
    shards = tuple(
        _write_shard(folder / f"tokens-{number:05d}.bin", (part for _, part in parts), dtype)
        for number, parts in groupby(_cut(pieces, shard_tokens), key=itemgetter(0))
    )
    if not shards:
        raise DataUnusable(f"no token in {', '.join(map(str, inputs))}")
    manifest = Manifest(
        tokenizer=encoder.name,
        vocab=encoder.vocab,
        dtype="uint16" if dtype.itemsize == 2 else "uint32",
        shards=shards,
    )
    (folder / FILE_NAME).write_text(codec.to_pretty_json(manifest))
    return manifest


def _counted(pieces: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """The pieces; on the error stream, now and then, how many tokens they have."""
    tokens, shown_at_s = 0, time.monotonic()
    for piece in pieces:
        tokens += len(piece)
        if time.monotonic() - shown_at_s > SHOW_EVERY_S:
            print(f"packing: {tokens:,} tokens", file=sys.stderr, flush=True)
            shown_at_s = time.monotonic()
        yield piece


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


def _write_shard(path: Path, parts: Iterator[np.ndarray], dtype: np.dtype[Any]) -> Shard:
    digest, tokens = hashlib.sha256(), 0
    with path.open("wb") as file:
        for part in parts:
            data = part.astype(dtype).tobytes()
            file.write(data)
            digest.update(data)
            tokens += len(part)
        file.flush()
        os.fsync(file.fileno())
    return Shard(file=path.name, tokens=tokens, sha256=digest.hexdigest())


def encoder_of(options: argparse.Namespace) -> Encoder:
    """What makes tokens of the inputs."""
    if options.vocab is not None:
        return TokenArrays(name=options.tokenizer, vocab=options.vocab)
    if options.tokenizer == BYTES.name:
        return BYTES
    file = tokenizer_file(options.tokenizer)
    return HuggingFaceTokenizer(file, options.end, options.field)


class Parser(argparse.ArgumentParser):
    """Raises where the words make no sense."""

    def error(self, message: str) -> NoReturn:
        raise Usage(message, next_command=f"{self.prog} --help")


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="orch data pack",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="the folder to make; it must not exist")
    parser.add_argument("inputs", type=Path, nargs="+", help="files or folders")
    parser.add_argument("--glob", default="*", help="the files of a folder to read; default: all")
    about = "a tokenizer.json, its folder, a name, or bytes (the default)"
    parser.add_argument("--tokenizer", default=BYTES.name, help=about)
    about = "inputs are arrays of tokens below N"
    parser.add_argument("--vocab", type=int, metavar="N", help=about)
    parser.add_argument("--end", metavar="TOKEN", help="ends a document; default: end of text")
    parser.add_argument("--field", default=FIELD, help="of JSON lines and Parquet; default: text")
    about = "the most tokens of a file"
    parser.add_argument("--shard-tokens", type=int, default=1 << 27, metavar="N", help=about)
    parser.add_argument("--json", action="store_true", help="Print the set, or an error, as JSON.")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Pack, and print what there is and how a spec names it."""
    try:
        options = _arguments(argv)
        encoder = encoder_of(options)
        inputs = files_of(options.inputs, options.glob)
        manifest = pack(options.out, inputs, encoder, shard_tokens=options.shard_tokens)
    except OrchError as error:
        return fail(error, as_json="--json" in argv)
    except KeyboardInterrupt:
        stopped = Interrupted("packing was interrupted; nothing was written")
        return fail(stopped, as_json="--json" in argv)
    if options.json:
        print(codec.to_pretty_json(manifest), end="")
        return 0
    path = options.out / FILE_NAME
    print(
        f"{path}: {manifest.tokens:,} tokens of {counted(len(inputs), 'file')} in"
        f" {counted(len(manifest.shards), 'shard')}, vocabulary {manifest.vocab:,}"
    )
    rows = next(filter(has_rows, inputs), None)
    if encoder is BYTES and rows is not None:
        print(
            f"warning: the tokenizer bytes takes {rows} as it is; --tokenizer tokenizer.json takes"
            " the texts of its rows"
        )
    end = f", separator: {encoder.end}" if isinstance(encoder, HuggingFaceTokenizer) else ""
    print(f"Next: name it in a spec: experiment.data: {{kind: tokens, path: {path}{end}}}")
    return 0


def fail(error: OrchError, *, as_json: bool) -> int:
    """Print an error as the other commands do; its exit code."""
    following = error.next_command or "orch data pack --help"
    print(f"error: {error.message}\nNext: {following}", file=sys.stderr)
    if as_json:
        hint = Hint(kind="command", value=following, text=f"Next: {following}")
        code, message, exit_code = error.code, error.message, error.exit_code
        report = ErrorReport(code=code, message=message, exit_code=exit_code, suggestions=(hint,))
        print(codec.to_pretty_json(codec.whole(report)), end="")
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
