"""Files that grow, on a bucket whose objects do not: an object for each part, named by its offset.
`steps.jsonl` is `steps.jsonl/000000000000000` and so on, each created once, and
`steps.jsonl/begin`, which says who writes it. A part whose answer was lost is created again.

`python -m orchestrator.storage.segments ADDRESS` writes another process's output, and outlives it.
"""

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from orchestrator.processes import MODULE
from orchestrator.storage.addresses import Place, address, folder, place_of

_BEGIN = "begin"
_PART = re.compile(r"\d{15}")
# A part is written every few seconds; on a long run more rarely, so that it has few parts.
_FIRST_EVERY_S, _SHARE_OF_AGE, _LAST_EVERY_S = 2.0, 0.01, 30.0
_MOST_BYTES = 4 << 20  # of a part
# A bucket that does not answer is tried so long after the process has ended.
_LAST_LIMIT_S = 120.0
_READ_BYTES = 1 << 16


def is_grown(path: Path) -> bool:
    return path.suffix in (".jsonl", ".log")


def make_empty(path: Path) -> None:
    """Make what a prefix of a bucket is here: a folder, or a file whose parts are not read yet."""
    if not is_grown(path):
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


def pull(place: Place) -> None:
    """Append the parts to a copy that it lacks."""
    found = {stored.name.rpartition("/")[2]: stored for stored in place.bucket.below(place.prefix)}
    if not found:
        with suppress(OSError):
            place.path.unlink()
        return
    make_empty(place.path)
    begin = found[_BEGIN].version if _BEGIN in found else ""
    offsets = sorted(int(name) for name in found if _PART.fullmatch(name))
    with place.path.open("r+b") as copy:
        fcntl.flock(copy, fcntl.LOCK_EX)  # other processes of this machine share the copy
        note = place.path.with_name(f".{place.path.name}.begin")
        if (note.read_text() if note.exists() else None) != begin:
            os.ftruncate(copy.fileno(), 0)  # the copy is of another file that had this name
            note.write_text(begin)
        size = copy.seek(0, os.SEEK_END)
        for offset in offsets:
            if offset > size:
                return  # a part is missing: what comes after it cannot be placed
            if offset == size:
                content, _ = place.bucket.read((place / f"{offset:015d}").name)
                copy.write(content)
                size += len(content)


@dataclass
class _PartWriter:
    """Writes a file in parts. `append` may be called by many threads, `ship` by one at a time."""

    place: Place
    offset: int = 0
    _bytes: bytearray = field(default_factory=bytearray)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _shipping: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, who: bytes) -> None:
        """Become the writer of a new file; `FileExistsError` where there is another."""
        self.place.bucket.create((self.place / _BEGIN).name, who)

    def append(self, content: bytes) -> None:
        with self._lock:
            self._bytes += content

    def ship(self) -> None:
        """Write what was added since; after an error it stays, and the call may be repeated."""
        with self._shipping:
            while True:
                with self._lock:
                    part = bytes(self._bytes[:_MOST_BYTES])
                if not part:
                    return
                self.place.bucket.create((self.place / f"{self.offset:015d}").name, part)
                with self._lock:
                    del self._bytes[: len(part)]
                self.offset += len(part)

    def ship_regularly(self, ended: threading.Event) -> None:
        """Write a part now and then, until somebody ends it. What failed is tried again."""
        began_s = time.monotonic()
        while not ended.wait(_every_s(time.monotonic() - began_s)):
            with suppress(OSError):
                self.ship()


def _every_s(age_s: float) -> float:
    """Seconds from one part to the next of a file that has been written for `age_s`."""
    return min(max(_FIRST_EVERY_S, _SHARE_OF_AGE * age_s), _LAST_EVERY_S)


class _Lines(_PartWriter):
    """A new file of one writer on a bucket, to which whole lines are appended: parts hold them."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        who = {"host": os.uname().nodename, "pid": os.getpid(), "at_s": time.time()}
        self.begin(json.dumps(who).encode())
        ship, self._ended = self.ship_regularly, threading.Event()
        self._thread = threading.Thread(target=ship, args=(self._ended,), name="lines", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Write the last part; an error of the `with` block takes precedence."""
        self._ended.set()
        self._thread.join()
        try:
            self.ship()
        except OSError:
            if error is None:
                raise

    def append(self, content: bytes) -> None:
        super().append(content + b"\n")

    sync = _PartWriter.ship


def lines(path: Path) -> _Lines | None:
    place = place_of(path)
    return None if place is None else _Lines(place)


def pipe_to(path: Path) -> int:
    """Return a descriptor whose bytes a process of its own writes to a file of a bucket."""
    read, write = os.pipe()
    subprocess.Popen(
        [*MODULE, "orchestrator.storage.segments", address(path)],
        stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    os.close(read)
    return write


def main(where: str) -> int:
    """Ship standard input until it ends; return the exit code."""
    place = place_of(folder(where))
    if place is None:
        return 2
    writer, ended = _PartWriter(place), threading.Event()

    def ship() -> None:
        while True:
            try:
                writer.begin(b"")
                # Continue after the parts of a log that is there.
                names = [(part.name[-15:], part.size) for part in place.bucket.below(place.prefix)]
                ends = [int(name) + size for name, size in names if _PART.fullmatch(name)]
                writer.offset = max(ends, default=0)
                break
            except OSError:
                time.sleep(1.0)
        writer.ship_regularly(ended)

    shipping = threading.Thread(target=ship, daemon=True)
    shipping.start()
    while content := os.read(0, _READ_BYTES):
        writer.append(content)
    ended.set()
    shipping.join()
    deadline = time.monotonic() + _LAST_LIMIT_S
    while time.monotonic() < deadline:
        try:
            writer.ship()
        except OSError:
            time.sleep(1.0)
        else:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
