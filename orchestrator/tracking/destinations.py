"""Where the user's own commands chose to record each run. A run's folder does not decide it.

A choice is a small file in the user's state directory, by the run's id. A driver on another machine
gets it from the command that started it. A run that was submitted elsewhere has no choice here:
then MLFLOW_TRACKING_URI counts, or the database next to the runs.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import platformdirs

from orchestrator.errors import JournalUnreadable, JournalUnwritable
from orchestrator.journal import boundary, files
from orchestrator.journal.run_journal import Journal
from orchestrator.journal.run_paths import absolute_uri, relative_uri
from orchestrator.values import codec
from orchestrator.values.run import Destination, Run, SyncProgress, SyncState
from orchestrator.values.run_options import TrackingOptions

VARIABLE = "ORCH_RECORDED_IN"


@dataclass(frozen=True, kw_only=True)
class ChosenDestination:
    """Where a run is recorded, by the choice of a user's command.

    Addresses inside the run's storage are relative to it.
    """

    id: str
    destination: Destination


def folder() -> Path:
    """~/.local/state/orch/recorded-in, or below XDG_STATE_HOME."""
    return Path(os.path.realpath(platformdirs.user_state_path("orch"))) / "recorded-in"


def remember(journal: Journal, destination: Destination) -> None:
    """Note the choice of a command. Without a state directory later commands ask for it again."""
    choice = ChosenDestination(id=_id(journal), destination=relative(destination, journal))
    with suppress(JournalUnwritable, FileExistsError):
        files.make_folder(folder())
        files.replace(_path(choice.id), codec.to_json(choice))


def chosen(journal: Journal, environment: Mapping[str, str] = os.environ) -> Destination | None:
    """Where a command of this user chose to record a run; None where none did."""
    run_id = _id(journal)
    if (passed := _passed_on(environment)) and passed.id == run_id:
        return absolute(passed.destination, journal)
    with suppress(OSError, msgspec.DecodeError):
        choice = codec.from_json(boundary.read_bytes(_path(run_id)), ChosenDestination)
        boundary.check_own(_path(run_id))
        return absolute(choice.destination, journal) if choice.id == run_id else None
    return None


def is_passed_on(journal: Journal, environment: Mapping[str, str]) -> bool:
    """Whether the command that started this process names the run."""
    choice = _passed_on(environment)
    return choice is not None and choice.id == _id(journal)


def passed_on(journal: Journal) -> str | None:
    """The value of VARIABLE for a driver: where to record a run. None where nothing was chosen."""
    where = chosen(journal)
    if where is None:
        return None
    choice = ChosenDestination(id=_id(journal), destination=relative(where, journal))
    return codec.to_json(choice).decode()


def relative(where: Destination, journal: Journal) -> Destination:
    """A destination as it is stored: a copy of the run's storage then means its own files."""
    return _with_addresses(where, lambda uri: relative_uri(uri, journal.path.absolute().parent))


def absolute(stored: Destination, journal: Journal) -> Destination:
    """The destination that is meant by what is stored."""
    return _with_addresses(stored, lambda uri: absolute_uri(uri, journal.path.absolute().parent))


def _with_addresses(where: Destination, change: Callable[[str], str]) -> Destination:
    artifacts = None if where.artifacts is None else change(where.artifacts)
    return replace(where, uri=change(where.uri), artifacts=artifacts)


def own_options(options: TrackingOptions, environment: Mapping[str, str]) -> TrackingOptions | None:
    """The options of a run that count where this user chose nothing: the name of its experiment.

    None where the run names another tracker, or an address that the environment does not name.
    """
    usual = TrackingOptions(experiment=options.experiment)
    if options.tracker != usual.tracker:
        return None
    if options.uri != usual.uri and not environment.get("MLFLOW_TRACKING_URI"):
        return None
    return usual


def _passed_on(environment: Mapping[str, str]) -> ChosenDestination | None:
    with suppress(msgspec.DecodeError):
        return codec.from_json(environment.get(VARIABLE, ""), ChosenDestination)
    return None


def _id(journal: Journal) -> str:
    return journal.state().submitted.submission.id


def _path(run_id: str) -> Path:
    """The file of a run's choice. The id comes from a run's folder: no name is made of it."""
    return folder() / f"{hashlib.sha256(run_id.encode()).hexdigest()}.json"


# How much of a run is recorded, noted next to its journal so that nobody need ask the tracker.


def begin(journal: Journal, destination: Destination) -> SyncState:
    """Note where a command of the user chose to record a new run."""
    remember(journal, destination)
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
        where = chosen(journal, environment)
        if where is None:
            return None
        with suppress(OSError, msgspec.DecodeError):
            noted = codec.from_json(boundary.read_bytes(journal.paths.sync_state), SyncState)
            if absolute(noted.destination, journal) == where:
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
    """The progress of a sync that recorded all of a run."""
    return SyncProgress(state=run.state, attempts=len(run.attempts), steps=run.steps_done)


def is_behind(run: Run, state: SyncState) -> bool:
    """Whether the tracker lacks something of a run, as far as the note says."""
    return state.recorded != progress_of(run)


def _write(journal: Journal, state: SyncState) -> None:
    stored = replace(state, destination=relative(state.destination, journal))
    files.replace(journal.paths.sync_state, codec.to_json(stored) + os.linesep.encode())
