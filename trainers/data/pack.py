"""The command that makes a token set; `orch data pack` runs it."""

import argparse
import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from orchestrator.errors import DataUnusable, Interrupted, OrchError, Usage
from orchestrator.formatting import counted
from orchestrator.plugins import require
from orchestrator.storage.addresses import SCHEMES, read_regular
from orchestrator.values import codec
from orchestrator.values.plan import ErrorReport, Hint
from trainers.data.tokens import FILE_NAME, Manifest, Shard

# What turns files into tokens: bytes, a Hugging Face tokenizer, or arrays of tokens

_FIELD = "text"
_PIECE = 1 << 24
_END_OF_TEXT = 256
_TOGETHER = 256  # documents that a tokenizer encodes at once, on all cores
_ARRAYS = (".npy", ".bin")


# Each has the tokens of a file as `pieces`, a bounded number at a time; `name` and `vocab` go into
# the manifest of the set.


def _dtype_of(vocab: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocab <= 1 << 16 else "<u4")


class _Bytes:
    """A token is a byte, and 256 ends a document. Every file is one."""

    name = "bytes"
    vocab = 257

    def pieces(self, path: Path) -> Iterator[np.ndarray]:
        if path.suffix in _ARRAYS:
            raise DataUnusable(f"{path}: an array of tokens; name the tokenizer that made it")
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                yield np.frombuffer(piece, np.uint8)
        yield np.array([_END_OF_TEXT])


@dataclass(kw_only=True)
class _TokenArrays:
    """Files are arrays of the tokens of that tokenizer."""

    name: str
    vocab: int

    def pieces(self, path: Path) -> Iterator[np.ndarray]:
        try:
            if path.suffix == ".npy":
                tokens: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
            elif path.suffix == ".bin":
                tokens = np.memmap(path, dtype=_dtype_of(self.vocab), mode="r")
            else:
                raise ValueError("its name ends in neither .npy nor .bin")
        except (EOFError, OSError, ValueError) as error:
            raise DataUnusable(f"{path}: not an array of tokens: {error}") from error
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            kind = f"{tokens.dtype}{list(tokens.shape)}"
            raise DataUnusable(f"{path}: {kind}, against a row of integers")
        for start in range(0, len(tokens), _PIECE):
            piece = tokens[start : start + _PIECE]
            low, high = int(piece.min()), int(piece.max())
            wrong = low if low < 0 else high
            if not 0 <= wrong < self.vocab:
                raise DataUnusable(f"{path}: token {wrong}, against 0 to {self.vocab - 1}")
            yield piece


class _HuggingFaceTokenizer:
    """A tokenizer.json. `end` is the token after each document; if none is named, the end of text
    of the config in the same folder. A document of JSON lines and Parquet is the text in `field`.
    """

    def __init__(self, file: Path, end: str | None = None, field: str = _FIELD) -> None:
        require("data")
        from tokenizers import Tokenizer  # noqa: PLC0415  who packs bytes needs no tokenizers

        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:
            raise DataUnusable(
                f"{file}: not a tokenizer ({error}); name the tokenizer.json of a model"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._field = field
        self.name = file.absolute().parent.name if file.name == "tokenizer.json" else file.name
        self.vocab = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        if not end:
            try:
                config = json.loads(read_regular(file.parent / "tokenizer_config.json"))
            except (OSError, ValueError, RecursionError):
                config = None
            named = config.get("eos_token") if isinstance(config, dict) else None
            named = named.get("content") if isinstance(named, dict) else named
            end = named if isinstance(named, str) else None
        token = None if end is None else self._tokenizer.token_to_id(end)
        if token is None:
            reason = "no token ends a document" if end is None else f"it has no token {end!r}"
            # Tokens that no text is made of may be meant.
            added = self._tokenizer.get_added_tokens_decoder().values()
            special = [added_token.content for added_token in added if added_token.special]
            such_as = f", such as {shlex.quote(special[0])}" if special else ""
            raise DataUnusable(f"{file}: {reason}: name one of its tokens with --end{such_as}")
        self.end = int(token)

    def pieces(self, path: Path) -> Iterator[np.ndarray]:
        texts = _documents(path, self._field)
        while together := list(islice(texts, _TOGETHER)):
            try:
                encoded = self._tokenizer.encode_batch_fast(together, add_special_tokens=False)
            except TypeError as error:
                raise DataUnusable(f"{path}: a text has half a character: {error}") from error
            tokens = (np.array([*text.ids, self.end], np.uint32) for text in encoded)
            yield np.concatenate(list(tokens))


# The documents of a file: JSON lines and Parquet have one a row, any other file is one

_LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".json.gz")
_PARQUET = ".parquet"
_ROWS = 1024  # of a Parquet file in memory


def _documents(path: Path, field: str) -> Iterator[str]:
    try:
        if path.name.endswith(_LINES):
            yield from _of_lines(path, field)
        elif path.suffix == _PARQUET:
            yield from _of_parquet(path, field)
        else:
            yield path.read_text(encoding="utf-8")
    except (OSError, EOFError) as error:
        raise DataUnusable(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise DataUnusable(f"{path}: not UTF-8 at byte {error.start:,}") from error


def _of_lines(path: Path, field: str) -> Iterator[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataUnusable(f"{path}:{number}: not JSON: {error}") from error
            text = row.get(field) if isinstance(row, dict) else None
            if not isinstance(text, str):
                known = ", ".join(row) if isinstance(row, dict) else "no keys"
                raise DataUnusable(f"{path}:{number}: has no text in {field!r}, but {known}")
            yield text


def _of_parquet(path: Path, field: str) -> Iterator[str]:
    from pyarrow import ArrowInvalid, parquet  # noqa: PLC0415  others need no pyarrow

    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise DataUnusable(f"{path}: not Parquet: {error}") from error
    with file:
        if field not in file.schema_arrow.names:
            known = ", ".join(file.schema_arrow.names)
            raise DataUnusable(f"{path}: has no column {field!r}, but {known}")
        for batch in file.iter_batches(_ROWS, columns=[field]):
            for text in batch.column(0).to_pylist():
                if not isinstance(text, str):
                    raise DataUnusable(f"{path}: column {field!r} has {text!r}, against text")
                yield text


# The files and the tokenizer of the command line

_TOKENIZER = "tokenizer.json"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")  # as Hugging Face names models


def _files_of(folder: Path, glob: str) -> list[Path]:
    """The folder if it is a file, or the files below it that match, in order of name."""
    _check_local(folder, "copy its texts here first")
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise DataUnusable(f"{folder}: no such file or folder; name files of text, or a folder")
    # Without hidden files and caches.
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    hidden = re.compile(r"(^|/)(\.|__pycache__(/|$))")
    visible = [path for path in paths if not hidden.search(path.as_posix())]
    if not visible:
        raise DataUnusable(f"{folder}: has no files; name the folder that has the texts")
    try:
        matching = {path.relative_to(folder) for path in folder.rglob(glob)} & set(visible)
    except (ValueError, NotImplementedError) as error:  # it is empty, or begins at the root
        fault = f"--glob {glob!r}: must be a pattern of names, such as '*.txt'"
        raise DataUnusable(fault) from error
    if not matching:
        endings = sorted({f"'*{path.suffix}'" for path in visible})[:3]
        raise DataUnusable(
            f"{folder}: no file matches --glob {glob!r}, of {counted(len(visible), 'file')}; try"
            f" {' or '.join(endings)}"
        )
    return [folder / path for path in sorted(matching)]


def _tokenizer_file(name: str) -> Path:
    path = Path(name)
    _check_local(path, "copy its tokenizer.json here first")
    if path.is_dir():
        if not (path / _TOKENIZER).is_file():
            raise DataUnusable(f"{name}: has no {_TOKENIZER}; name the folder of a model that has")
        return path / _TOKENIZER
    if path.is_file():
        return path
    if _REPOSITORY.fullmatch(name):
        raise DataUnusable(
            f"{name}: no such file, and nothing is fetched; after `hf download {name}"
            f" tokenizer.json tokenizer_config.json --local-dir {path.name}` write --tokenizer"
            f" {path.name}"
        )
    raise DataUnusable(
        f"{name}: no such file; --tokenizer takes a {_TOKENIZER}, the folder that has it, or bytes"
    )


def _check_local(path: Path, instead: str) -> None:
    """Refuse an address of a bucket: it would be a path of this machine."""
    scheme, *rest = path.parts or ("",)
    if scheme.removesuffix(":") in SCHEMES and scheme.endswith(":"):
        raise DataUnusable(f"{scheme}//{'/'.join(rest)}: is on a bucket; {instead}")


_Encoder = _Bytes | _TokenArrays | _HuggingFaceTokenizer
_BYTES = _Bytes()
_ABOUT = """\
Pack text, JSON lines or Parquet into a token set.

With a tokenizer.json, JSON lines (.jsonl, also .gz) and Parquet have a document in each row, and
any other file is one document. The tokenizer `bytes` reads any file: a byte is a token, and 256
ends a document. With the name of another tokenizer and --vocab, inputs are arrays of its tokens:
.npy, or .bin in the type of the set.

Example: orch data pack tokens texts/ --glob '*.jsonl' --tokenizer SmolLM2-135M
"""
_SHOW_EVERY_S = 2.0


def pack(
    out: Path, inputs: list[Path], encoder: _Encoder = _BYTES, *, shard_tokens: int = 1 << 27
) -> Manifest:
    """Write a new token set at `out`, whole or not at all."""
    if shard_tokens < 1:
        raise DataUnusable(f"--shard-tokens {shard_tokens}: must be at least 1")
    _check_local(out, "pack into a folder here, and copy it there")
    if os.path.lexists(out):
        raise DataUnusable(f"{out}: already exists; choose another folder, or remove this one")
    dtype, shards = _dtype_of(encoder.vocab), list[Shard]()
    pieces = (piece for path in inputs for piece in encoder.pieces(path))
    with new_folder(out) as folder:
        for number, parts in groupby(_cut(pieces, shard_tokens), key=itemgetter(0)):
            path, digest, tokens = folder / f"tokens-{number:05d}.bin", hashlib.sha256(), 0
            with path.open("wb") as file:
                for _, part in parts:
                    data = part.astype(dtype).tobytes()
                    file.write(data)
                    digest.update(data)
                    tokens += len(part)
                file.flush()
                os.fsync(file.fileno())
            shards.append(Shard(file=path.name, tokens=tokens, sha256=digest.hexdigest()))
        if not shards:
            raise DataUnusable(f"no token in {', '.join(map(str, inputs))}")
        manifest = Manifest(
            tokenizer=encoder.name,
            vocab=encoder.vocab,
            dtype="uint16" if dtype.itemsize == 2 else "uint32",
            shards=tuple(shards),
        )
        (folder / FILE_NAME).write_text(codec.to_pretty_json(manifest))
    return manifest


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a hidden folder that becomes `out`, or is removed where the block fails."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield partial
        partial.chmod(0o755)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial)
        raise


def _cut(pieces: Iterator[np.ndarray], shard_tokens: int) -> Iterator[tuple[int, np.ndarray]]:
    """Each piece with the number of its shard; a piece is cut where a shard is full."""
    # The error stream shows now and then how many tokens there are.
    count, shown_at_s = 0, time.monotonic()
    for piece in pieces:
        if time.monotonic() - shown_at_s > _SHOW_EVERY_S:
            print(f"packing: {count + len(piece):,} tokens", file=sys.stderr, flush=True)
            shown_at_s = time.monotonic()
        rest = piece
        while len(rest):
            number, used = divmod(count, shard_tokens)
            part, rest = np.split(rest, [shard_tokens - used])
            yield number, part
            count += len(part)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Usage(message, next_command=f"{self.prog} --help")


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="orch data pack",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="the folder to make; it must not exist")
    parser.add_argument("inputs", type=Path, nargs="+", help="files or folders")
    parser.add_argument("--glob", default="*", help="the files of a folder to read; default: all")
    about = "a tokenizer.json, its folder, a name, or bytes (the default)"
    parser.add_argument("--tokenizer", default=_BYTES.name, help=about)
    about = "inputs are arrays of tokens below N"
    parser.add_argument("--vocab", type=int, metavar="N", help=about)
    parser.add_argument("--end", metavar="TOKEN", help="ends a document; default: end of text")
    parser.add_argument("--field", default=_FIELD, help="of JSON lines and Parquet; default: text")
    about = "the most tokens of a file"
    parser.add_argument("--shard-tokens", type=int, default=1 << 27, metavar="N", help=about)
    parser.add_argument("--json", action="store_true", help="Print the set, or an error, as JSON.")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    try:
        options = _arguments(argv)
        encoder: _Encoder = _BYTES
        if options.vocab is not None:
            encoder = _TokenArrays(name=options.tokenizer, vocab=options.vocab)
        elif options.tokenizer != _BYTES.name:
            file = _tokenizer_file(options.tokenizer)
            encoder = _HuggingFaceTokenizer(file, options.end, options.field)
        inputs = [file for path in options.inputs for file in _files_of(path, options.glob)]
        manifest = pack(options.out, inputs, encoder, shard_tokens=options.shard_tokens)
    except OrchError as error:
        return _fail(error, as_json="--json" in argv)
    except KeyboardInterrupt:
        stopped = Interrupted("packing was interrupted; nothing was written")
        return _fail(stopped, as_json="--json" in argv)
    if options.json:
        print(codec.to_pretty_json(manifest), end="")
        return 0
    path = options.out / FILE_NAME
    print(
        f"{path}: {manifest.tokens:,} tokens of {counted(len(inputs), 'file')} in"
        f" {counted(len(manifest.shards), 'shard')}, vocabulary {manifest.vocab:,}"
    )
    rows = [path for path in inputs if path.name.endswith((*_LINES, _PARQUET))]
    if encoder is _BYTES and rows:
        print(
            f"warning: the tokenizer bytes takes {rows[0]} as it is; --tokenizer tokenizer.json"
            " takes the texts of its rows"
        )
    end = f", separator: {encoder.end}" if isinstance(encoder, _HuggingFaceTokenizer) else ""
    print(f"Next: name it in a spec: experiment.data: {{kind: tokens, path: {path}{end}}}")
    return 0


def _fail(error: OrchError, *, as_json: bool) -> int:
    """Print an error as the other commands do; its exit code."""
    following = error.next_command or "orch data pack --help"
    print(f"error: {error.message}\nNext: {following}", file=sys.stderr)
    if as_json:
        hint = Hint(kind="command", value=following, text=f"Next: {following}")
        code, message, exit_code = error.code, error.message, error.exit_code
        report = ErrorReport(code=code, message=message, exit_code=exit_code, suggestions=(hint,))
        print(codec.to_pretty_json(report), end="")
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
