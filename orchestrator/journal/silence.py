"""Whether a run that looks abandoned is: asked before it is taken over or removed.

Two clocks may disagree, and either may jump. So what counts as silent by the clock is watched for
as long as a driver may be silent, by the clock of this process alone.
"""

import time
from collections.abc import Callable

from orchestrator.errors import RunIsLive
from orchestrator.journal import driver_heartbeat, event_log, liveness
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.run_state import RunState
from orchestrator.journal.run_status import MISSING_HEARTBEATS, process_name

POLL_S = 0.25


def check_no_process(key: str, state: RunState) -> None:
    """Refuse a run whose driver exists on this machine, however silent it is; so before the first
    driver, if its submitter exists.
    """
    claim, submitter = state.claim, state.submitted.submission.submitter
    writer, role = (claim.driver, "its driver") if claim else (submitter, "orch submit")
    if state.ended is None and liveness.is_alive(writer):
        why = f"{role} ({process_name(writer)}) exists, and may go on"
        raise RunIsLive(f"run {key}: {why}: end that process first")


def check_silence(
    journal: Journal, key: str, state: RunState, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Refuse a run whose driver, on another machine, gives a sign of life while it is watched."""
    claim = state.claim
    if state.ended or claim is None or liveness.is_known(claim.driver):
        return
    path = journal.paths.driver_heartbeat(state.writer)
    first = driver_heartbeat.read(path)
    for _ in range(round(claim.heartbeat_s * MISSING_HEARTBEATS / POLL_S) + 1):
        sleep(POLL_S)
        new = event_log.exists(journal.paths.events, state.last + 1)
        if new or driver_heartbeat.read(path) != first:
            why = f"its driver ({process_name(claim.driver)}) goes on"
            raise RunIsLive(f"run {key}: {why}; the clocks of its machine and of this one differ")
