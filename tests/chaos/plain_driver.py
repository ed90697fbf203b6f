"""The driver of a run on plain processes, with points for faults.

python -m tests.chaos.plain_driver RUN [--resume]
"""

import functools
import sys
from pathlib import Path
from typing import Any

from orchestrator.drive import __main__ as command
from orchestrator.drive import driver
from orchestrator.journal import events
from tests.chaos.plain_worker import WORKER
from tests.chaos.points import Points, before_and_after, points_of_process, pretend_machine

# The kinds of events, as they are written down, and the points before and after them.
KINDS = {"claimed": "claim", "attempt started": "attempt", "attempt ended": "end of attempt"}


def add_points(points: Points) -> None:
    """Stop before and after the events that decide who drives, and what."""

    def come_to(when: str, _folder: Path, _number: int, content: bytes) -> None:
        for kind, name in KINDS.items():
            if f'"kind":"{kind}"'.encode() in content:
                points.come_to(f"{when} {name}", "driver")

    def before(*arguments: Any) -> None:
        come_to("before", *arguments)

    def after(*arguments: Any) -> None:
        come_to("after", *arguments)

    before_and_after(events, "append", before, after)


def main() -> int:
    """Drive the run."""
    pretend_machine()
    if points := points_of_process():
        add_points(points)
    driver.Driver = functools.partial(driver.Driver, worker=WORKER)  # type: ignore[assignment,misc]
    return command.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
