"""Reads the documents of a file: JSON lines and Parquet have one a row, any other file is one."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from orchestrator.errors import DataUnusable

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
