"""Access to a journal's files and folders: each file is written whole or not at all.

Those of a bucket are written there first, and read from a copy here that is brought up to date.

This module and `line_files` change the disk through `os` alone: a test can interrupt each change.
They open what others may have written through `boundary`.
"""

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from orchestrator import storage
from orchestrator.errors import JournalUnreadable, JournalUnwritable
from orchestrator.journal import boundary
from orchestrator.storage import copies

PARTIAL = ".partial"
REMOVED = ".removed"
ADVICE = {
    errno.ENOSPC: "free some space there, then resume the run",
    errno.EDQUOT: "free some space there, then resume the run",
    errno.EPERM: "the journal needs a file system with hard links, and permission to write there",
    errno.ENOTSUP: "the journal needs a file system with hard links",
    errno.ENOSYS: "the journal needs a file system with hard links",
    errno.EACCES: "it needs permission to write there",
}
# Some file systems cannot sync a folder, and need not.
NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP}
# The steps of a million, about three times over.
MAX_LINES_BYTES = 1 << 30
# A partial or removed file this old was left by a process that was killed.
LEFT_OVER_S = 3600.0

# --- errors


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write into `JournalUnwritable`; `FileExistsError` passes."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        why = f"{storage.address(path)}: the journal cannot be written: {_cause(error)}"
        raise JournalUnwritable(why) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a failure to read into `JournalUnreadable`; `FileNotFoundError` passes.

    A file of a bucket is brought up to date first.
    """
    with looking(path):
        copies.refresh_file(path)
        yield


@contextmanager
def looking(path: Path) -> Iterator[None]:
    """The same, without a look at the bucket."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> JournalUnreadable:
    return JournalUnreadable(storage.address(path), f"cannot be read: {error.strerror or error}")


def _cause(error: OSError) -> str:
    """The system's message, and what to do about it."""
    advice = ADVICE.get(error.errno or 0)
    return f"{error.strerror or error}" + (f"; {advice}" if advice else "")


# --- whole files


def write_new(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Create a file, whole or not at all; `FileExistsError` when the name is taken.

    The name is given by a hard link: unlike lock files or O_EXCL with later writes, a link is
    atomic with its content, also on NFS, and leaves nothing to release when its writer dies.
    """
    partial = _partial(path)
    with writing(path):
        if copies.create(path, content):
            return
        try:
            _write_whole(partial, content, mode)
            _link(partial, path)
        finally:
            with suppress(OSError):  # the next driver sweeps what stays
                partial.unlink()
        sync_folder(path.parent)


def write_once(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Create a file unless it exists; the first content stays."""
    with suppress(FileExistsError):
        write_new(path, content, mode)


def replace(path: Path, content: bytes) -> None:
    """Replace a file, whole or not at all. It is not synced: use it for what can be rebuilt."""
    with writing(path):
        if copies.replace(path, content):
            return
    with _replacing(path) as partial:
        partial.write_bytes(content)


def replace_durably(path: Path, content: bytes) -> None:
    """Replace a file by one that survives a power failure whole, or else the earlier one does."""
    with writing(path):
        if copies.replace(path, content):
            return
    with _replacing(path) as partial:
        _write_whole(partial, content)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    partial = _partial(path)
    with writing(path):
        try:
            yield partial
            partial.rename(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise


def is_partial(name: str) -> bool:
    """Whether this is the name of a file that is being written, or whose writer was killed."""
    return name.endswith(PARTIAL)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")


def _write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        write_all(target, content)
        os.fsync(target)
    finally:
        os.close(target)


def write_all(target: int, content: bytes) -> None:
    while content:
        content = content[os.write(target, content) :]


def _link(partial: Path, path: Path) -> None:
    """Give a whole file its name. A server may refuse a retried request that it has carried out."""
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        if not (path.exists() and path.samefile(partial)):
            raise


def read(path: Path, most: int = boundary.MAX_FILE_BYTES) -> bytes:
    """The content of a file; `JournalUnreadable` when it is larger than that many bytes."""
    with reading(path):
        return boundary.read_bytes(path, most)


def read_all(
    folder: Path, names: Iterable[str], most: int
) -> Iterator[tuple[str, bytes | JournalUnreadable]]:
    """Files of a folder, opened once: the content of each, or why it cannot be read."""
    with looking(folder), boundary.folder_of(folder) as opened:
        for name in names:
            try:
                yield name, boundary.read_in(opened, name, most)
            except OSError as error:
                yield name, _unreadable(folder / name, error)


def check_size(file: IO[bytes]) -> None:
    """Refuse a file of lines that is too large to read."""
    if os.fstat(file.fileno()).st_size > MAX_LINES_BYTES:
        raise OSError(errno.EFBIG, f"is larger than {MAX_LINES_BYTES:,} bytes")


def exists(path: Path) -> bool:
    """Whether there is a file of that name now; one that cannot be examined is not there."""
    try:
        with reading(path):
            return path.exists()
    except (OSError, JournalUnreadable):
        return False


# --- folders


def names(folder: Path) -> list[str]:
    """The names in a folder, in order; a folder that does not exist is empty."""
    try:
        with looking(folder):
            copied = copies.names_in(folder)
            return boundary.names_in(folder) if copied is None else copied
    except FileNotFoundError:
        return []


def entries(folder: Path) -> list[Path]:
    """The contents of a folder by name; a folder that does not exist is empty."""
    return [folder / name for name in names(folder)]


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


def make_folder(path: Path) -> None:
    """Create a folder unless it exists, so that it survives a power failure."""
    missing = [one for one in (path, *path.parents) if not _exists(one)]
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        for one in missing:
            sync_folder(one.parent)


@contextmanager
def building(storage: Path) -> Iterator[Path]:
    """An empty hidden folder for the `with` block to fill and publish; an error removes it."""
    prepared = storage / f".{uuid.uuid4().hex}{PARTIAL}"
    with writing(prepared):
        prepared.mkdir(parents=True)
    try:
        yield prepared
    except BaseException:
        with suppress(JournalUnwritable):  # swept later; the first error matters
            delete(prepared)
        raise


def publish(prepared: Path, path: Path, last: str) -> None:
    """Give a filled folder its name; `FileExistsError` when the name is taken.

    A rename never replaces a folder that holds anything, and no journal is empty. A bucket has no
    renames: there the file of the name `last` is written last, and makes it a run or a study.
    """
    with writing(path):
        if copies.publish(prepared, path, last):
            return
        sync_folder(prepared)
        try:
            prepared.rename(path)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise FileExistsError(error.errno, "exists already", str(path)) from error
            raise
        sync_folder(path.parent)


def hide(path: Path) -> Path:
    """Rename a folder to a hidden name; returns that name."""
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}{REMOVED}")
    with writing(path):
        path.rename(hidden)
    return hidden


def set_aside(path: Path, suffix: str) -> None:
    """Rename a file, if it is there; what was set aside under that name before is replaced."""
    with writing(path), suppress(FileNotFoundError):
        if not copies.set_aside(path, suffix):
            path.rename(path.with_name(f".{path.name}{suffix}"))


def delete(path: Path) -> None:
    """Remove a file, or a folder with its contents."""
    with writing(path):
        if copies.delete(path):
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the partial and hidden files of processes that were killed."""
    for path in folder.glob(".*"):
        if path.suffix in {PARTIAL, REMOVED}:
            with suppress(OSError, JournalUnwritable):  # another process may remove it too
                if time.time() - path.stat().st_mtime > LEFT_OVER_S:
                    delete(path)


def check_writable(folder: Path) -> None:
    """Try what a journal needs in a folder, or in its nearest parent that exists.

    `JournalUnwritable` names the folder as the caller gave it.
    """
    if _check_bucket(folder):
        return
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if _exists(path))
    trial = parent / f".{uuid.uuid4().hex}{PARTIAL}"
    try:
        trial.mkdir()
        _write_whole(trial / "written", b"")
        _link(trial / "written", trial / "linked")
    except OSError as error:
        why = f"runs cannot be stored there: {parent} is not writable: {_cause(error)}"
        raise JournalUnwritable(f"{folder}: {why}") from error
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _check_bucket(folder: Path) -> bool:
    """The same of a bucket; False where the folder is of none."""
    try:
        return copies.check_writable(folder)
    except OSError as error:
        why = f"runs cannot be stored there: {_cause(error)}"
        raise JournalUnwritable(f"{storage.address(folder)}: {why}") from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder that cannot be examined cannot be written either
        return False
