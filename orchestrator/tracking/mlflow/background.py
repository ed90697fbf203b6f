"""Record room: records in the background, from a driver or a command. Starts processes of its own.

MLflow is asked in another process: one that hangs there, or dies, takes nothing with it.
"""

import subprocess
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import IO, Self

from orchestrator.journal import Journal
from orchestrator.tracking.mlflow.sync_state import mark_of

AGAIN_AFTER_S = 5.0
# So long a driver that has ended waits for its last words to be recorded; later commands can too.
LAST_WORDS_S = 10.0
PROGRAM = [sys.executable, "-m", "orchestrator.tracking.mlflow"]


class BackgroundRecorder:
    """Records a run in the background for as long as this lasts; its process is started anew when
    it dies. A run that nobody meant to record is left alone.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal, self._over = journal, threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="record", daemon=True)

    def __enter__(self) -> Self:
        if mark_of(self._journal):
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        process = self._process
        if process is None:
            return
        assert process.stdin
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(LAST_WORDS_S)
        process.kill()
        self._thread.join()

    def _keep(self) -> None:
        while not self._over.is_set():
            with self._journal.paths.record_log.open("ab") as log:
                self._process = started(["--follow", str(self._journal.path)], log, piped=True)
            if self._process.wait() == 0:
                return
            self._over.wait(AGAIN_AFTER_S)


def in_background(journals: list[Journal]) -> None:
    """Bring runs up to their journals without waiting for it. The process ends by itself."""
    with journals[0].paths.record_log.open("ab") as log:
        started([str(journal.path.absolute()) for journal in journals], log, piped=False)


def started(arguments: list[str], log: IO[bytes], *, piped: bool) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C is for whoever started it
    )
