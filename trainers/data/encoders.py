"""What turns files into tokens: bytes, a Hugging Face tokenizer, or arrays of tokens."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from orchestrator.errors import DataUnusable
from trainers.data.documents import FIELD, documents
from trainers.regular_files import read_regular

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
