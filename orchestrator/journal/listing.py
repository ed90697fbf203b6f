"""The runs in a storage directory: listing, finding and removing them."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import JournalUnreadable, RunIsLive, SpecError, UnknownRun
from orchestrator.journal import files
from orchestrator.journal.run_journal import Clock, Journal
from orchestrator.types.run import LIVE, Run

MAX_KEYS = 12  # in a message


def list_journals(storage: Path) -> list[Journal]:
    """The journals of all runs, by name. A storage that does not exist has none."""
    return [Journal(path) for path in files.entries(storage) if _is_run(path)]


def _is_run(path: Path) -> bool:
    return not path.name.startswith(".") and Journal(path).paths.events.is_dir()


def list_runs(storage: Path) -> tuple[list[Run], list[str]]:
    """Every run, newest first, and what is wrong with folders that cannot be read."""
    runs: list[Run] = []
    problems: list[str] = []
    for journal in list_journals(storage):
        try:
            runs.append(journal.run())
        except JournalUnreadable as error:
            problems.append(str(error))
    return sorted(runs, key=lambda run: (-run.submitted_at_s, run.run)), problems


def find_run(storage: Path, name: str) -> Journal:
    """The run with that key, the only one whose key begins so, or the one in that folder."""
    known = {journal.key: journal for journal in list_journals(storage)}
    if name in known:
        return known[name]
    if os.sep in name or name in {".", ".."}:
        if _is_run(Path(name).absolute()):
            return Journal(Path(name).absolute())
        raise UnknownRun("run", name, _some(list(known)), storage)
    matching = [key for key in known if name and key.startswith(name)]
    if len(matching) == 1:
        return known[matching[0]]
    if matching:
        raise SpecError(f"run {name!r} is ambiguous: {', '.join(_some(matching))}")
    raise UnknownRun("run", name, _some(list(known)), storage)


def _some(keys: list[str]) -> list[str]:
    """Keys for a message."""
    more = len(keys) - MAX_KEYS
    return [*keys[:MAX_KEYS], f"and {more} more"] if more > 0 else keys


def remove_run(journal: Journal, clock: Clock = time.time) -> None:
    """Remove a run with all its files: hide it in one rename, then delete it.

    `RunIsLive` while something drives it, or may start to.
    """
    _check_ended(journal, journal.key, clock)
    hidden = files.hide(journal.path.absolute())
    try:
        _check_ended(Journal(hidden), journal.key, clock)  # a driver may just have claimed it
    except RunIsLive:
        files.publish(hidden, journal.path.absolute())
        raise
    files.delete(hidden)
    files.sweep(journal.path.absolute().parent)


def _check_ended(journal: Journal, key: str, clock: Clock) -> None:
    run = journal.run(clock)
    if run.state in LIVE:
        raise RunIsLive(f"run {key} is {run.state}: cancel it first, and wait until it has ended")


@contextmanager
def shared_marker(storage: Path) -> Iterator[Path]:
    """A temporary folder in the storage: another machine that sees it shares this storage."""
    with files.building(storage.absolute()) as folder:
        yield folder
        files.delete(folder)
