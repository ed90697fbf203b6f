"""The process of one rank of an attempt, on a host that has joined a meeting.

python -m orchestrator.launch.hosts.rank WORKER ARGS RANK    # started by its host
"""

import os
import pkgutil
import sys
import traceback

from orchestrator.launch.backend import WorkerArgs
from orchestrator.processes import end_with_parent
from orchestrator.values import codec


def main(worker: str, args: str, rank: str) -> None:
    """Do the worker's part. It ends with the host's process: nobody else would stop it."""
    end_with_parent(lambda: os._exit(1))
    work_or_exit(worker, codec.from_json(args, WorkerArgs), int(rank))


def work_or_exit(worker: str, args: WorkerArgs, rank: int) -> None:
    """Do the worker's part. After an error this process ends at once: on its usual way out JAX
    waits for the others for minutes, and nobody looks at the claim any more.
    """
    try:
        pkgutil.resolve_name(worker)(args, rank)
    except BaseException:  # noqa: BLE001  whatever it was, the slice must be free
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
