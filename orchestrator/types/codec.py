"""Values to JSON and back, and their digests."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def to_json(value: Any) -> bytes:
    """The canonical text: keys sorted, no whitespace, the same bytes on every machine."""
    return msgspec.json.encode(value, order="sorted")


def to_pretty_json(value: Any) -> str:
    """The canonical text, indented, with a final newline."""
    return msgspec.json.format(to_json(value), indent=2).decode() + "\n"


def from_json(text: bytes | str, kind: type[T]) -> T:
    """The value of that type; `msgspec.DecodeError` says why the text has none."""
    with decoding():
        return msgspec.json.decode(text, type=kind)


@contextmanager
def decoding() -> Iterator[None]:
    """Turn every way in which a text can be no value into `msgspec.DecodeError`."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error


def digest(value: Any) -> str:
    """The identity of a value: the sha256 of its canonical text."""
    return hashlib.sha256(to_json(value)).hexdigest()


def short(full_digest: str) -> str:
    """A digest as screens show it."""
    return full_digest[:8]
