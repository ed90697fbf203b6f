"""Record room: the process that records in the background, so that training waits for nothing.

    python -m orchestrator.tracking.mlflow RUN...          # bring runs up to their journals, once
    python -m orchestrator.tracking.mlflow --follow RUN    # and go on until the run has ended
    python -m orchestrator.tracking.mlflow --serve URI PORT    # show what is recorded (`orch ui`)

One that follows or serves ends soon after its input does: whoever started it holds the other end.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.journal import Journal
from orchestrator.tracking.mlflow import server
from orchestrator.tracking.mlflow.recorder import ONCE_LIMIT_S, Recorder
from orchestrator.types.run import LIVE

POLL_S, LONGEST_WAIT_S = 2.0, 30.0
# After the driver has ended: as long as a run needs to be seen as lost, and a little more.
LAST_LIMIT_S = 15.0
NICE = 10


def main(arguments: list[str]) -> None:
    if arguments[0] == "--serve":
        sys.exit(server.keep(*arguments[1:]))
    os.nice(NICE)  # whatever else runs here comes first
    if arguments[0] == "--follow":
        follow(Journal(Path(arguments[1])))
        return
    signal.alarm(ONCE_LIMIT_S)
    recorder = Recorder(os.environ)
    for path in arguments:
        told(recorder.record(Journal(Path(path))).problem)


def follow(journal: Journal) -> None:
    """Record a run as it goes on, until it has ended or the driver has."""
    deadline, wait_s, said = None, POLL_S, None
    recorder = Recorder(os.environ)
    while deadline is None or time.monotonic() < deadline:
        tried = recorder.record(journal)
        if tried.problem:
            recorder.forget()
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        else:
            wait_s = POLL_S
        if tried.problem != said:
            told(tried.problem or "recorded again")
            said = tried.problem
        if tried.recorded and tried.recorded.state not in LIVE:
            return
        if deadline is None and input_ended(wait_s):
            deadline = time.monotonic() + LAST_LIMIT_S
        elif deadline is not None:
            time.sleep(POLL_S / 4)


def input_ended(limit_s: float) -> bool:
    """Whether whoever started this closed its input, or ended, within some time."""
    readable, _, _ = select.select([sys.stdin], [], [], limit_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 4096)


def told(problem: str | None) -> None:
    """A line in the log, with its time."""
    if problem:
        print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), problem, flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OrchError as error:
        told(str(error))
        sys.exit(error.exit_code)
