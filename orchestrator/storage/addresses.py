"""Addresses of buckets, and the folder of this machine that copies each.

`gs://bucket/runs` is copied below `~/.cache/orch/buckets` (or XDG_CACHE_HOME, or ORCH_BUCKETS), so
that a path of a copy says which object it is a copy of.
"""

import os
import re
from functools import lru_cache
from pathlib import Path

import platformdirs

SCHEMES = ("gs", "s3")
ADDRESS = re.compile(r"(gs|s3)://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])((?:/[^/\s]+)*)/?")
VARIABLE = "ORCH_BUCKETS"


def is_address(text: str) -> bool:
    """Whether this names a place in a bucket, and not a path."""
    return ADDRESS.fullmatch(text) is not None


def folder(text: str | Path) -> Path:
    """The folder of this machine for a storage or a run: that of its copy, or the path itself."""
    match = ADDRESS.fullmatch(str(text))
    if match is None:
        return Path(text)
    return copies() / match[1] / match[2] / match[3].lstrip("/")


def address(path: str | Path) -> str:
    """What names the same on every machine: the address that a path is a copy of, or the path."""
    parts = parts_of(Path(path))
    return str(path) if parts is None else f"{parts[0]}://{'/'.join(parts[1:])}"


def is_copy(path: str | Path) -> bool:
    """Whether a path is of the copy of a bucket."""
    return parts_of(Path(path)) is not None


def copies() -> Path:
    """The folder with the copies of all buckets."""
    usual = platformdirs.user_cache_path("orch") / "buckets"
    return _copies(os.environ.get(VARIABLE) or str(usual))


@lru_cache
def _copies(where: str) -> Path:
    return Path(os.path.realpath(where))


def parts_of(path: Path) -> tuple[str, ...] | None:
    """The scheme, the bucket and the names below it."""
    root = copies().parts
    parts = path.parts
    if parts[: len(root)] != root or len(parts) < len(root) + 2:
        return None
    return parts[len(root) :]
