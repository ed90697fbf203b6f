"""How much of a run is recorded, noted beside its journal so that nobody need ask the tracker.

The note says only whether a sync is due, never what to send.
"""

import os
from contextlib import suppress
from dataclasses import replace

import msgspec

from orchestrator.errors import JournalUnwritable
from orchestrator.journal import Journal, files
from orchestrator.types import codec
from orchestrator.types.run import Run
from orchestrator.types.tracking import Destination, SyncProgress, SyncState


def begin(journal: Journal, destination: Destination) -> SyncState:
    """Note where a new run is to be recorded, for a driver that may run on another machine."""
    state = SyncState(destination=destination)
    _write(journal, state)
    return state


def read_sync_state(journal: Journal) -> SyncState | None:
    """The note; None when the run is not to be recorded, or the note is damaged."""
    with suppress(OSError, msgspec.DecodeError):
        return codec.from_json(journal.paths.sync_state.read_bytes(), SyncState)
    return None


def note(
    journal: Journal, state: SyncState, *, recorded: SyncProgress | None, problem: str | None
) -> None:
    """Note the result of a sync. A failed one does not undo what was recorded before."""
    noted = replace(state, recorded=recorded or state.recorded, problem=problem)
    if noted != state or not journal.paths.sync_state.exists():
        with suppress(JournalUnwritable):  # the next sync notes it
            _write(journal, noted)


def progress_of(run: Run) -> SyncProgress:
    """The progress of a sync that recorded all of a run."""
    return SyncProgress(state=run.state, attempts=len(run.attempts), steps=run.steps_done)


def is_behind(run: Run, state: SyncState) -> bool:
    """Whether the tracker lacks something of a run, as far as the note says."""
    return state.recorded != progress_of(run)


def _write(journal: Journal, state: SyncState) -> None:
    files.replace(journal.paths.sync_state, codec.to_json(state) + os.linesep.encode())
