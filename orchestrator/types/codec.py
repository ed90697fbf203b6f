"""Stations to JSON and back, and the digests that tie them together."""

import hashlib
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def to_json(station: Any) -> bytes:
    """One canonical text: keys sorted, no whitespace, the same bytes on every machine."""
    return msgspec.json.encode(station, order="sorted")


def to_pretty_json(station: Any) -> str:
    """The canonical text, indented for people and for diffs; ends with a newline."""
    return msgspec.json.format(to_json(station), indent=2).decode() + "\n"


def from_json(text: bytes | str, kind: type[T]) -> T:
    """The station of that kind; `msgspec.ValidationError` names the field that is wrong."""
    return msgspec.json.decode(text, type=kind)


def digest(station: Any) -> str:
    """Identity of a station: sha256 of its canonical text."""
    return hashlib.sha256(to_json(station)).hexdigest()


def short(full_digest: str) -> str:
    """A digest as people read it."""
    return full_digest[:8]
