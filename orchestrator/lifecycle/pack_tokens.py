"""Makes token sets, in a process that knows trainers."""

import subprocess
import sys
from collections.abc import Sequence

COMMAND = (sys.executable, "-m", "trainers.data.pack")


def pack(arguments: Sequence[str]) -> int:
    """The exit code of the process; it prints for itself."""
    with subprocess.Popen([*COMMAND, *arguments]) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # it has one too: wait until it has cleaned up
                continue
