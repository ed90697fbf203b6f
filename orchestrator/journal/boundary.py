"""Opens the files of a storage, which anybody may have filled: every access goes through here. A
file is regular, not too large, and no link leads to it. Its path is walked from the root of the
file system and each folder is held open, so nobody can put a link there in between. Links above a
storage are the user's own: `settled` follows them first. Errors are `OSError`s with a plain text.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

MAX_FILE_BYTES = 64 << 20
MAX_RECORD_BYTES = 1 << 20  # an event, a request or a heartbeat
_MAX_ENTRIES = 100_000

# Without O_PATH (not Linux) the folders above a storage must be readable, not only passable.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Nothing that opens such a file can wait: O_NONBLOCK has no effect on a regular file.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_IS_LINK = "is a link, or a link leads to it"


def settled(folder: Path) -> Path:
    """Return the folder of a run or study with the links above it followed; it may be a link."""
    absolute = folder.absolute()
    if absolute.name in ("", ".."):
        return Path(os.path.realpath(absolute))
    return Path(os.path.realpath(absolute.parent)) / absolute.name


@contextmanager
def folder_of(path: Path, flags: int = _PASS) -> Iterator[int]:
    """Yield a descriptor of a folder to which no link leads."""
    _check_name(path)
    *above, last = path.parts[1:] or (".",)
    opened = os.open("/", _PASS)
    for name, how in (*((name, _PASS) for name in above), (last, flags)):
        folder = opened
        try:
            opened = os.open(name, how, dir_fd=folder)
        except OSError as error:
            refused = error.errno in (errno.ELOOP, errno.ENOTDIR)  # a link, or a file
            if refused and any(place.is_symlink() for place in (path, *path.parents)):
                raise OSError(errno.ELOOP, _IS_LINK) from error
            raise
        finally:
            os.close(folder)
    try:
        yield opened
    finally:
        os.close(opened)


def _check_name(path: Path) -> None:
    """Refuse a name that no file can have: a record may contain one."""
    try:
        valid = b"\0" not in os.fsencode(path) and ".." not in path.parts
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise OSError(errno.EINVAL, "no file has such a name")


def open_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file. To write, its user must own it under one name only."""
    _check_name(path)
    with folder_of(path.parent) as folder:
        return _open_in(folder, path.name, flags)


def _open_in(folder: int, name: str, flags: int = os.O_RDONLY) -> int:
    try:
        opened = os.open(name, flags | _FILE, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, _IS_LINK) from error
        raise
    try:
        found = os.fstat(opened)
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        if flags & (os.O_WRONLY | os.O_RDWR):
            _check_owner(found, {os.geteuid()})
            if found.st_nlink > 1:
                raise OSError(errno.EMLINK, "has another name elsewhere")
    except OSError:
        os.close(opened)
        raise
    return opened


def _check_owner(found: os.stat_result, owners: set[int]) -> None:
    if found.st_uid not in owners:
        raise OSError(errno.EPERM, f"belongs to another user, {found.st_uid}")


def reading_file(path: Path) -> IO[bytes]:
    return os.fdopen(open_file(path), "rb")


def appending_to(path: Path) -> IO[bytes]:
    """Open a log of this user for appending without a buffer; create it if it is missing."""
    return os.fdopen(open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0)


def read_bytes(path: Path, most: int = MAX_FILE_BYTES) -> bytes:
    return _read_whole(open_file(path), most)


def read_in(folder: int, name: str, most: int = MAX_FILE_BYTES) -> bytes:
    return _read_whole(_open_in(folder, name), most)


def read_trusted(path: Path, most: int) -> bytes:
    """Return the content of a file that belongs to the user, or to the owner of its folder."""
    with folder_of(path.parent) as folder:
        opened = _open_in(folder, path.name)
        try:
            _check_owner(os.fstat(opened), {os.geteuid(), os.fstat(folder).st_uid})
        except OSError:
            os.close(opened)
            raise
        return _read_whole(opened, most)


def _read_whole(opened: int, most: int) -> bytes:
    with os.fdopen(opened, "rb") as file:
        if os.fstat(opened).st_size <= most and len(content := file.read(most + 1)) <= most:
            return content
    raise OSError(errno.EFBIG, f"is larger than {most:,} bytes")


def names_in(folder: Path) -> list[str]:
    with folder_of(folder, _LIST) as opened, os.scandir(opened) as entries:
        names = [entry.name for entry in islice(entries, _MAX_ENTRIES + 1)]
    if len(names) > _MAX_ENTRIES:
        raise OSError(errno.EFBIG, f"has more than {_MAX_ENTRIES:,} entries")
    return sorted(names)


def status_of(path: Path) -> os.stat_result:
    """Return the status of a file or folder to which no link leads."""
    _check_name(path)
    with folder_of(path.parent) as folder:
        found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, _IS_LINK)
    return found


def check_own(path: Path) -> None:
    """Refuse a file or folder that is a link or belongs to another user, for root too."""
    _check_owner(status_of(path), {os.geteuid()})
