"""Whether a process still exists, and the heartbeat of a driver."""

import errno
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import psutil

from orchestrator import errors, storage
from orchestrator.journal import boundary, files
from orchestrator.storage import copies
from orchestrator.values.run import ProcessIdentity

# The boot time that the system reports moves by up to a second when its clock is adjusted.
_CLOCK_TOLERANCE_S = 2.0


def this_process() -> ProcessIdentity:
    pid, host = os.getpid(), socket.gethostname()
    started_s = _started_s(psutil.Process(pid))
    return ProcessIdentity(host=host, pid=pid, machine=_this_machine(), started_s=started_s)


def _this_machine() -> str | None:
    """Return this boot of this machine, with the pid namespace, as containers share the boot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def is_known(process: ProcessIdentity) -> bool:
    """Return whether this machine is that of the process, and so knows whether it exists."""
    return process.machine is not None and process.machine == _this_machine()


def uptime_s() -> float:
    """Return the seconds that this machine has been awake: setting a clock does not change it."""
    return time.monotonic()


def is_gone(process: ProcessIdentity) -> bool:
    """Return whether the process is known to have ended; False where this machine cannot know."""
    if not is_known(process):
        return False
    try:
        current = psutil.Process(process.pid)
        reused = abs(_started_s(current) - process.started_s) > _CLOCK_TOLERANCE_S
        return reused or current.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False  # it belongs to another user: it exists


def is_alive(process: ProcessIdentity) -> bool:
    return is_known(process) and not is_gone(process)


def _started_s(process: psutil.Process) -> float:
    """Return the seconds from boot to the start of a process, which no clock changes."""
    return round(process.create_time() - psutil.boot_time(), 2)


# --- the heartbeat of a driver: one small file for each claim, written over in place

_LEAST_S = 1.0  # between two heartbeats on a bucket, which takes one for an object a second
_renewed: dict[Path, float] = {}
# When by the file system's clock, and when since its machine started: None where a full disk took
# no more than the time of the file. Then the last words of a driver.
DriverHeartbeat = tuple[float, float | None, str]
_MOST_WORDS = 1000


def send(path: Path) -> None:
    """Write a heartbeat. It is the driver's first, or its file was removed by accident."""
    with files.writing(path):
        if not copies.replace(path, _content()):
            _write_over(boundary.open_file(path, os.O_WRONLY | os.O_CREAT))


def renew(path: Path) -> bool:
    """Write a heartbeat where there was one; return False where its file is gone."""
    with files.writing(path):
        if storage.is_copy(path):
            now_s = time.monotonic()
            if now_s - _renewed.get(path, -_LEAST_S) < _LEAST_S:
                return True
            _renewed[path] = now_s
            return copies.replace_same(path, _content())
        try:
            opened = boundary.open_file(path, os.O_WRONLY)
        except FileNotFoundError:
            return False
        _write_over(opened)
        return True


def leave(path: Path, words: str) -> None:
    """Write why the driver leaves into its heartbeat, the one file that needs no more space."""
    with suppress(errors.JournalUnwritable), files.writing(path), suppress(FileNotFoundError):
        content = _content() + words.encode()[:_MOST_WORDS]
        if not storage.is_copy(path):
            _write_over(boundary.open_file(path, os.O_WRONLY), content)


def _content() -> bytes:
    return b"%020.3f\n" % uptime_s()


def _write_over(opened: int, content: bytes | None = None) -> None:
    """Write in place, which needs no space once the file is there; then close the file."""
    try:
        files.write_all(opened, content or _content())
        os.utime(opened)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.ftruncate(opened, 0)  # a heartbeat without a content, rather than with an old one
        os.utime(opened)
    finally:
        os.close(opened)


def read(path: Path) -> DriverHeartbeat | None:
    """Return the last heartbeat; None before the first."""
    try:  # opening the file makes a shared file system ask its server instead of its cache
        with files.reading(path), boundary.reading_file(path) as file:
            content, at_s = file.read(2 * _MOST_WORDS), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None
    beat, _, words = content.partition(b"\n")
    try:
        return at_s, float(beat), words.decode(errors="replace")
    except ValueError:
        return at_s, None, ""
