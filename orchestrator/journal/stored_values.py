"""Values in JSON files of a run, and whether this version of orch reads them."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from orchestrator.errors import JournalUnreadable, OtherVersion
from orchestrator.journal import files
from orchestrator.types import codec
from orchestrator.types.plan import PLAN_SCHEMA, Plan
from orchestrator.types.proof import PROOF_SCHEMA, Proof

T = TypeVar("T")

SCHEMAS: dict[type, int] = {Plan: PLAN_SCHEMA, Proof: PROOF_SCHEMA}


class _Numbered(msgspec.Struct):
    schema: int | None = None


def read_value(path: Path, kind: type[T]) -> T:
    """The value in a JSON file; `JournalUnreadable` when it cannot be read."""
    return decoded(path, content_of(path), kind)


def content_of(path: Path) -> bytes:
    try:
        return files.read(path)
    except FileNotFoundError as error:
        raise JournalUnreadable(path, f"cannot be read: {error.strerror}") from error


def decoded(path: Path, content: bytes, kind: type[T], *, unchanged: bool = False) -> T:
    """The value. `unchanged`: the file is as it was written, so whoever wrote it had other keys."""
    written, read = schema_in(content), SCHEMAS.get(kind)
    other = OtherVersion(path, kind.__name__.lower(), written=written, read=read)
    if None not in (written, read) and written != read:
        raise other
    try:
        return codec.from_json(content, kind)
    except msgspec.DecodeError as error:
        if unchanged:
            raise other from error
        raise JournalUnreadable(path, f"is not a {kind.__name__}: {error}") from error


def schema_in(content: bytes) -> int | None:
    """The number of the schema that a text says it has."""
    try:
        return codec.from_json(content, _Numbered).schema
    except msgspec.DecodeError:
        return None


def check_schema(path: Path, what: str, value: Any, read: int) -> None:
    """Refuse a value of another version."""
    if value.schema != read:
        raise OtherVersion(path, what, written=value.schema, read=read)
