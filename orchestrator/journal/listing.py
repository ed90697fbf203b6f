"""The runs in a storage directory: listing, finding and removing them."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from orchestrator.errors import JournalUnreadable, RunIsLive, SpecError, UnknownRun
from orchestrator.journal import events, files, liveness
from orchestrator.journal.run_journal import Clock, Journal
from orchestrator.journal.run_state import HEARTBEAT_S, MISSING_HEARTBEATS, RunState, process_name
from orchestrator.storage import copies
from orchestrator.storage.addresses import folder, is_address, is_copy
from orchestrator.values.run import LIVE, Run

POLL_S = 0.25
_MAX_KEYS = 12  # in a message
_LOOKS = 16  # at a time, of runs on a bucket
T = TypeVar("T")
_R = TypeVar("_R")


def list_journals(storage: Path) -> list[Journal]:
    folders = folders_in(storage)
    looks = _each(storage, is_run, folders)
    return [Journal(path) for path, run in zip(folders, looks, strict=True) if run]


def _each(storage: Path, look: Callable[[T], _R], items: Sequence[T]) -> list[_R]:
    if not is_copy(storage):
        return [look(item) for item in items]
    # A bucket is slow: several at a time.
    with ThreadPoolExecutor(_LOOKS) as pool:
        return list(pool.map(look, items))


def folders_in(storage: Path) -> list[Path]:
    names = files.names(Path(os.path.realpath(storage)))
    return [storage / name for name in names if name.isprintable() and not name.startswith(".")]


def is_run(path: Path) -> bool:  # or looks like one: reading it says what is wrong with it
    return holds(path, "events")


def holds(folder: Path, name: str) -> bool:
    try:
        with files.looking(folder):
            copied = copies.names_in(folder)
        return name in copied if copied is not None else bool(os.lstat(folder / name))
    except (PermissionError, JournalUnreadable):
        return True  # it cannot be examined
    except OSError:
        return False


def list_runs(storage: Path) -> tuple[list[Run], list[str]]:
    """Return every run, newest first, and what is wrong with folders that cannot be read."""

    def look(journal: Journal) -> Run | str:
        try:
            return journal.run()
        except JournalUnreadable as error:
            return str(error)

    found = _each(storage, look, list_journals(storage))
    runs = [run for run in found if isinstance(run, Run)]
    problems = [problem for problem in found if isinstance(problem, str)]
    names = files.names(Path(os.path.realpath(storage)))
    unprintable = [name for name in names if not name.isprintable()]
    problems += [f"{storage}: {name!a} is not the name of a run" for name in unprintable]
    return sorted(runs, key=lambda run: (-run.submitted_at_s, run.run)), problems


def find_run(storage: Path, name: str) -> Journal:
    """Return the run with that key, the only one whose key begins so, or that in a folder."""
    known = {journal.key: journal for journal in list_journals(storage)}
    if name in known:
        return known[name]
    if is_address(name) and is_run(folder(name)):
        return Journal(folder(name))
    is_path = os.sep in name or name in {".", ".."}
    if is_path and is_run(path := Path(os.path.realpath(name))):
        return Journal(path)  # a link that the user names is theirs
    matching = [key for key in known if name and key.startswith(name) and not is_path]
    if len(matching) == 1:
        return known[matching[0]]
    keys = matching or list(known)
    if (more := len(keys) - _MAX_KEYS) > 0:
        keys = [*keys[:_MAX_KEYS], f"and {more} more"]
    if matching:
        raise SpecError(f"run {name!r} is ambiguous: {', '.join(keys)}")
    raise UnknownRun("run", name, keys, storage)


def check_silence(
    journal: Journal, state: RunState, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Watch a run that looks abandoned; refuse it if its driver, elsewhere, shows that it lives."""
    claim = state.claim
    if state.ended or claim is None or liveness.is_known(claim.driver):
        return
    path = journal.paths.driver_heartbeat(state.writer)
    first = liveness.read(path)
    for _ in range(round(claim.heartbeat_s * MISSING_HEARTBEATS / POLL_S) + 1):
        sleep(POLL_S)
        if events.exists(journal.paths.events, state.last + 1) or liveness.read(path) != first:
            why = f"run {journal.key}: its driver ({process_name(claim.driver)}) goes on"
            raise RunIsLive(f"{why}; the clocks of its machine and of this one differ")


def remove_run(journal: Journal, clock: Clock = time.time) -> None:
    """Remove a run with all its files; `RunIsLive` while something drives it, or may start to."""
    key, path = journal.key, journal.path.absolute()
    state = journal.state()
    advice = "cancel it first, and wait until it has ended"
    check_not_live(journal, advice, clock)
    # Its driver may exist on this machine, however silent it is; before a driver, its submitter.
    claim, submitter = state.claim, state.submitted.submission.submitter
    writer, role = (claim.driver, "its driver") if claim else (submitter, "orch submit")
    if state.ended is None and liveness.is_alive(writer):
        why = f"{role} ({process_name(writer)}) exists, and may go on"
        raise RunIsLive(f"run {key}: {why}: end that process first")
    check_silence(journal, state)
    if is_copy(path):
        # A bucket renames nothing: claim the run, so that no driver can, and delete its first event
        # before all others. A run is there while its first event is.
        me = liveness.this_process()
        claimed = events.Claimed(at_s=clock(), driver=me, heartbeat_s=HEARTBEAT_S)
        try:
            events.append_event(journal.paths, state.last + 1, claimed, state.digest)
        except FileExistsError as error:
            raise RunIsLive(f"run {key}: another process has just written to it") from error
        with files.writing(journal.path):
            copies.delete(journal.paths.root, first=files.FIRST_EVENT)
        return
    hidden = files.hide(path)
    try:
        check_not_live(Journal(hidden), advice, clock, key)  # a driver may just have claimed it
    except RunIsLive:
        files.publish(hidden, path, files.FIRST_EVENT)
        raise
    files.delete(hidden)
    files.sweep(path.parent)


def check_not_live(journal: Journal, advice: str, clock: Clock, key: str | None = None) -> None:
    run = journal.run(clock)
    if run.state in LIVE:
        raise RunIsLive(f"run {key or run.run} is {run.state}: {advice}")


@contextmanager
def shared_marker(storage: Path) -> Iterator[Path]:
    """Yield a temporary folder in the storage: another machine that sees it shares this storage."""
    copied = copies.trial(storage)
    with nullcontext(copied) if copied else files.building(storage) as marker:
        yield marker
        files.delete(marker)
