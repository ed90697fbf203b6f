"""Files of lines: one writer appends whole lines, readers take the first, the last or the next."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestrator.errors import JournalUnwritable
from orchestrator.journal import boundary, files

TAIL_BYTES = 1 << 15
PART_BYTES = 1 << 22
MAX_LINE_BYTES = 1 << 20
MAX_TAIL_BYTES = 64 << 20


class LineWriter:
    """A new file of one writer, to which whole lines are appended."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, 0
        with files.writing(path):
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
        with files.writing(self._path):
            try:
                files.write_all(self._target, content)
            except OSError:
                os.ftruncate(self._target, self._size)
                raise
        self._size += len(content)

    def sync(self) -> None:
        """Make the lines survive a power failure, and show them to other machines."""
        with files.writing(self._path):
            os.fsync(self._target)
            if not self._named:
                files.sync_folder(self._path.parent)
                self._named = True


def first_line(path: Path) -> bytes | None:
    """The first line of a file; None while there is no whole one."""
    with files.reading(path), boundary.reading_file(path) as file:
        line = file.readline(MAX_LINE_BYTES)
    return line[:-1] if line.endswith(b"\n") else None


def last_lines(path: Path, at_least: int) -> tuple[list[bytes], int]:
    """At least that many whole lines from the end of a file, or all, and the offset after them.

    Only the end of the file is read. An incomplete last line is left out.
    """
    with files.reading(path), boundary.reading_file(path) as file:
        size, window = file.seek(0, os.SEEK_END), TAIL_BYTES
        while True:
            start = file.seek(max(0, size - window))
            *lines, incomplete = file.read(size - start).split(b"\n")
            if start > 0:
                lines = lines[1:]  # the window may begin in the middle of a line
            if start == 0 or len(lines) >= at_least:
                return lines, size - len(incomplete)
            if window >= MAX_TAIL_BYTES:
                raise OSError(errno.EFBIG, f"its last {window:,} bytes have few lines")
            window *= 2


def whole_lines(path: Path, offset: int = 0, size: int | None = None) -> Iterator[bytes]:
    """The whole lines of a file after `offset`, or of so many bytes of it, in parts of some lines.

    An incomplete last line is left out. Memory does not grow with the file.
    """
    with files.reading(path), boundary.reading_file(path) as file:
        files.check_size(file)
        file.seek(offset)
        left, rest = files.MAX_LINES_BYTES if size is None else size, b""
        while left > 0 and (read := file.read(min(PART_BYTES, left))):
            left -= len(read)
            part = rest + read
            end = part.rfind(b"\n") + 1
            rest = part[end:]
            if len(rest) > MAX_TAIL_BYTES:
                raise OSError(errno.EFBIG, f"has a line of more than {MAX_TAIL_BYTES:,} bytes")
            if end:
                yield part[:end]


def lines_from(path: Path, offset: int) -> Iterator[bytes]:
    """The lines of a file after `offset`, with their ends; the last one may be incomplete.

    A line that is too long comes in parts, of which only the last has an end.
    """
    with files.reading(path), boundary.reading_file(path) as file:
        file.seek(offset)
        while line := file.readline(MAX_LINE_BYTES):
            yield line
