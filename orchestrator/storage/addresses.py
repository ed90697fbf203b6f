"""Addresses of buckets, and the folder of this machine that copies each. The copy of
`gs://bucket/runs` lies below `~/.cache/orch/buckets` (or XDG_CACHE_HOME, or ORCH_BUCKETS).
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property, lru_cache
from pathlib import Path

import platformdirs

from orchestrator.errors import SpecError
from orchestrator.storage.bucket import LARGE_BYTES, THREADS, Bucket, StoredObject, bucket

SCHEMES = ("gs", "s3")
_ADDRESS = re.compile(r"(gs|s3)://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])((?:/[^/\s]+)*)/?")
_EXAMPLES = tuple(f"{scheme}://my-bucket/runs" for scheme in SCHEMES)
VARIABLE = "ORCH_BUCKETS"
_MOST_BYTES = 64 << 20  # of a file that is read as one
_PIECE_BYTES = 64 << 20
# Files of runs and storages that are not copied: a tracker's, and Ray's own.
_OF_THIS_MACHINE = {
    "tracking-here.json", "sync.json", "sync.lock", "sync.log", "ray",
    "mlflow.db", "mlflow-artifacts",
}  # fmt: skip


def is_address(text: str) -> bool:
    return _ADDRESS.fullmatch(text) is not None


def folder(text: str | Path) -> Path:
    """Return the folder here of a storage or a run: that of its copy, or the path itself."""
    match = _ADDRESS.fullmatch(str(text))
    if match is None and "://" in str(text):
        raise SpecError(f"{text}: is no address of a bucket, such as {' or '.join(_EXAMPLES)}")
    return _copies() / match[1] / match[2] / match[3].lstrip("/") if match else Path(text)


def address(path: str | Path) -> str:
    """Return what names it on every machine: the address that a path copies, or the path."""
    parts = _parts_of(Path(path))
    return str(path) if parts is None else f"{parts[0]}://{'/'.join(parts[1:])}"


def is_copy(path: str | Path) -> bool:
    return _parts_of(Path(path)) is not None


def _copies() -> Path:
    return _resolved(*map(os.environ.get, (VARIABLE, "XDG_CACHE_HOME", "HOME")))


@lru_cache  # every look at a file asks
def _resolved(named: str | None, *_: str | None) -> Path:
    usual = platformdirs.user_cache_path("orch") / "buckets"
    return Path(os.path.realpath(named or usual))


def _parts_of(path: Path) -> tuple[str, ...] | None:
    root = _copies()
    if not str(path).startswith(f"{root}{os.sep}"):  # most paths, and quickly
        return None
    inside = path.parts[len(root.parts) :]
    return inside if len(inside) > 1 else None


@dataclass(frozen=True)
class Place:
    """An object, or all below a prefix, and the path of its copy here."""

    bucket: Bucket
    name: str
    path: Path

    def __truediv__(self, name: str) -> "Place":
        return Place(self.bucket, f"{self.name}/{name}".lstrip("/"), self.path / name)

    @property
    def prefix(self) -> str:
        return f"{self.name}/" if self.name else ""


def place_of(path: Path) -> Place | None:
    """Return the place of a copied file or folder; None for a path that no bucket has."""
    stored = stored_input(path)
    if stored is None or any(map(is_of_this_machine, stored.name.split("/"))):
        return None
    return Place(stored.bucket, stored.name, path)


def is_of_this_machine(name: str) -> bool:
    return name.startswith(".") or name in _OF_THIS_MACHINE


def reserved_name(address: str) -> str | None:
    _, _, inside = address.partition("://")
    return next(filter(is_of_this_machine, inside.split("/")[1:]), None)


# --- what a run reads and others wrote: token sets and weights, in a folder or on a bucket


def input_path(spec_folder: Path, text: str) -> Path:
    return folder(text) if is_address(text) else spec_folder / text


@dataclass(frozen=True)
class StoredInput:
    """An object, in the version that was there when it was first looked at."""

    bucket: Bucket
    name: str

    @cached_property
    def _found(self) -> StoredObject:
        return self.bucket.found(self.name)

    @property
    def size(self) -> int:
        return self._found.size

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`; `OSError` where the object has changed."""
        parts = [(at, min(at + LARGE_BYTES, stop)) for at in range(start, stop, LARGE_BYTES)]
        if len(parts) <= 1:
            return self._part(start, stop) if parts else b""
        with ThreadPoolExecutor(THREADS) as pool:
            return b"".join(pool.map(lambda part: self._part(*part), parts))

    def _part(self, start: int, stop: int) -> bytes:
        content = self.bucket.read_part(self.name, start, stop, self._found.version)
        if len(content) != stop - start:
            where = self.bucket.address(self.name)
            raise OSError(errno.EIO, f"{len(content)} bytes came of {stop - start}", where)
        return content


def stored_input(path: Path) -> StoredInput | None:
    """Return the object at the path of a copy; None for a path that no bucket has."""
    parts = _parts_of(path)
    if parts is None:
        return None
    scheme, name, *inside = parts
    return StoredInput(bucket(scheme, name), "/".join(inside))


def stored_inputs(folder: Path, patterns: Sequence[str]) -> dict[str, StoredInput] | None:
    """Return the objects in a folder whose names match; None for a folder that no bucket has."""
    stored = stored_input(folder)
    if stored is None:
        return None
    objects, _ = stored.bucket.inside(f"{stored.name}/")
    names = [found.name.rpartition("/")[2] for found in objects]
    matching = [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]
    return {name: StoredInput(stored.bucket, f"{stored.name}/{name}") for name in matching}


def has_input(path: Path) -> bool:
    stored = stored_input(path)
    if stored is None:
        return path.exists()
    return stored.bucket.has(stored.name) or any(stored.bucket.inside(f"{stored.name}/"))


def check_regular(path: Path) -> int:
    """Return the size of a regular file or of an object; raise `OSError` if it is neither."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "no file has such a name")
    if stored := stored_input(path):
        return stored.size
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")
    return found.st_size


def read_regular(path: Path) -> bytes:
    if check_regular(path) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"is larger than {_MOST_BYTES:,} bytes")
    stored = stored_input(path)
    return stored.read(0, stored.size) if stored else path.read_bytes()


def file_digest(path: Path) -> str:
    """Return the sha256 of a file or an object, which is read in pieces."""
    check_regular(path)
    if stored := stored_input(path):
        digest = hashlib.sha256()
        for start in range(0, stored.size, _PIECE_BYTES):
            digest.update(stored.read(start, min(start + _PIECE_BYTES, stored.size)))
        return digest.hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
