"""Repairing a journal that nothing drives: its events, and files that can be made again."""

import time

from orchestrator.errors import RunIsLive
from orchestrator.journal import event_chain, files, liveness
from orchestrator.journal.events import Repaired
from orchestrator.journal.run_journal import Clock, Journal
from orchestrator.types.run import LIVE


def repair_events(journal: Journal, clock: Clock = time.time) -> None:
    """Write an event with which a person goes on without what the others lack.

    What the damaged events said stays lost, and stays a problem of the run.
    """
    check_idle(journal, clock)
    state, newest = journal.state(), event_chain.read_newest(journal.paths)
    last, previous = state.last, state.digest
    if isinstance(newest, event_chain.Newest) and newest.number > last:
        last, previous = newest.number, newest.sha256
    event = Repaired(at_s=clock(), by=liveness.this_process(), faults=tuple(map(str, state.damage)))
    event_chain.append(journal.paths, last + 1, event_chain.linked(event, previous))


def replace_file(journal: Journal, name: str, content: bytes, clock: Clock = time.time) -> None:
    """Write a file of a run as it was; what is there now stays beside it, and is never read."""
    check_idle(journal, clock)
    path = journal.paths.root / name
    files.set_aside(path, f".damaged-{clock():.0f}")
    files.write_new(path, content)


def check_idle(journal: Journal, clock: Clock) -> None:
    """Refuse to repair a run that something drives, or may start to."""
    run = journal.run(clock)
    if run.state in LIVE:
        raise RunIsLive(f"run {run.run} is {run.state}: it is repaired when nothing drives it")
