"""Files that grow, on a bucket whose objects do not: an object for each part, named by its offset.

`steps.jsonl` is the objects `steps.jsonl/000000000000000`, `steps.jsonl/000000000004711` and so on,
each created once, and `steps.jsonl/begin`, which says who writes it. A part whose answer was lost
is created again: it has the same offset and the same bytes, so that it is there once.
"""

import fcntl
import json
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestrator.storage.addresses import Place, place_of

GROWN = (".jsonl", ".log")
BEGIN = "begin"
PART = re.compile(r"\d{15}")
# A part is written every few seconds; on a long run more rarely, so that it has few parts.
FIRST_EVERY_S, SHARE_OF_AGE, LAST_EVERY_S = 2.0, 0.01, 30.0
MOST_BYTES = 4 << 20  # of a part


def is_grown(path: Path) -> bool:
    """Whether a file is kept in parts."""
    return path.suffix in GROWN


# --- reading


def make_empty(path: Path) -> None:
    """What a prefix of a bucket is here: a folder, or a file in parts that are not read yet."""
    if not is_grown(path):
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


def pull(place: Place) -> None:
    """Append the parts to a copy that it lacks."""
    found = {one.name.rpartition("/")[2]: one for one in place.bucket.below(place.prefix)}
    if not found:
        with suppress(OSError):
            place.path.unlink()
        return
    make_empty(place.path)
    begin = found[BEGIN].version if BEGIN in found else ""
    offsets = sorted(int(name) for name in found if PART.fullmatch(name))
    with place.path.open("r+b") as copy:
        fcntl.flock(copy, fcntl.LOCK_EX)  # other processes of this machine share the copy
        _begin_anew(place.path, copy.fileno(), begin)
        size = copy.seek(0, os.SEEK_END)
        for offset in offsets:
            if offset > size:
                return  # a part is missing: what comes after it cannot be placed
            if offset == size:
                content, _ = place.bucket.read((place / part_name(offset)).name)
                copy.write(content)
                size += len(content)


def _begin_anew(path: Path, opened: int, begin: str) -> None:
    """Empty a copy of another file that had this name."""
    note = path.with_name(f".{path.name}.begin")
    noted = note.read_text() if note.exists() else None
    if noted != begin:
        os.ftruncate(opened, 0)
        note.write_text(begin)


def part_name(offset: int) -> str:
    return f"{offset:015d}"


# --- writing


@dataclass
class PartWriter:
    """Writes a file in parts. `append` may be called by many threads, `ship` by one at a time."""

    place: Place
    offset: int = 0
    _bytes: bytearray = field(default_factory=bytearray)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _shipping: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, who: bytes) -> None:
        """Become the writer of a new file; `FileExistsError` where there is another."""
        self.place.bucket.create((self.place / BEGIN).name, who)

    def go_on(self) -> None:
        """Continue after the parts that are there."""
        parts = self.place.bucket.below(self.place.prefix)
        ends = [int(one.name[-15:]) + one.size for one in parts if PART.fullmatch(one.name[-15:])]
        self.offset = max(ends, default=0)

    def append(self, content: bytes) -> None:
        """Add to the next part."""
        with self._lock:
            self._bytes += content

    def ship(self) -> None:
        """Write what was added since; after an error it stays, and the call may be repeated."""
        with self._shipping:
            while True:
                with self._lock:
                    part = bytes(self._bytes[:MOST_BYTES])
                if not part:
                    return
                self.place.bucket.create((self.place / part_name(self.offset)).name, part)
                with self._lock:
                    del self._bytes[: len(part)]
                self.offset += len(part)


class Lines:
    """A new file of one writer on a bucket, to which whole lines are appended: parts hold them."""

    def __init__(self, place: Place) -> None:
        self._writer, self._ended = PartWriter(place), threading.Event()
        who = {"host": os.uname().nodename, "pid": os.getpid(), "at_s": time.time()}
        self._writer.begin(json.dumps(who).encode())
        self._thread = threading.Thread(target=self._repeat, name="lines", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the last part; an error of the `with` block takes precedence."""
        self._ended.set()
        self._thread.join()
        try:
            self.sync()
        except OSError:
            if error is None:
                raise

    def append(self, line: bytes) -> None:
        """Add a line; it is on the bucket after a few seconds, or the next `sync`."""
        self._writer.append(line + b"\n")

    def sync(self) -> None:
        """Write what was added."""
        self._writer.ship()

    def _repeat(self) -> None:
        ship_regularly(self._writer, self._ended)


def ship_regularly(writer: PartWriter, ended: threading.Event) -> None:
    """Write a part now and then, until somebody ends it. What failed is tried again."""
    began_s = time.monotonic()
    while not ended.wait(every_s(time.monotonic() - began_s)):
        with suppress(OSError):
            writer.ship()


def every_s(age_s: float) -> float:
    """Seconds from one part to the next, of a file that has been written for so long."""
    return min(max(FIRST_EVERY_S, SHARE_OF_AGE * age_s), LAST_EVERY_S)


def lines(path: Path) -> Lines | None:
    """A writer of a new file in parts; None for a path that no bucket has."""
    place = place_of(path)
    return None if place is None else Lines(place)
