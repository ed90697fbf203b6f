"""Writes what it reads into a file of a bucket, a part every few seconds.

python -m orchestrator.storage.ship ADDRESS

A process gives it its output: it outlives a process that is killed, and writes its last lines too.
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from orchestrator.storage import addresses
from orchestrator.storage.addresses import place_of
from orchestrator.storage.segments import PartWriter, ship_regularly

# A bucket that does not answer is tried so long after the process has ended.
LAST_LIMIT_S = 120.0
READ_BYTES = 1 << 16


def pipe_to(path: Path) -> int:
    """A descriptor whose bytes a process of its own writes to a file of a bucket."""
    read, write = os.pipe()
    command = [sys.executable, "-m", "orchestrator.storage.ship", addresses.address(path)]
    subprocess.Popen(
        command, stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    os.close(read)
    return write


def main(where: str) -> int:
    """Ship standard input until it ends; the exit code."""
    place = place_of(addresses.folder(where))
    if place is None:
        return 2
    writer, ended = PartWriter(place), threading.Event()
    thread = threading.Thread(target=ship_regularly, args=(writer, ended), daemon=True)
    began = threading.Thread(target=_begin, args=(writer, thread), daemon=True)
    began.start()
    while content := os.read(0, READ_BYTES):
        writer.append(content)
    ended.set()
    began.join()
    thread.join()
    return _ship_last(writer)


def _begin(writer: PartWriter, thread: threading.Thread) -> None:
    """Continue a log that is there, or begin it."""
    while True:
        try:
            writer.begin(b"")
            writer.go_on()
            break
        except OSError:
            time.sleep(1.0)
    thread.start()


def _ship_last(writer: PartWriter) -> int:
    deadline = time.monotonic() + LAST_LIMIT_S
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
