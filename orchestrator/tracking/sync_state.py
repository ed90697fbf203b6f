"""How much of a run is recorded, noted beside its journal so that nobody need ask the tracker.

The note says only whether a sync is due, never what to send, nor where.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import msgspec

from orchestrator.errors import JournalUnreadable, JournalUnwritable
from orchestrator.journal import Journal, boundary, files
from orchestrator.tracking import destinations
from orchestrator.types import codec
from orchestrator.types.run import Run
from orchestrator.types.tracking import Destination, SyncProgress, SyncState


def begin(journal: Journal, destination: Destination) -> SyncState:
    """Note where a command of the user chose to record a new run."""
    destinations.remember(journal, destination)
    state = SyncState(destination=destination)
    _write(journal, state)
    return state


def read_sync_state(
    journal: Journal, environment: Mapping[str, str] = os.environ
) -> SyncState | None:
    """The note; None when no command of this user chose to record the run.

    A note that is damaged, or of another destination than the chosen one, says nothing.
    """
    with suppress(JournalUnreadable):
        where = destinations.chosen(journal, environment)
        if where is None:
            return None
        with suppress(OSError, msgspec.DecodeError):
            noted = codec.from_json(boundary.read_bytes(journal.paths.sync_state), SyncState)
            if destinations.absolute(noted.destination, journal) == where:
                return replace(noted, destination=where)
        return SyncState(destination=where)
    return None


def note(
    journal: Journal, state: SyncState, *, recorded: SyncProgress | None, problem: str | None
) -> None:
    """Note the result of a sync. A failed one does not undo what was recorded before."""
    noted = replace(state, recorded=recorded or state.recorded, problem=problem)
    if noted != state or not os.path.lexists(journal.paths.sync_state):
        with suppress(JournalUnwritable):  # the next sync notes it
            _write(journal, noted)


def progress_of(run: Run) -> SyncProgress:
    """The progress of a sync that recorded all of a run."""
    return SyncProgress(state=run.state, attempts=len(run.attempts), steps=run.steps_done)


def is_behind(run: Run, state: SyncState) -> bool:
    """Whether the tracker lacks something of a run, as far as the note says."""
    return state.recorded != progress_of(run)


def _write(journal: Journal, state: SyncState) -> None:
    stored = replace(state, destination=destinations.relative(state.destination, journal))
    files.replace(journal.paths.sync_state, codec.to_json(stored) + os.linesep.encode())
