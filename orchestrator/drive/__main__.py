"""The command of every run's job.

python -m orchestrator.drive RUN [--resume] [--preflight] [--pods N] [--recorded-in CHOICE]
"""

import argparse
import os
import sys

from orchestrator.drive import driver
from orchestrator.errors import OrchError
from orchestrator.journal.run_journal import Journal
from orchestrator.launch.backend import find_backend
from orchestrator.storage.addresses import folder
from orchestrator.tracking import destinations


def main(arguments: list[str]) -> int:
    """Drive the run in a directory until it has ended; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.drive", description=__doc__)
    parser.add_argument("run", type=folder)
    parser.add_argument("--resume", action="store_true", help="go on with a run that has ended")
    parser.add_argument("--preflight", action="store_true", help="only time its hosts")
    parser.add_argument("--pods", type=int, help="use so many, instead of those of its spec")
    parser.add_argument("--recorded-in", help="where the submitter records it, as JSON")
    options = parser.parse_args(arguments)
    if options.recorded_in:
        os.environ[destinations.VARIABLE] = options.recorded_in
    try:
        run = Journal(options.run)
        backend = find_backend(run.spec().cluster.backend)
        return driver.drive(
            run, backend, resumes=options.resume, pods=options.pods, checks_only=options.preflight
        )
    except OrchError as error:  # another driver has the run, or it has ended
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
