"""The heartbeat of a driver: one small file for each claim, which the driver writes over in place.

The file's time is by the clock of the file system, for readers on other machines. Its content is
the time since the driver's machine started, for readers on the same machine: no adjustment of a
clock changes it. When another claim supersedes this one the file is removed, and its ranks stop.
"""

import errno
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator import storage
from orchestrator.journal import boundary, files, liveness
from orchestrator.storage import copies

MOST_BYTES = 64
LEAST_S = 1.0
_renewed: dict[Path, float] = {}
FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class DriverHeartbeat:
    """A heartbeat: when by the file system's clock, and when since its machine started.

    `uptime_s` is None where a full disk took no more than the time of the file.
    """

    at_s: float
    uptime_s: float | None


def send(path: Path) -> None:
    """Write a heartbeat. It is the driver's first, or its file was removed by accident."""
    with files.writing(path):
        if not copies.replace(path, _content()):
            _write_over(boundary.open_file(path, os.O_WRONLY | os.O_CREAT))


def renew(path: Path) -> bool:
    """Write a heartbeat where there was one; False where its file is gone."""
    with files.writing(path):
        if storage.is_copy(path):
            return _renew_copy(path)
        try:
            opened = boundary.open_file(path, os.O_WRONLY)
        except FileNotFoundError:
            return False
        _write_over(opened)
        return True


def _renew_copy(path: Path) -> bool:
    """Renew a heartbeat on a bucket, which takes one for an object a second."""
    now_s = time.monotonic()
    if now_s - _renewed.get(path, -LEAST_S) < LEAST_S:
        return True
    _renewed[path] = now_s
    return copies.replace_same(path, _content())


def _content() -> bytes:
    return b"%020.3f\n" % liveness.uptime_s()


def _write_over(opened: int) -> None:
    """Write in place, which needs no space once the file is there; then close the file."""
    try:
        files.write_all(opened, _content())
        os.utime(opened)
    except OSError as error:
        if error.errno not in FULL:
            raise
        os.ftruncate(opened, 0)  # a heartbeat without a content, rather than with an old one
        os.utime(opened)
    finally:
        os.close(opened)


def retire(path: Path) -> None:
    """Remove the heartbeat of a superseded claim, so that its ranks stop."""
    with files.writing(path), suppress(FileNotFoundError):
        if not copies.delete(path):
            path.unlink()


def read(path: Path) -> DriverHeartbeat | None:
    """The last heartbeat; None while there is none.

    Opening the file makes a shared file system ask its server instead of its cache.
    """
    try:
        with files.reading(path), boundary.reading_file(path) as file:
            content = file.read(MOST_BYTES)
            at_s = os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None
    uptime_s = None
    with suppress(ValueError):
        uptime_s = float(content)
    return DriverHeartbeat(at_s=at_s, uptime_s=uptime_s)
