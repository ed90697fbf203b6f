"""Records runs in a background process, so that neither training nor a command waits.

A tracker that hangs or crashes takes only that process with it.
"""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from orchestrator.journal import Journal, boundary
from orchestrator.storage import address
from orchestrator.tracking.sync_state import read_sync_state

RESTART_AFTER_S = 5.0
# A driver that ends waits this long for the last sync. Later commands can make up for it.
END_LIMIT_S = 10.0
PROGRAM = [sys.executable, "-m", "orchestrator.tracking"]


class BackgroundRecorder:
    """Records a run for as long as a `with` lasts, and restarts its process when that dies.

    A run that is not to be recorded is left alone.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal, self._closed = journal, threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, name="record", daemon=True)

    def __enter__(self) -> Self:
        if read_sync_state(self._journal):
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        process = self._process
        if process is None:
            return
        assert process.stdin
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_LIMIT_S)
        process.kill()
        self._thread.join()

    def _supervise(self) -> None:
        while not self._closed.is_set():
            with _log_of(self._journal) as log:
                self._process = _start(["--follow", address(self._journal.path)], log, piped=True)
            if self._process.wait() == 0:
                return
            self._closed.wait(RESTART_AFTER_S)


def in_background(journals: list[Journal]) -> None:
    """Sync runs once without waiting for it. The process ends by itself."""
    with _log_of(journals[0]) as log:
        _start([address(journal.path.absolute()) for journal in journals], log, piped=False)


def _log_of(journal: Journal) -> IO[bytes]:
    """The log of what records a run; nothing is kept where it cannot be written."""
    try:
        return boundary.appending_to(journal.paths.sync_log)
    except OSError:
        return Path(os.devnull).open("ab")


def _start(arguments: list[str], log: IO[bytes], *, piped: bool) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C ends whoever started it, not this
    )
