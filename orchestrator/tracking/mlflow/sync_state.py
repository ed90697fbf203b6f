"""Record room: how far a run is recorded, noted beside its journal: MLflow need not be asked.

The mark is never trusted for what to send, only for whether to look.
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


def begin(journal: Journal, where: Destination) -> SyncState:
    """Note where a new run is to be recorded; whoever drives it may be on another machine."""
    mark = SyncState(destination=where)
    _write(journal, mark)
    return mark


def mark_of(journal: Journal) -> SyncState | None:
    """What is noted; None when nobody has meant to record the run, or the note is damaged."""
    with suppress(OSError, msgspec.DecodeError):
        return codec.from_json(journal.paths.record.read_bytes(), SyncState)
    return None


def note(
    journal: Journal, mark: SyncState, *, recorded: SyncProgress | None, problem: str | None
) -> SyncState:
    """Note what came of a try to record; what is recorded stays so when a later try fails."""
    noted = replace(mark, recorded=recorded or mark.recorded, problem=problem)
    if noted != mark or not journal.paths.record.exists():
        with suppress(JournalUnwritable):  # the next one looks again
            _write(journal, noted)
    return noted


def of_run(run: Run) -> SyncProgress:
    """What is recorded when all of a run is."""
    return SyncProgress(state=run.state, attempts=len(run.attempts), steps=run.steps_done)


def is_behind(run: Run, mark: SyncState) -> bool:
    """Whether MLflow lacks something of a run, as far as the mark tells."""
    return mark.recorded != of_run(run)


def _write(journal: Journal, mark: SyncState) -> None:
    files.replace(journal.paths.record, codec.to_json(mark) + os.linesep.encode())
