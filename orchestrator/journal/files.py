"""Journal room: files that are whole or absent, and lines appended. Knows the file system alone.

Everything that changes a disk for the journal is here, so that a test can stop it at each change.
"""

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestrator.errors import JournalUnwritable

PARTIAL = ".partial"
REMOVED = ".removed"
ADVICE = {
    errno.ENOSPC: "make room there, then resume the run",
    errno.EDQUOT: "make room there, then resume the run",
    errno.EPERM: "the journal needs a file system with hard links, and the right to write there",
    errno.ENOTSUP: "the journal needs a file system with hard links",
    errno.ENOSYS: "the journal needs a file system with hard links",
    errno.EACCES: "it needs the right to write there",
}
# What a file system answers that cannot sync a folder, and need not.
NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP}
# What is half-written or half-removed for so long belongs to nobody that lives.
LEFT_OVER_S = 3600.0
TAIL_BYTES = 1 << 15


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names the file and the reason when it cannot be written; `FileExistsError` goes through."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        why = f"{path}: the journal cannot be written: {_reason(error)}"
        raise JournalUnwritable(why) from error


def _reason(error: OSError) -> str:
    """What the file system says, and what to do about it."""
    advice = ADVICE.get(error.errno or 0)
    return f"{error.strerror or error}" + (f"; {advice}" if advice else "")


def try_to_write(folder: Path) -> None:
    """Make what a journal is made of in a folder, or where it would be made, and remove it again;
    `JournalUnwritable` names the folder as it was given.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if _exists(path))
    trial = there / f".{uuid.uuid4().hex}{PARTIAL}"
    try:
        trial.mkdir()
        _write_whole(trial / "written", b"")
        _link(trial / "written", trial / "linked")
    except OSError as error:
        why = f"no run can be kept there: nothing can be made in {there}: {_reason(error)}"
        raise JournalUnwritable(f"{folder}: {why}") from error
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # whoever may not look may not write
        return False


def write_new(path: Path, content: bytes) -> None:
    """Make a file, whole or not at all; `FileExistsError` when there is one of that name."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    with writing(path):
        try:
            _write_whole(partial, content)
            _link(partial, path)
        finally:
            with suppress(OSError):  # what stays is swept by the next driver
                partial.unlink()
        sync_folder(path.parent)


def replace(path: Path, content: bytes) -> None:
    """Write a file anew, whole or not at all. It is for what can be found out again: it is not made
    to survive a power failure.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    with writing(path):
        try:
            partial.write_bytes(content)
            partial.rename(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise


def _write_whole(path: Path, content: bytes) -> None:
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        _write_all(target, content)
        os.fsync(target)
    finally:
        os.close(target)


def _write_all(target: int, content: bytes) -> None:
    while content:
        content = content[os.write(target, content) :]


def _link(partial: Path, path: Path) -> None:
    """Give a whole file its name. A server that lost its answer may refuse what it has done."""
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        if not (path.exists() and path.samefile(partial)):
            raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(opened)


def prepare_folder(beside: Path) -> Path:
    """An empty folder that nobody lists, to be filled and then published."""
    prepared = beside.with_name(f".{uuid.uuid4().hex}{PARTIAL}")
    with writing(prepared):
        prepared.mkdir(parents=True)
    return prepared


def publish(prepared: Path, path: Path) -> None:
    """Give a filled folder its name; `FileExistsError` when something has that name.

    A rename never replaces a folder that holds anything, and no journal is empty.
    """
    with writing(path):
        sync_folder(prepared)
        try:
            prepared.rename(path)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise FileExistsError(error.errno, "exists already", str(path)) from error
            raise
        sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """A folder, if there is none yet."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def touch(path: Path) -> None:
    """Set a file's time to now; the file is made when it is missing. Takes no room on the disk."""
    with writing(path):
        try:
            os.utime(path)
        except FileNotFoundError:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))


def hide(path: Path) -> Path:
    """Take a folder out of sight in one rename; where it is then."""
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}{REMOVED}")
    with writing(path):
        path.rename(hidden)
    return hidden


def delete(path: Path) -> None:
    """Remove a file, or a folder with all it holds."""
    with writing(path):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what killed processes left in a folder, half-written or half-removed."""
    for path in folder.glob(".*"):
        if path.suffix in {PARTIAL, REMOVED}:
            with suppress(OSError, JournalUnwritable):  # another may sweep it too
                if time.time() - path.stat().st_mtime > LEFT_OVER_S:
                    delete(path)


class Lines:
    """A new file of one writer, to which whole lines are appended."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, 0
        with writing(path):
            self._target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        self._named = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file; an error that is on its way is the one told."""
        try:
            self.sync()
        except JournalUnwritable:
            if error is None:
                raise
        finally:
            os.close(self._target)

    def append(self, line: bytes) -> None:
        """Add a line; when it does not fit, nothing of it stays."""
        content = line + b"\n"
        with writing(self._path):
            try:
                _write_all(self._target, content)
            except OSError:
                os.ftruncate(self._target, self._size)
                raise
        self._size += len(content)

    def sync(self) -> None:
        """Make the lines survive a power failure, and show them to other machines."""
        with writing(self._path):
            os.fsync(self._target)
            if not self._named:
                sync_folder(self._path.parent)
                self._named = True


def first_line(path: Path) -> bytes | None:
    """The first line of a file; None when there is no whole one."""
    with path.open("rb") as file:
        line = file.readline()
    return line[:-1] if line.endswith(b"\n") else None


def last_lines(path: Path, at_least: int) -> tuple[list[bytes], int]:
    """So many whole lines from the end of a file or more, without reading it all, and where they
    end: a torn last line is dropped. Fewer when the file has no more.
    """
    with path.open("rb") as file:
        size, window = file.seek(0, os.SEEK_END), TAIL_BYTES
        while True:
            start = file.seek(max(0, size - window))
            text = file.read(size - start)
            *lines, torn = text.split(b"\n")
            if start > 0:
                lines = lines[1:]  # its beginning is not in the window
            if start == 0 or len(lines) >= at_least:
                return lines, size - len(torn)
            window *= 2
