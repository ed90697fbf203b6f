"""Reads the documents of a file: JSON lines and Parquet have one a row, any other file is one."""

import gzip
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from orchestrator.errors import DataUnusable
from orchestrator.formatting import counted
from orchestrator.storage.addresses import SCHEMES
from trainers.files import read_regular

FIELD = "text"
LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".json.gz")
PARQUET = ".parquet"
ROWS = 1024  # of a Parquet file in memory


def has_rows(path: Path) -> bool:
    """Whether a file has a document in each row."""
    return path.name.endswith((*LINES, PARQUET))


def documents(path: Path, field: str = FIELD) -> Iterator[str]:
    """The texts of a file, one after another."""
    try:
        if path.name.endswith(LINES):
            yield from _of_lines(path, field)
        elif path.suffix == PARQUET:
            yield from _of_parquet(path, field)
        else:
            yield path.read_text(encoding="utf-8")
    except (OSError, EOFError) as error:
        raise DataUnusable(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise DataUnusable(f"{path}: not UTF-8 at byte {error.start:,}") from error


def _of_lines(path: Path, field: str) -> Iterator[str]:
    with _opened(path) as file:
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


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


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
        for batch in file.iter_batches(ROWS, columns=[field]):
            for text in batch.column(0).to_pylist():
                if not isinstance(text, str):
                    raise DataUnusable(f"{path}: column {field!r} has {text!r}, against text")
                yield text


# What turns files into tokens: bytes, a Hugging Face tokenizer, or arrays of tokens.


PIECE = 1 << 24
END_OF_TEXT = 256
TOGETHER = 256  # documents that a tokenizer encodes at once, on all cores
ARRAYS = (".npy", ".bin")


class Encoder(Protocol):
    """Makes tokens of a file. `name` and `vocab` go into the manifest of the set."""

    @property
    def name(self) -> str: ...
    @property
    def vocab(self) -> int: ...

    def pieces(self, path: Path) -> Iterator[np.ndarray]:
        """The tokens of a file, a bounded number at a time."""
        ...


def dtype_of(encoder: Encoder) -> np.dtype[Any]:
    """The smallest type that holds every token."""
    return np.dtype("<u2" if encoder.vocab <= 1 << 16 else "<u4")


@dataclass(frozen=True)
class Bytes:
    """A token is a byte, and 256 ends a document. Every file is one."""

    name: str = "bytes"
    vocab: int = 257

    def pieces(self, path: Path) -> Iterator[np.ndarray]:
        if path.suffix in ARRAYS:
            raise DataUnusable(f"{path}: an array of tokens; name the tokenizer that made it")
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                yield np.frombuffer(piece, np.uint8)
        yield np.array([END_OF_TEXT])


@dataclass(frozen=True, kw_only=True)
class TokenArrays:
    """Files are arrays of the tokens of that tokenizer."""

    name: str
    vocab: int

    def pieces(self, path: Path) -> Iterator[np.ndarray]:
        tokens = _token_array(path, dtype_of(self))
        for start in range(0, len(tokens), PIECE):
            piece = tokens[start : start + PIECE]
            low, high = int(piece.min()), int(piece.max())
            if low < 0 or high >= self.vocab:
                wrong = low if low < 0 else high
                raise DataUnusable(f"{path}: token {wrong}, against 0 to {self.vocab - 1}")
            yield piece


class HuggingFaceTokenizer:
    """A tokenizer.json. `end` is the token after each document: the end of text of the config
    beside it, unless one is named. Of JSON lines and Parquet a document is the text in `field`.
    """

    def __init__(self, file: Path, end: str | None = None, field: str = FIELD) -> None:
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
        self.end = self._token(file, end or _end_beside(file))

    def _token(self, file: Path, end: str | None) -> int:
        token = None if end is None else self._tokenizer.token_to_id(end)
        if token is None:
            reason = "no token ends a document" if end is None else f"it has no token {end!r}"
            raise DataUnusable(f"{file}: {reason}: name one of its tokens with --end{self._ends()}")
        return int(token)

    def _ends(self) -> str:
        """Which tokens may be meant: those that no text is made of."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        special = [one.content for one in added if one.special]
        return f", such as {shlex.quote(special[0])}" if special else ""

    def pieces(self, path: Path) -> Iterator[np.ndarray]:
        texts = documents(path, self._field)
        while together := list(islice(texts, TOGETHER)):
            try:
                encoded = self._tokenizer.encode_batch_fast(together, add_special_tokens=False)
            except TypeError as error:
                raise DataUnusable(f"{path}: a text has half a character: {error}") from error
            yield np.concatenate([self._with_end(one.ids) for one in encoded])

    def _with_end(self, tokens: Sequence[int]) -> np.ndarray:
        return np.array([*tokens, self.end], np.uint32)


def _end_beside(file: Path) -> str | None:
    """The end of text that the config of a tokenizer names."""
    try:
        config = json.loads(read_regular(file.parent / "tokenizer_config.json"))
    except (OSError, ValueError, RecursionError):
        return None
    token = config.get("eos_token") if isinstance(config, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _token_array(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    try:
        tokens = _mapped(path, dtype)
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


# The files that `orch data pack` reads. What is not there is said in a sentence that helps.


TOKENIZER = "tokenizer.json"
ALL = "*"
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")  # as Hugging Face names models
FETCH = "hf download {name} tokenizer.json tokenizer_config.json --local-dir {folder}"


def files_of(inputs: list[Path], glob: str) -> list[Path]:
    """The files of the inputs; those below a folder in order of name."""
    files: list[Path] = []
    for path in inputs:
        check_local(path, "copy its texts here first")
        if path.is_dir():
            files += _files_below(path, glob)
        elif path.is_file():
            files.append(path)
        else:
            raise DataUnusable(f"{path}: no such file or folder; name files of text, or a folder")
    return files


def _files_below(folder: Path, glob: str) -> list[Path]:
    """Hidden files and caches are left out."""
    paths = [path.relative_to(folder) for path in folder.rglob(ALL) if path.is_file()]
    visible = [path for path in paths if not any(map(_is_hidden, path.parts))]
    if not visible:
        raise DataUnusable(f"{folder}: has no files; name the folder that has the texts")
    try:
        matching = {path.relative_to(folder) for path in folder.rglob(glob)} & set(visible)
    except (ValueError, NotImplementedError) as error:  # it is empty, or begins at the root
        raise DataUnusable(
            f"--glob {glob!r}: must be a pattern of names, such as '*.txt'"
        ) from error
    if not matching:
        endings = sorted({f"'*{path.suffix}'" for path in visible})[:3]
        raise DataUnusable(
            f"{folder}: no file matches --glob {glob!r}, of {counted(len(visible), 'file')}; try"
            f" {' or '.join(endings)}"
        )
    return [folder / path for path in sorted(matching)]


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or part == "__pycache__"


def tokenizer_file(name: str) -> Path:
    """The file of a tokenizer that is named by it, or by its folder."""
    path = Path(name)
    check_local(path, "copy its tokenizer.json here first")
    if path.is_dir():
        if not (path / TOKENIZER).is_file():
            raise DataUnusable(f"{name}: has no {TOKENIZER}; name the folder of a model that has")
        return path / TOKENIZER
    if path.is_file():
        return path
    if REPOSITORY.fullmatch(name):
        fetch = FETCH.format(name=name, folder=path.name)
        raise DataUnusable(
            f"{name}: no such file, and nothing is fetched; after `{fetch}` write --tokenizer"
            f" {path.name}"
        )
    raise DataUnusable(
        f"{name}: no such file; --tokenizer takes a {TOKENIZER}, the folder that has it, or bytes"
    )


def check_local(path: Path, instead: str) -> None:
    """Refuse the address of a bucket, which would be a path of this machine here."""
    scheme, *rest = path.parts or ("",)
    if scheme.removesuffix(":") in SCHEMES and scheme.endswith(":"):
        raise DataUnusable(f"{scheme}//{'/'.join(rest)}: is on a bucket; {instead}")
