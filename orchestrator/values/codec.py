"""Values to JSON and back, and their digests."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def to_json(value: Any) -> bytes:
    """Return the canonical text: keys sorted, no whitespace, the same bytes on every machine."""
    return msgspec.json.encode(value, order="sorted")


def to_pretty_json(value: Any) -> str:
    """Return the canonical text, indented, with a final newline. Its value has the same digest."""
    return msgspec.json.format(to_json(value), indent=2).decode() + "\n"


def whole(value: Any) -> Any:
    """Return a value as mappings and lists, with the keys of its defaults: a decoder leaves them to
    the class, and the encoder then leaves them out.
    """
    if is_dataclass(value):
        return {field.name: whole(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: whole(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [whole(inner) for inner in value]
    return value


def from_json(text: bytes | str, kind: type[T]) -> T:
    """Return the value of that type; `msgspec.DecodeError` says why the text is not one."""
    with decoding():
        return msgspec.json.decode(text, type=kind)


@contextmanager
def decoding() -> Iterator[None]:
    """Turn every error of a text that is not a value into `msgspec.DecodeError`."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error


def digest(value: Any) -> str:
    """Return the identity of a value: the sha256 of its canonical text."""
    return hashlib.sha256(to_json(value)).hexdigest()


def short(full_digest: str) -> str:
    return full_digest[:8]
