"""The process of one rank of an attempt, on a host that has joined a meeting.

python -m orchestrator.launch.hosts.rank WORKER ARGS RANK    # started by its host
"""

import os
import pkgutil
import sys

from orchestrator.launch.backend import WorkerArgs
from orchestrator.parent import end_with_parent
from orchestrator.types import codec


def main(worker: str, args: str, rank: str) -> None:
    """Do the worker's part. It ends with the host's process: nobody else would stop it."""
    end_with_parent(lambda: os._exit(1))
    work = pkgutil.resolve_name(worker)
    work(codec.from_json(args, WorkerArgs), int(rank))


if __name__ == "__main__":
    main(*sys.argv[1:])
