"""Journal room: the runs below a storage directory: found, listed, removed."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import JournalUnreadable, RunIsLive, SpecError, UnknownRun
from orchestrator.journal import files
from orchestrator.journal.reading import Clock, Journal
from orchestrator.types.run import LIVE, Run

MOST_NAMES = 12


def journals(storage: Path) -> list[Journal]:
    """The directories of runs, in no order that matters."""
    return [Journal(path) for path in entries(storage) if _holds_run(path)]


def entries(storage: Path) -> list[Path]:
    """What lies in a storage, by name. One that does not exist holds nothing."""
    try:
        return sorted(storage.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JournalUnreadable(f"{storage}: cannot be read: {error.strerror}") from error


def _holds_run(path: Path) -> bool:
    return not path.name.startswith(".") and Journal(path).places.events.is_dir()


def runs(storage: Path) -> tuple[list[Run], list[str]]:
    """Every run, newest first, and what is wrong with the directories that tell none."""
    read: list[Run] = []
    problems: list[str] = []
    for journal in journals(storage):
        try:
            read.append(journal.run())
        except JournalUnreadable as error:
            problems.append(str(error))
    return sorted(read, key=lambda run: (-run.submitted_at_s, run.run)), problems


def find(storage: Path, wanted: str) -> Journal:
    """The run of that key, or of the only key that begins so, or in the directory of that path."""
    known = {journal.key: journal for journal in journals(storage)}
    if wanted in known:
        return known[wanted]
    if os.sep in wanted or wanted in {".", ".."}:
        if _holds_run(Path(wanted).absolute()):
            return Journal(Path(wanted).absolute())
        raise UnknownRun("run", wanted, _shown(list(known)), storage)
    matching = [key for key in known if wanted and key.startswith(wanted)]
    if len(matching) == 1:
        return known[matching[0]]
    if matching:
        listed = ", ".join(_shown(matching))
        raise SpecError(f"run {wanted!r} may be any of {listed}; write more of its key")
    raise UnknownRun("run", wanted, _shown(list(known)), storage)


@contextmanager
def landmark(storage: Path) -> Iterator[Path]:
    """Something that lies in the storage for a while: who sees it elsewhere sees this storage."""
    folder = files.prepare_folder(storage.absolute() / "landmark")
    try:
        yield folder
    finally:
        files.delete(folder)


def _shown(keys: list[str]) -> list[str]:
    """Keys for a message, not too many."""
    more = len(keys) - MOST_NAMES
    if more > 0:
        return [*keys[:MOST_NAMES], f"and {more} more"]
    return keys


def remove(journal: Journal, clock: Clock = time.time) -> None:
    """Remove a run with all it left: out of sight in one rename, then off the disk.

    `RunIsLive` while something drives it, or may begin to.
    """
    _check_dead(journal, journal.key, clock)
    hidden = files.hide(journal.path.absolute())
    try:
        _check_dead(Journal(hidden), journal.key, clock)  # a driver may just have taken it up
    except RunIsLive:
        files.publish(hidden, journal.path.absolute())
        raise
    files.delete(hidden)
    files.sweep(journal.path.absolute().parent)


def _check_dead(journal: Journal, key: str, clock: Clock) -> None:
    run = journal.run(clock)
    if run.state in LIVE:
        raise RunIsLive(f"run {key} is {run.state}: cancel it first, and wait until it has ended")
