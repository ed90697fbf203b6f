"""The process that records runs in the background.

    python -m orchestrator.tracking RUN...          # sync runs once
    python -m orchestrator.tracking --follow RUN    # go on until the run has ended

A process that follows ends soon after its input does: whoever started it holds the other end.
"""

import os
import select
import signal
import sys
import time

from orchestrator.errors import OrchError
from orchestrator.journal.run_journal import Journal
from orchestrator.storage.addresses import folder
from orchestrator.tracking.recorder import ONCE_LIMIT_S, Recorder
from orchestrator.values.run import LIVE

_POLL_S, _LONGEST_WAIT_S = 2.0, 30.0
# After its driver has ended a run shows as lost within this time.
_LAST_LIMIT_S = 15.0


def main(arguments: list[str]) -> None:
    os.nice(10)  # training comes first
    recorder = Recorder(os.environ)
    if arguments[0] != "--follow":
        signal.alarm(ONCE_LIMIT_S)
        for path in arguments:
            _log(recorder.record(Journal(folder(path))).problem)
        return
    # Sync a run again and again until it has ended, or its driver has.
    journal = Journal(folder(arguments[1]))
    deadline, wait_s, last_problem = None, _POLL_S, None
    while deadline is None or time.monotonic() < deadline:
        result = recorder.record(journal)
        if result.problem:
            recorder.forget()
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        else:
            wait_s = _POLL_S
        if result.problem != last_problem:
            _log(result.problem or "recorded again")
            last_problem = result.problem
        if result.recorded and result.recorded.state not in LIVE:
            return
        if deadline is not None:
            time.sleep(_POLL_S / 4)
            continue
        # The input ends when the starter of this process closes it, or ends.
        readable, _, _ = select.select([sys.stdin], [], [], wait_s)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            deadline = time.monotonic() + _LAST_LIMIT_S


def _log(problem: str | None) -> None:
    if problem:
        print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), problem, flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OrchError as error:
        _log(str(error))
        sys.exit(error.exit_code)
