"""The runs in a storage directory: listing, finding and removing them."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from orchestrator.errors import JournalUnreadable, RunIsLive, SpecError, UnknownRun
from orchestrator.journal import events, files, liveness
from orchestrator.journal.events import Claimed
from orchestrator.journal.run_journal import Clock, Journal
from orchestrator.journal.run_paths import FIRST_EVENT, RunPaths
from orchestrator.journal.run_state import HEARTBEAT_S, MISSING_HEARTBEATS, RunState, process_name
from orchestrator.storage import copies
from orchestrator.storage.addresses import folder, is_address, is_copy
from orchestrator.values.run import LIVE, Run

# Whether a run that looks abandoned is: asked before it is taken over or removed.


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
    first = liveness.read(path)
    for _ in range(round(claim.heartbeat_s * MISSING_HEARTBEATS / POLL_S) + 1):
        sleep(POLL_S)
        new = events.exists(journal.paths.events, state.last + 1)
        if new or liveness.read(path) != first:
            why = f"its driver ({process_name(claim.driver)}) goes on"
            raise RunIsLive(f"run {key}: {why}; the clocks of its machine and of this one differ")


MAX_KEYS = 12  # in a message
LOOKS = 16  # at a time, of runs on a bucket
T = TypeVar("T")
R = TypeVar("R")


def list_journals(storage: Path) -> list[Journal]:
    """The journals of all runs, by name. A storage that does not exist has none."""
    folders = folders_in(storage)
    looks = _each(storage, is_run, folders)
    return [Journal(path) for path, run in zip(folders, looks, strict=True) if run]


def _each(storage: Path, look: Callable[[T], R], at: Sequence[T]) -> Iterator[R]:
    """What a look at each gives, in order: several at a time on a bucket, which answers slowly."""
    if not is_copy(storage):
        yield from map(look, at)
        return
    with ThreadPoolExecutor(LOOKS) as pool:
        yield from pool.map(look, at)


def folders_in(storage: Path) -> list[Path]:
    """What lies in a storage, by name. A name that could not be printed as it is, is left out."""
    inside = files.entries(Path(os.path.realpath(storage)))
    return [storage / path.name for path in inside if _is_nameable(path.name)]


def _is_nameable(name: str) -> bool:
    return name.isprintable() and not name.startswith(".")


def is_run(path: Path) -> bool:
    """Whether this looks like the folder of a run. Reading it says what is wrong with it."""
    return holds(path, RunPaths(path).events.name)


def holds(folder: Path, name: str) -> bool:
    """Whether a folder has such an entry, or may have: it cannot be examined."""
    try:
        with files.looking(folder):
            copied = copies.names_in(folder)
        if copied is not None:
            return name in copied
        os.lstat(folder / name)
    except (PermissionError, JournalUnreadable):
        return True
    except OSError:
        return False
    return True


def list_runs(storage: Path) -> tuple[list[Run], list[str]]:
    """Every run, newest first, and what is wrong with folders that cannot be read."""
    runs: list[Run] = []
    problems: list[str] = []
    for found in _each(storage, _run_or_problem, list_journals(storage)):
        if isinstance(found, Run):
            runs.append(found)
        else:
            problems.append(found)
    names = [path.name for path in files.entries(Path(os.path.realpath(storage)))]
    unprintable = [name for name in names if not name.isprintable()]
    problems += [f"{storage}: {name!a} is no name of a run" for name in unprintable]
    return sorted(runs, key=lambda run: (-run.submitted_at_s, run.run)), problems


def _run_or_problem(journal: Journal) -> Run | str:
    try:
        return journal.run()
    except JournalUnreadable as error:
        return str(error)


def find_run(storage: Path, name: str) -> Journal:
    """The run with that key, the only one whose key begins so, or the one in that folder."""
    known = {journal.key: journal for journal in list_journals(storage)}
    if name in known:
        return known[name]
    if is_address(name) and is_run(folder(name)):
        return Journal(folder(name))
    if os.sep in name or name in {".", ".."}:
        if is_run(path := Path(os.path.realpath(name))):  # a link that the user names is theirs
            return Journal(path)
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
    state = journal.state()
    _check_not_live(journal, journal.key, clock)
    check_no_process(journal.key, state)
    check_silence(journal, journal.key, state)
    if is_copy(journal.path.absolute()):
        _remove_objects(journal, state, clock)
        return
    hidden = files.hide(journal.path.absolute())
    try:
        _check_not_live(Journal(hidden), journal.key, clock)  # a driver may just have claimed it
    except RunIsLive:
        files.publish(hidden, journal.path.absolute(), FIRST_EVENT)
        raise
    files.delete(hidden)
    files.sweep(journal.path.absolute().parent)


def _remove_objects(journal: Journal, state: RunState, clock: Clock) -> None:
    """Remove a run from a bucket, which renames nothing: claim it, so that no driver can, and
    delete its first event before all others. A run is there while its first event is.
    """
    claimed = Claimed(at_s=clock(), driver=liveness.this_process(), heartbeat_s=HEARTBEAT_S)
    content = events.linked(claimed, state.digest)
    try:
        events.append(journal.paths.events, state.last + 1, content)
    except FileExistsError as error:
        raise RunIsLive(f"run {journal.key}: another process has just written to it") from error
    with files.writing(journal.path):
        copies.delete(journal.paths.root, first=FIRST_EVENT)


def _check_not_live(journal: Journal, key: str, clock: Clock) -> None:
    run = journal.run(clock)
    if run.state in LIVE:
        raise RunIsLive(f"run {key} is {run.state}: cancel it first, and wait until it has ended")


@contextmanager
def shared_marker(storage: Path) -> Iterator[Path]:
    """A temporary folder in the storage: another machine that sees it shares this storage."""
    copied = copies.trial(storage.absolute())
    if copied is not None:
        yield copied
        files.delete(copied)
        return
    with files.building(storage.absolute()) as folder:
        yield folder
        files.delete(folder)
