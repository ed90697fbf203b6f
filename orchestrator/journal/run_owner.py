"""Whose a run is: nothing is sent, and no credential used, for a run of another user."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import ForeignRun
from orchestrator.journal import boundary, event_log
from orchestrator.journal.run_journal import Journal


def check_made_by_user(journal: Journal) -> None:
    """Refuse a run that another user made: its folder, its spec, its plans and its documents."""
    paths = journal.paths
    first = paths.events / event_log.file_name(1)
    for path in (paths.root, paths.events, first, paths.spec):
        _check(path, set())
    for folder in (paths.plans, paths.documents):
        for path in _with_entries(folder):
            _check(path, set())


def check_own(journal: Journal, trusted: set[int] | None = None) -> None:
    """Refuse a run that another user made, or wrote to. Root is such a user, and has no right here.

    `trusted` are users whose files count as this user's. Anybody may request that a run stops, so
    requests are left out; so are checkpoints and traces, which are never sent.
    """
    for path in _parts(journal):
        _check(path, trusted or set())


def _parts(journal: Journal) -> Iterator[Path]:
    paths = journal.paths
    yield from (paths.root, paths.spec, paths.tracking, paths.sync_state, paths.sync_lock)
    for folder in (paths.events, paths.plans, paths.proofs, paths.documents):
        yield from _with_entries(folder)
    for attempt in _with_entries(paths.attempts):
        yield attempt
        yield from (attempt / "steps.jsonl", attempt / "logs")


def _with_entries(folder: Path) -> Iterator[Path]:
    yield folder
    with suppress(OSError):
        yield from (folder / name for name in boundary.names_in(folder))


def _check(path: Path, trusted: set[int]) -> None:
    try:
        owner = boundary.status_of(path).st_uid
    except FileNotFoundError:
        return
    except OSError as error:
        raise ForeignRun(f"{path}: {error.strerror}: this run is not trusted") from error
    if owner not in {os.geteuid(), *trusted}:
        why = f"{path} belongs to user {owner}, and this is user {os.geteuid()}"
        raise ForeignRun(f"not a run of this user: {why}")


def check_folder_own(folder: Path) -> None:
    """Refuse a run or a study whose folder another user made: only its owner removes it."""
    _check(folder, set())


def owner_of(journal: Journal) -> int | None:
    """The user that a run's folder belongs to."""
    try:
        return boundary.status_of(journal.paths.root).st_uid
    except OSError:
        return None
