"""Drive room: the entrypoint of every run's Ray Job, and of each attempt's crew.

python -m orchestrator.drive RUN [--resume] [--pods N]
python -m orchestrator.drive RUN --crew    # started by the driver, never by hand
"""

import argparse
import os
import sys
from pathlib import Path

from orchestrator import journal
from orchestrator.drive import driver, worker
from orchestrator.errors import OrchError
from orchestrator.launch.ray import attempt


def main(arguments: list[str]) -> int:
    """Drive the run in a directory until it has ended, or carry out one attempt of it."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.drive", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", action="store_true", help="a person wants it to go on")
    parser.add_argument("--pods", type=int, help="on so many, instead of those of its spec")
    parser.add_argument("--crew", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    recorded = journal.Journal(asked.run)
    if not asked.crew:
        try:
            return driver.drive(recorded, resumes=asked.resume, pods=asked.pods)
        except OrchError as error:  # the run is another's, or has ended
            print(error, file=sys.stderr)
            return error.exit_code
    run = recorded.run()
    errand = attempt.AttemptSpec(
        run=str(recorded.path),
        kind=recorded.plan(run.plan_digest),
        plan_of=recorded.plan,
        shared=not run.rehearsal,
    )
    attempt.serve(os.environ["RAY_ADDRESS"], errand, worker.work)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
