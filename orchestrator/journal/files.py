"""Where the files of a run are, and access to them: each is written whole or not at all. A bucket's
files are written there first, and read from a copy here. The disk is changed only through `os`, so
that a test can interrupt each change; others' files are opened through `boundary`.
"""

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator import storage
from orchestrator.errors import JournalUnreadable, JournalUnwritable
from orchestrator.journal import boundary
from orchestrator.storage import copies
from orchestrator.values.codec import short
from orchestrator.values.run import SavedCheckpoint

FIRST_EVENT = "events/000001.json"  # without it there is no run
UNCOMMITTED = "uncommitted.diff"  # a document that only its owner can read, and that is never sent
TRACKED = "tracking.json"  # where a tracker keeps its record of a run or study
TRACKED_HERE = "tracking-here.json"  # the same, where that is a database of this machine
PARTIAL = ".partial"  # a file or folder that is being written, or whose writer was killed
_REMOVED = ".removed"
_ADVICE = {
    errno.ENOSPC: "free some space there, then resume the run",
    errno.EDQUOT: "free some space there, then resume the run",
    errno.EPERM: "the journal needs a file system with hard links, and permission to write there",
    errno.ENOTSUP: "the journal needs a file system with hard links",
    errno.ENOSYS: "the journal needs a file system with hard links",
    errno.EACCES: "it needs permission to write there",
}
# Some file systems cannot sync a folder, and need not.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP}
# A partial or removed file this old was left by a process that was killed.
_LEFT_OVER_S = 3600.0


class RunPaths:
    """Where each file of a run is. Links above its folder are the user's, and are followed."""

    def __init__(self, root: Path) -> None:
        self.root = root = boundary.settled(root)
        self.spec = root / "spec.json"
        self.documents = root / "documents"  # the spec as written, uncommitted changes, a report
        self.submitted_spec = self.documents / "spec.yaml"
        self.plans, self.proofs = root / "plans", root / "proofs"
        self.events = root / "events"  # changes of state, numbered
        self.newest_event = root / "newest_event.json"  # its number and its sha256
        self.requests = root / "requests"  # to the driver, numbered
        self.driver_heartbeats = root / "heartbeats"
        self.driver_logs = root / "logs"
        self.attempts = root / "attempts"
        self.checkpoints = root / "checkpoints"  # the trainer's, each in a folder of its own
        self.tracking = root / TRACKED
        self.sync_state = root / "sync.json"  # how much of the run the tracker has
        self.sync_lock = root / "sync.lock"  # held by the one process that records the run
        self.sync_log = self.driver_logs / "sync.log"  # of the process that records in background

    def name_of(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def plan(self, digest: str) -> Path:
        return self.plans / f"{short(digest)}.json"

    def proof(self, plan_digest: str) -> Path:
        return self.proofs / f"{short(plan_digest)}.json"

    def checkpoint(self, saved: SavedCheckpoint) -> Path:
        return self.checkpoints / saved.folder

    def checkpoint_sums(self, saved: SavedCheckpoint) -> Path:
        """Return what says that a checkpoint is whole; its event has the sha256 of this file."""
        name = "manifest.json" if storage.is_copy(self.root) else "sha256.json"
        return self.checkpoint(saved) / name

    def driver_heartbeat(self, writer: int) -> Path:
        return self.driver_heartbeats / f"{writer:06d}"

    def driver_log(self, writer: int) -> Path:
        return self.driver_logs / f"driver-{writer:06d}.log"

    def attempt(self, number: int) -> Path:
        return self.attempts / f"{number:03d}"

    def steps(self, attempt: int) -> Path:
        return self.attempt(attempt) / "steps.jsonl"

    def heartbeats(self, attempt: int) -> Path:
        return self.attempt(attempt) / "heartbeats"

    def heartbeat(self, attempt: int, rank: int) -> Path:
        return self.heartbeats(attempt) / f"rank-{rank}"

    def logs(self, attempt: int) -> Path:
        return self.attempt(attempt) / "logs"

    def rank_log(self, attempt: int, rank: int) -> Path:
        return self.logs(attempt) / f"rank-{rank}.log"


@dataclass(frozen=True)
class FileFault:
    """What is wrong with a file, which has its name in the run's folder."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


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
    """Update a copy; turn failures into `JournalUnreadable`, but for `FileNotFoundError`."""
    with looking(path):
        copies.refresh_file(path)
        yield


@contextmanager
def looking(path: Path) -> Iterator[None]:
    """Turn failures into the same errors as `reading`, without asking the bucket."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
        raise JournalUnreadable(storage.address(path), why) from error


def _cause(error: OSError) -> str:
    advice = _ADVICE.get(error.errno or 0)
    return f"{error.strerror or error}" + (f"; {advice}" if advice else "")


def write_new(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Create a file, whole or not at all; `FileExistsError` when the name is taken. The name is
    given by a hard link: unlike lock files or O_EXCL with later writes, a link is atomic with its
    content, also on NFS, and leaves nothing to release when its writer dies.
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
        _sync_folder(path.parent)


def write_once(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Create a file unless it exists; the first content stays."""
    with suppress(FileExistsError):
        write_new(path, content, mode)


def replace(path: Path, content: bytes, *, durably: bool = False) -> None:
    """Replace a file, whole or not at all, after a power failure too if `durably`."""
    partial = _partial(path)
    with writing(path):
        if copies.replace(path, content):
            return
        try:
            if durably:
                _write_whole(partial, content)
            else:
                partial.write_bytes(content)
            partial.rename(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise


_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


def replace_on_full_disk(path: Path, content: bytes, shorter: bytes) -> None:
    """Replace a file; where a disk has no space for a second one, write a shorter text over the
    first, which a reader may see half written.
    """
    try:
        replace(path, content)
    except JournalUnwritable as error:
        if getattr(error.__cause__, "errno", None) not in _NO_SPACE:
            raise
        with writing(path):
            target = boundary.open_file(path, os.O_WRONLY)
            try:
                write_all(target, shorter)
                os.ftruncate(target, len(shorter))
            finally:
                os.close(target)


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
    try:
        path.hardlink_to(partial)
    except FileExistsError:  # a server may refuse a retried request that it has carried out
        if not (path.exists() and path.samefile(partial)):
            raise


def read(path: Path, most: int = boundary.MAX_FILE_BYTES) -> bytes:
    with reading(path):
        return boundary.read_bytes(path, most)


def set_aside(path: Path, suffix: str) -> None:
    """Rename a file, if it is there; what was set aside under that name before is replaced."""
    with writing(path), suppress(FileNotFoundError):
        if not copies.set_aside(path, suffix):
            path.rename(path.with_name(f".{path.name}{suffix}"))


def names(folder: Path) -> list[str]:
    """Return the names in a folder, in order; one that does not exist is empty."""
    try:
        with looking(folder):
            copied = copies.names_in(folder)
            return boundary.names_in(folder) if copied is None else copied
    except FileNotFoundError:
        return []


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(opened)


def make_folder(path: Path) -> None:
    with writing(path):
        missing = [folder for folder in (path, *path.parents) if not _exists(folder)]
        path.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            _sync_folder(folder.parent)


@contextmanager
def building(storage: Path) -> Iterator[Path]:
    """Yield an empty hidden folder to fill and publish; an error removes it."""
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
    """Give a filled folder its name; `FileExistsError` when the name is taken. A bucket has no
    renames: there the file `last` is written last, and makes the folder a run or a study.
    """
    with writing(path):
        if copies.publish(path, prepared, last):
            return
        _sync_folder(prepared)
        try:
            prepared.rename(path)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise FileExistsError(error.errno, "exists already", str(path)) from error
            raise
        _sync_folder(path.parent)


def hide(path: Path) -> Path:
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_REMOVED}")
    with writing(path):
        path.rename(hidden)
    return hidden


def delete(path: Path) -> None:
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
        if path.suffix in {PARTIAL, _REMOVED}:
            with suppress(OSError, JournalUnwritable):  # another process may remove it too
                if time.time() - path.stat().st_mtime > _LEFT_OVER_S:
                    delete(path)


def check_writable(folder: Path) -> None:
    """Try what a journal needs in a folder, or in its nearest parent that exists."""
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if _exists(path))
    trial, where = parent / f".{uuid.uuid4().hex}{PARTIAL}", ""
    try:
        if copies.check_writable(folder):
            return
        where = f"{parent} is not writable: "
        trial.mkdir()
        _write_whole(trial / "written", b"")
        _link(trial / "written", trial / "linked")
    except OSError as error:
        why = f"{storage.address(folder)}: runs cannot be stored there: {where}{_cause(error)}"
        raise JournalUnwritable(why) from error
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder that cannot be examined cannot be written either
        return False


# --- files of lines: one writer appends whole lines, readers take the first, the last or the next

_MAX_LINES_BYTES = 1 << 30  # of a file: the steps of a million, about three times over
MAX_LINE_BYTES = 1 << 20
_MAX_TAIL_BYTES = 64 << 20
_TAIL_BYTES = 1 << 15
_PART_BYTES = 1 << 19  # with the steps of one part the caches of a processor are full


class LineWriter(AbstractContextManager["LineWriter"]):
    """A new file of one writer, to which whole lines are appended."""

    def __init__(self, path: Path) -> None:
        self._path, self._size, self._named = path, 0, False
        with writing(path):
            self._target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Sync and close the file; an error of the `with` block takes precedence."""
        try:
            self.sync()
        except JournalUnwritable:
            if error is None:
                raise
        finally:
            os.close(self._target)

    def append(self, line: bytes) -> None:
        """Add a line; nothing of it stays when it does not fit."""
        content = line + b"\n"
        with writing(self._path):
            try:
                write_all(self._target, content)
            except OSError:
                os.ftruncate(self._target, self._size)
                raise
        self._size += len(content)

    def sync(self) -> None:
        """Make the lines survive a power failure, and show them to other machines."""
        with writing(self._path):
            os.fsync(self._target)
            if not self._named:
                _sync_folder(self._path.parent)
                self._named = True


def last_lines(path: Path, at_least: int) -> tuple[list[bytes], int]:
    """Return at least that many whole lines from the end of a file, or all, and where they end."""
    with reading(path), boundary.reading_file(path) as file:
        size, window = file.seek(0, os.SEEK_END), _TAIL_BYTES
        while True:
            start = file.seek(max(0, size - window))
            *lines, incomplete = file.read(size - start).split(b"\n")
            if start > 0:
                lines = lines[1:]  # the window may begin in the middle of a line
            if start == 0 or len(lines) >= at_least:
                return lines, size - len(incomplete)
            if window >= _MAX_TAIL_BYTES:
                raise OSError(errno.EFBIG, f"its last {window:,} bytes have few lines")
            window *= 2


def whole_lines(path: Path, offset: int = 0, size: int | None = None) -> Iterator[bytes]:
    """Yield the whole lines of a file after `offset`, or in its next `size` bytes, in parts."""
    with reading(path), boundary.reading_file(path) as file:
        if os.fstat(file.fileno()).st_size > _MAX_LINES_BYTES:
            raise OSError(errno.EFBIG, f"is larger than {_MAX_LINES_BYTES:,} bytes")
        file.seek(offset)
        left, rest = _MAX_LINES_BYTES if size is None else size, b""
        while left > 0 and (read := file.read(min(_PART_BYTES, left))):
            left -= len(read)
            part = rest + read
            end = part.rfind(b"\n") + 1
            rest = part[end:]
            if len(rest) > _MAX_TAIL_BYTES:
                raise OSError(errno.EFBIG, f"has a line of more than {_MAX_TAIL_BYTES:,} bytes")
            if end:
                yield part[:end]


def lines_from(path: Path, offset: int) -> Iterator[bytes]:
    """Yield the lines of a file after `offset` with their ends; one that is too long in parts."""
    with reading(path), boundary.reading_file(path) as file:
        file.seek(offset)
        while line := file.readline(MAX_LINE_BYTES):
            yield line
