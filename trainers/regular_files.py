"""Opens files that others made: regular ones, of a bounded size. Links are followed.

A pipe would wait for ever for its writer, and a device has no end.
"""

import errno
import stat
from pathlib import Path

MOST_BYTES = 64 << 20


def check_regular(path: Path) -> int:
    """The size of a regular file; `OSError` where it is none."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "no file has such a name")
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")
    return found.st_size


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most so many bytes."""
    if check_regular(path) > most:
        raise OSError(errno.EFBIG, f"is larger than {most:,} bytes")
    return path.read_bytes()
