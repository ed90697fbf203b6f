"""The sha256 of a file, for token sets and checkpoints."""

import errno
import hashlib
import stat
from pathlib import Path

from orchestrator.storage.addresses import StoredInput, stored_input

# Opens files that others made: regular ones, of a bounded size, or objects. Links are followed.


MOST_BYTES = 64 << 20


def check_regular(path: Path) -> int:
    """The size of a regular file or of an object; `OSError` where it is none."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "no file has such a name")
    if stored := stored_input(path):
        return stored.size
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")
    return found.st_size


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file or an object of at most so many bytes."""
    if check_regular(path) > most:
        raise OSError(errno.EFBIG, f"is larger than {most:,} bytes")
    stored = stored_input(path)
    return stored.read(0, stored.size) if stored else path.read_bytes()


PIECE_BYTES = 64 << 20


def file_digest(path: Path) -> str:
    """The sha256 of a file or an object, which is read in pieces."""
    check_regular(path)
    if stored := stored_input(path):
        return _object_digest(stored)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _object_digest(stored: StoredInput) -> str:
    digest = hashlib.sha256()
    for start in range(0, stored.size, PIECE_BYTES):
        digest.update(stored.read(start, min(start + PIECE_BYTES, stored.size)))
    return digest.hexdigest()
