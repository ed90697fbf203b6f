"""What a run reads and others wrote: token sets and weights, on a file system or on a bucket.

A path of a spec may be an address. Here it is the path of a copy that nobody makes: objects are
read whole where they are small, and in ranges where they are not.
"""

import errno
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

from orchestrator.storage import addresses
from orchestrator.storage.bucket import LARGE_BYTES, THREADS, Bucket, StoredObject, bucket


def input_path(spec_folder: Path, text: str) -> Path:
    """A path of a spec, which begins at the spec's folder, or an address."""
    return addresses.folder(text) if addresses.is_address(text) else spec_folder / text


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
        """The bytes from `start` to `stop`; `OSError` where the object is another by now."""
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
    """The object at the path of a copy; None for a path that no bucket has."""
    parts = addresses.parts_of(path)
    if parts is None:
        return None
    scheme, name, *inside = parts
    return StoredInput(bucket(scheme, name), "/".join(inside))


def stored_inputs(folder: Path, patterns: Sequence[str]) -> dict[str, StoredInput] | None:
    """The objects in a folder whose names match; None for a folder that no bucket has."""
    stored = stored_input(folder)
    if stored is None:
        return None
    objects, _ = stored.bucket.inside(f"{stored.name}/")
    names = [one.name.rpartition("/")[2] for one in objects]
    wanted = [name for name in names if any(fnmatch(name, one) for one in patterns)]
    return {name: StoredInput(stored.bucket, f"{stored.name}/{name}") for name in wanted}


def has_input(path: Path) -> bool:
    """Whether a file, or a folder with something in it, is there."""
    stored = stored_input(path)
    if stored is None:
        return path.exists()
    return stored.bucket.has(stored.name) or any(stored.bucket.inside(f"{stored.name}/"))
