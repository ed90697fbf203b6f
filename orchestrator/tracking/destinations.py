"""Trackers, where the user's own commands chose to record each run, and how much is recorded. A
choice is a small file in the user's state directory, by run id; the command that starts a remote
driver passes it on. Without one, as for runs submitted elsewhere, MLFLOW_TRACKING_URI counts, or
else the database with the runs.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec
import platformdirs

from orchestrator import plugins
from orchestrator.errors import JournalUnreadable, JournalUnwritable, OrchError
from orchestrator.journal import boundary, files
from orchestrator.journal.run_journal import Journal, absolute_uri, relative_uri
from orchestrator.values import codec
from orchestrator.values.codec import Value
from orchestrator.values.run import Destination, Run, SyncProgress, SyncState
from orchestrator.values.spec import TrackingOptions

VARIABLE = "ORCH_RECORDED_IN"


class NotRecorded(OrchError):
    """The tracker cannot be reached, or refuses. `orch sync` sends what is missing later."""


class RunNotRecorded(NotRecorded):
    """This run cannot be recorded now; other runs of the same tracker can."""


class Tracker(Protocol):
    """Brings an outside record of runs up to date with their journals."""

    def destination(
        self, options: TrackingOptions, storage: Path, environment: Mapping[str, str]
    ) -> Destination:
        """Return where runs in a storage directory are recorded, or raise `SpecError`."""
        ...

    def sync(
        self, journal: Journal, run: Run, destination: Destination, on_steps: Callable[[int], None]
    ) -> None:
        """Send what the record lacks of a run, and note its id with `journal.track`. It may be
        interrupted and repeated: nothing is missing or doubled afterwards. `on_steps` hears how
        many steps are recorded; `NotRecorded` says why no more can be sent now.
        """
        ...


def find_tracker(name: str) -> Tracker:
    tracker: Tracker = plugins.load("tracker", name)()
    return tracker


def destination(
    options: TrackingOptions, storage: Path, environment: Mapping[str, str]
) -> Destination:
    return find_tracker(options.tracker).destination(options, storage, environment)


class _Choice(Value):
    """Where a run is recorded. Addresses inside the run's storage are relative to it."""

    id: str
    destination: Destination


def _choice(journal: Journal, where: Destination) -> _Choice:
    return _Choice(
        id=journal.submission().id, destination=_with_addresses(where, relative_uri, journal)
    )


def remember(journal: Journal, destination: Destination) -> None:
    """Note the choice of a command. Without a state directory later commands ask for it again."""
    choice = _choice(journal, destination)
    path = _choice_path(choice.id)
    with suppress(JournalUnwritable, FileExistsError):
        files.make_folder(path.parent)
        files.replace(path, codec.to_json(choice))


def _chosen(journal: Journal, environment: Mapping[str, str] = os.environ) -> Destination | None:
    """Return where a command of this user chose to record a run; None where none did."""
    if passed := passed_choice(journal, environment):
        return _with_addresses(passed.destination, absolute_uri, journal)
    run_id = journal.submission().id
    path = _choice_path(run_id)
    with suppress(OSError, msgspec.DecodeError):
        choice = codec.from_json(boundary.read_bytes(path), _Choice)
        boundary.check_own(path)
        if choice.id == run_id:
            return _with_addresses(choice.destination, absolute_uri, journal)
    return None


def passed_on(journal: Journal) -> str | None:
    """Return the value of VARIABLE for a driver: where to record a run, if that was chosen."""
    where = _chosen(journal)
    return None if where is None else codec.to_json(_choice(journal, where)).decode()


def passed_choice(journal: Journal, environment: Mapping[str, str]) -> _Choice | None:
    with suppress(msgspec.DecodeError):
        choice = codec.from_json(environment.get(VARIABLE, ""), _Choice)
        return choice if choice.id == journal.submission().id else None
    return None


def _with_addresses(
    where: Destination, change: Callable[[str, Path], str], journal: Journal
) -> Destination:
    """Return a destination as it is stored, or used: a copy of the storage means its own files."""
    storage = journal.path.absolute().parent
    artifacts = None if where.artifacts is None else change(where.artifacts, storage)
    return replace(where, uri=change(where.uri, storage), artifacts=artifacts)


def _choice_path(run_id: str) -> Path:
    """Return the file of a run's choice, in ~/.local/state/orch or below XDG_STATE_HOME."""
    # The id comes from a run's folder: it does not become a name.
    folder = Path(os.path.realpath(platformdirs.user_state_path("orch"))) / "recorded-in"
    return folder / f"{hashlib.sha256(run_id.encode()).hexdigest()}.json"


# --- how much of a run is recorded, noted next to its journal so that nobody need ask the tracker


def begin(journal: Journal, destination: Destination) -> SyncState:
    remember(journal, destination)
    state = SyncState(destination=destination)
    _write(journal, state)
    return state


def read_sync_state(
    journal: Journal, environment: Mapping[str, str] = os.environ
) -> SyncState | None:
    """Return the note; None when no command of this user chose to record the run."""
    # A note that is damaged, or of another destination than the chosen one, says nothing.
    with suppress(JournalUnreadable):
        where = _chosen(journal, environment)
        if where is None:
            return None
        with suppress(OSError, msgspec.DecodeError):
            noted = codec.from_json(boundary.read_bytes(journal.paths.sync_state), SyncState)
            if _with_addresses(noted.destination, absolute_uri, journal) == where:
                return replace(noted, destination=where)
        return SyncState(destination=where)
    return None


def note(
    journal: Journal, state: SyncState, *, recorded: SyncProgress | None, problem: str | None
) -> None:
    """Note the result of a sync. A failure keeps what was recorded before."""
    noted = replace(state, recorded=recorded or state.recorded, problem=problem)
    if noted != state or not os.path.lexists(journal.paths.sync_state):
        with suppress(JournalUnwritable):  # the next sync notes it
            _write(journal, noted)


def progress_of(run: Run) -> SyncProgress:
    return SyncProgress(state=run.state, attempts=len(run.attempts), steps=run.steps_done)


def is_behind(run: Run, state: SyncState) -> bool:
    return state.recorded != progress_of(run)


def _write(journal: Journal, state: SyncState) -> None:
    stored = replace(state, destination=_with_addresses(state.destination, relative_uri, journal))
    files.replace(journal.paths.sync_state, codec.to_json(stored) + os.linesep.encode())
