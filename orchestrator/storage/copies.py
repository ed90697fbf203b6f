"""The copy of a run's folder on this machine: the bucket is written first, the copy updated first.
Every function does nothing for other paths, and says so by its result. A copy decides nothing.
"""

import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from math import inf
from pathlib import Path
from typing import Concatenate, ParamSpec

from orchestrator.processes import write_whole
from orchestrator.storage import segments
from orchestrator.storage.addresses import Place, is_of_this_machine, place_of
from orchestrator.storage.bucket import THREADS, StoredObject

P = ParamSpec("P")
# A bucket is asked for the same file or folder once in so long, however often it is looked at.
_FRESH_S = 1.0
# Files of a folder that is listed are read with it up to this size: records, plans, heartbeats.
_EAGER_BYTES = 1 << 16
# The first object of a run or a study, which reserves its name.
_RESERVED = "reserved.json"
_TRACES = "profile"  # a folder that fills here, and is sent when a process has ended
_TRIAL = "trial"
_NO_CONDITIONS = (
    "the server writes an object that exists, though it was asked to create it only if it does not"
    " (If-None-Match: * of S3, generation 0 of Google Cloud Storage): two drivers could claim a run"
)
# A name whose owner has written nothing else for so long was left by a process that was killed.
_ABANDONED_S = 3600.0

_asked: dict[Path, float] = {}
_versions: dict[Path, str] = {}
_names: dict[Path, list[str]] = {}


def refresh_file(path: Path) -> None:
    """Bring the copy of a file up to date; where the object is gone, the copy goes."""
    place = place_of(path)
    if place is None or _is_fresh(path):
        return
    if segments.is_grown(path):
        segments.pull(place)
        return
    was_here = path.exists()
    try:
        got = place.bucket.read_if_changed(place.name, _known_version(path))
    except FileNotFoundError:
        if was_here:  # one that has come meanwhile is newer than this answer
            _versions.pop(path, None)
            with suppress(OSError):
                path.unlink()
        return
    if got is not None:
        _keep(path, *got)


def names_in(path: Path) -> list[str] | None:
    """Return the names in a folder and update its small files; None for a path of no bucket."""
    place = place_of(path)
    if place is None:
        return None
    if _is_fresh(path) and path in _names:
        return _names[path]
    objects, prefixes = place.bucket.inside(place.prefix)
    folders = {prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes}
    files = {stored.name.rpartition("/")[2]: stored for stored in objects}
    # Names that somebody else chose, and that can be those of files here.
    usual = {name for name in {*folders, *files} if 0 < len(name) < 200 and "\0" not in name}
    names = sorted(name for name in usual if name != _RESERVED and not is_of_this_machine(name))
    # Remove the copies of what the bucket has no more.
    known = set(names)
    with suppress(OSError):
        for entry in list(os.scandir(path)):
            if entry.name in known or entry.name == _TRACES or is_of_this_machine(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                Path(entry.path).unlink(missing_ok=True)
    for name in names:
        if name in folders:
            segments.make_empty(path / name)
    wanted = [path / name for name in names if name in files and _is_due(path / name, files[name])]
    for due in wanted:
        _asked.pop(due, None)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(refresh_file, wanted))
    _names[path] = names
    return names


def _is_due(path: Path, found: StoredObject) -> bool:
    if found.size > _EAGER_BYTES or _known_version(path) == found.version:
        return False
    try:
        here = path.stat()
    except OSError:
        return True
    # A copy has the object's time.
    return here.st_size != found.size or abs(here.st_mtime - found.at_s) > 1e-3


def _known_version(path: Path) -> str | None:
    return _versions.get(path) if path.exists() else None


def _keep(path: Path, content: bytes, found: StoredObject) -> None:
    write_whole(path, content, found.at_s)
    _versions[path] = found.version


def _is_fresh(path: Path) -> bool:
    """Return whether the bucket was just asked for this; from now on it was."""
    now_s = time.monotonic()
    if now_s - _asked.get(path, -inf) < _FRESH_S:
        return True
    _asked[path] = now_s
    return False


def forget(path: Path) -> None:
    """Ask the bucket again at the next look: somebody else has written there."""
    for place in (path, path.parent):
        _asked.pop(place, None)


def exists(path: Path) -> bool:
    place = place_of(path)
    return place is not None and place.bucket.has(place.name)


def _on_bucket(
    change: Callable[Concatenate[Place, P], None],
) -> Callable[Concatenate[Path, P], bool]:
    """Let a change of a place take a path, and return False where no bucket has that path."""

    @wraps(change)
    def changed(path: Path, /, *arguments: P.args, **options: P.kwargs) -> bool:
        place = place_of(path)
        if place is not None:
            change(place, *arguments, **options)
        return place is not None

    return changed


@_on_bucket
def create(place: Place, content: bytes) -> None:
    forget(place.path)
    place.bucket.create(place.name, content)
    write_whole(place.path, content)


@_on_bucket
def replace(place: Place, content: bytes) -> None:
    place.bucket.replace(place.name, content)
    write_whole(place.path, content)
    _versions.pop(place.path, None)


def replace_same(path: Path, content: bytes) -> bool:
    """Replace a file that nobody else has written or removed since; False where somebody has."""
    place = place_of(path)
    if place is None:
        return False
    try:
        version = _known_version(path) or place.bucket.read(place.name)[1].version
        place.bucket.replace_version(place.name, content, version)
    except (FileExistsError, FileNotFoundError):
        return False
    _keep(path, *place.bucket.read(place.name))
    return True


@_on_bucket
def delete(place: Place, first: str | None = None) -> None:
    """Delete a file, or a folder: its file `first` goes first, and the name's reservation last."""
    if first is not None:
        place.bucket.delete([(place / first).name])
    names = [stored.name for stored in place.bucket.below(place.prefix)]
    reserved = (place / _RESERVED).name
    place.bucket.delete([name for name in names if name != reserved])
    place.bucket.delete([reserved if reserved in names else place.name])
    shutil.rmtree(place.path, ignore_errors=True)
    with suppress(OSError):
        place.path.unlink()
    forget(place.path)


@_on_bucket
def upload(place: Place) -> None:
    for path in sorted(path for path in place.path.rglob("*") if path.is_file()):
        _put(place, path.relative_to(place.path), path)


def _put(place: Place, name: Path, source: Path) -> None:
    place.bucket.replace((place / str(name)).name, source.read_bytes())


@_on_bucket
def set_aside(place: Place, suffix: str) -> None:
    content, _ = place.bucket.read(place.name)
    folder = place.name.rpartition("/")[0]
    place.bucket.replace(f"{folder}/.{place.path.name}{suffix}", content)
    place.bucket.delete([place.name])
    place.path.unlink(missing_ok=True)
    forget(place.path)


@_on_bucket
def check_writable(place: Place) -> None:
    """Try what a journal needs: an object that is there is not created again, or `OSError`."""
    trial = place / f"{_TRIAL}-{uuid.uuid4().hex}"
    place.bucket.create(trial.name, b"first")
    try:
        place.bucket.create(trial.name, b"second")
    except FileExistsError:
        return
    else:
        raise OSError(errno.ENOTSUP, _NO_CONDITIONS, str(place.path))
    finally:
        place.bucket.delete([trial.name])


def trial(folder: Path) -> Path | None:
    """Make a file in a folder: who finds it uses the same bucket. None where no bucket has it."""
    mark = folder / f"{_TRIAL}-{uuid.uuid4().hex}"
    return mark if create(mark, b"") else None


@_on_bucket
def publish(place: Place, prepared: Path, last: str) -> None:
    """Give the files of a folder their names in a bucket; `FileExistsError` when they are taken.
    Its name is reserved first; the file that makes it what it is comes last.
    """
    # Be the one process that writes there.
    mine = uuid.uuid4().hex.encode()
    reservation = (place / _RESERVED).name
    try:
        place.bucket.create(reservation, mine)
    except FileExistsError:
        _, found = place.bucket.read(reservation)
        begun = place.bucket.has((place / last).name)
        if begun or time.time() - found.at_s < _ABANDONED_S:
            raise
        place.bucket.replace_version(reservation, mine, found.version)
    paths = [path for path in prepared.rglob("*") if path.is_file() and path != prepared / last]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda path: _put(place, path.relative_to(prepared), path), sorted(paths)))
    place.bucket.create((place / last).name, (prepared / last).read_bytes())
    prepared.rename(place.path) if not place.path.exists() else shutil.rmtree(prepared)
    forget(place.path)
    for asked in list(_asked):  # who waited for the first file has just seen that it is not there
        if asked.is_relative_to(place.path):
            _asked.pop(asked, None)
