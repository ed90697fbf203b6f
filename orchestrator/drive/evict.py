"""Ends what a superseded claim left on this machine: its driver, what that started, and its ranks.

They would end by themselves once they look at the journal. A process that is stopped never looks,
and holds its slice. On other machines the backend ends what it knows.
"""

import os
import sys
from collections.abc import Iterable, Set
from contextlib import suppress

import psutil

from orchestrator.drive.clock import Clock
from orchestrator.drive.monitor import ReadHeartbeats
from orchestrator.journal import Journal, heartbeat, liveness
from orchestrator.journal.run_state import RunState
from orchestrator.types.run import ProcessIdentity

EXIT_LIMIT_S = 5.0
START_LIMIT_S = 5.0
POLL_S = 0.2
REAL_CLOCK = Clock()


def evict(journal: Journal, before: RunState) -> None:
    """End the processes of the claim before, the driver first: it would start others."""
    if before.claim and before.claim.driver != liveness.this_process():
        _kill_tree(before.claim.driver)
    if before.attempts:
        end_ranks(journal, before.attempts[-1].number)


def end_ranks(
    journal: Journal,
    attempt: int,
    *,
    expected: Set[int] = frozenset(),
    clock: Clock = REAL_CLOCK,
    read: ReadHeartbeats = heartbeat.read_heartbeats,
) -> None:
    """Wait until no rank of the attempt is left on this machine, and kill those that stay.

    An `expected` rank without a heartbeat may still be starting: it is waited for, up to a limit.
    Ranks on other machines end by themselves when they see that their attempt counts no more.
    """
    began_s = clock.now_s()
    while True:
        # Read in every turn: a rank may have started since.
        beats = read(journal.path, attempt)
        here = [beat.process for beat in beats.values() if liveness.is_known(beat.process)]
        left = [process for process in here if not liveness.is_gone(process)]
        waited_s = clock.now_s() - began_s
        # A rank that has sent no heartbeat is on this machine only where the others are.
        awaited = bool(here or not beats) and not expected <= beats.keys()
        if not left and (not awaited or waited_s > START_LIMIT_S):
            return
        if left and waited_s > EXIT_LIMIT_S:
            _kill(psutil.Process(process.pid) for process in left)
        clock.sleep(POLL_S)


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
