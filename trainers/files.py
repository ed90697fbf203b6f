"""Files that others made: regular ones of a bounded size, or objects; and new folders."""

import errno
import hashlib
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.storage.addresses import stored_input

_MOST_BYTES = 64 << 20
_PIECE_BYTES = 64 << 20


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


def read_regular(path: Path, most: int = _MOST_BYTES) -> bytes:
    """Return the content of a regular file or an object of at most `most` bytes."""
    if check_regular(path) > most:
        raise OSError(errno.EFBIG, f"is larger than {most:,} bytes")
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


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a hidden folder that becomes `out`, or is removed where the block fails."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield partial
        partial.chmod(0o755)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial)
        raise
