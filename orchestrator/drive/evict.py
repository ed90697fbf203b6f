"""Ends what a superseded claim left on this machine: its driver, what that started, and its ranks.

They would end by themselves once they look at the journal. A process that is stopped never looks,
and holds its slice. On other machines the backend ends what it knows.
"""

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

from orchestrator.journal import Journal, heartbeat, liveness
from orchestrator.journal.run_state import RunState
from orchestrator.types.run import ProcessIdentity

EXIT_LIMIT_S = 5.0
POLL_S = 0.2


def evict(journal: Journal, before: RunState) -> None:
    """End the processes of the claim before, the driver first: it would start others."""
    if before.claim and before.claim.driver != liveness.this_process():
        _kill_tree(before.claim.driver)
    if before.attempts:
        end_ranks(journal, before.attempts[-1].number)


def end_ranks(journal: Journal, attempt: int) -> None:
    """Wait until no rank of the attempt is left on this machine, and kill those that stay.

    Those on other machines end by themselves when they see that their attempt counts no more.
    """
    beats = heartbeat.read_heartbeats(journal.path, attempt).values()
    here = [one.process for one in beats if liveness.is_known(one.process)]
    deadline = time.monotonic() + EXIT_LIMIT_S
    while left := [process for process in here if not liveness.is_gone(process)]:
        if time.monotonic() > deadline:
            _kill([psutil.Process(one.pid) for one in left])
        time.sleep(POLL_S)


def _kill_tree(driver: ProcessIdentity) -> None:
    """Kill a process of this machine, and all that it started."""
    if not liveness.is_alive(driver):
        return
    print(f"ending process {driver.pid}, whose claim is superseded", file=sys.stderr, flush=True)
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(driver.pid)
        tree = [process, *process.children(recursive=True)]
        _kill(one for one in tree if one.pid != os.getpid())


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
