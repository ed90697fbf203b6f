"""The driver of a rehearsal on emulated hosts. It runs a command once all hosts have joined.

    python -m orchestrator.launch.hosts.rehearsal_driver FOLDER HOSTS COMMAND...

Its backend starts it. It ends with its parent, and the command with it.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from orchestrator.launch.hosts.meeting import VARIABLE, Meeting
from orchestrator.processes import end_with_parent

POLL_S = 0.1


def main(folder: str, hosts: str, *command: str) -> int:
    """Wait until `hosts` hosts have joined, run the command, and return its exit code."""
    end_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    meeting = Meeting(Path(folder))
    while len(meeting.hosts()) < int(hosts):
        time.sleep(POLL_S)
    child = subprocess.Popen(command, env={**os.environ, VARIABLE: folder})
    signal.signal(signal.SIGTERM, lambda *_: child.kill())
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
