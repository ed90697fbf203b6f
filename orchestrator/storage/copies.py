"""The copy of a run's folder on this machine: what is written goes to the bucket first, and what is
read is brought up to date first.

Every function does nothing for a path that is not of a copy, and says so by its result.
A copy decides nothing: who was first, the bucket says.
"""

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from orchestrator.storage import segments
from orchestrator.storage.addresses import Place, is_of_this_machine, place_of
from orchestrator.storage.bucket import THREADS, StoredObject

# A bucket is asked for the same file or folder once in so long, however often it is looked at.
FRESH_S = 1.0
# Files of a folder that is listed are read with it up to this size: records, plans, heartbeats.
EAGER_BYTES = 1 << 16
# The first object of a run or a study, which reserves its name.
RESERVED = "reserved.json"
TRACES = "profile"  # a folder that fills here, and is sent when a process has ended
TRIAL = "trial"
NO_CONDITIONS = (
    "the server writes an object that exists, though it was asked to create it only if it does not"
    " (If-None-Match: * of S3, generation 0 of Google Cloud Storage): two drivers could claim a run"
)
# A name whose owner has written nothing else for so long was left by a process that was killed.
ABANDONED_S = 3600.0

_asked: dict[Path, float] = {}
_versions: dict[Path, str] = {}
_names: dict[Path, list[str]] = {}


# --- reading


def refresh_file(path: Path) -> None:
    """Bring the copy of a file up to date; where the object is gone, the copy goes."""
    place = place_of(path)
    if place is None or _is_fresh(path):
        return
    if segments.is_grown(path):
        segments.pull(place)
        return
    try:
        got = place.bucket.read_if_changed(place.name, _known_version(path))
    except FileNotFoundError:
        _versions.pop(path, None)
        with suppress(OSError):
            path.unlink()
        return
    if got is not None:
        _keep(path, *got)


def names_in(path: Path) -> list[str] | None:
    """The names in a folder, whose small files are brought up to date; None for a path that no
    bucket has. Files in parts and folders appear empty, until they are read.
    """
    place = place_of(path)
    if place is None:
        return None
    known = _names.get(path)
    if known is not None and _is_fresh(path):
        return known
    _is_fresh(path)
    objects, prefixes = place.bucket.inside(place.prefix)
    inside = [prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes]
    files = {one.name.rpartition("/")[2]: one for one in objects}
    names = sorted(name for name in {*inside, *files} if _is_nameable(name))
    _remove_others(path, names)
    for name in names:
        if name in inside:
            segments.make_empty(path / name)
    wanted = [path / name for name in names if name in files and _is_due(path / name, files[name])]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(_download, wanted))
    _names[path] = names
    return names


def _is_nameable(name: str) -> bool:
    """Whether a name of somebody else's choice can be that of a file here."""
    usual = 0 < len(name) < 200 and "\0" not in name
    return usual and name != RESERVED and not is_of_this_machine(name)


def _download(path: Path) -> None:
    _asked.pop(path, None)
    refresh_file(path)


def _is_due(path: Path, found: StoredObject) -> bool:
    """Whether to read an object before it is asked for: it is small, and its copy is of another.

    A copy has the object's time.
    """
    if found.size > EAGER_BYTES:
        return False
    if _versions.get(path) == found.version and path.exists():
        return False
    try:
        here = path.stat()
    except OSError:
        return True
    return here.st_size != found.size or abs(here.st_mtime - found.at_s) > 1e-3


def _known_version(path: Path) -> str | None:
    return _versions.get(path) if path.exists() else None


def _keep(path: Path, content: bytes, found: StoredObject) -> None:
    _write(path, content, found.at_s)
    _versions[path] = found.version


def _write(path: Path, content: bytes, at_s: float | None = None) -> None:
    """Write a copy, whole or not at all."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(content)
    if at_s is not None:
        os.utime(partial, (at_s, at_s))
    partial.replace(path)


def _remove_others(folder: Path, names: Iterable[str]) -> None:
    """Remove the copies of what the bucket has no more."""
    known = set(names)
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.name in known or entry.name == TRACES or is_of_this_machine(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                Path(entry.path).unlink(missing_ok=True)


def _is_fresh(path: Path) -> bool:
    """Whether the bucket was just asked for this; from now on it was."""
    now_s = time.monotonic()
    asked_s = _asked.get(path)
    if asked_s is not None and now_s - asked_s < FRESH_S:
        return True
    _asked[path] = now_s
    return False


def forget(path: Path) -> None:
    """Ask the bucket again at the next look: somebody else has written there."""
    for one in (path, path.parent):
        _asked.pop(one, None)


# --- writing


def create(path: Path, content: bytes) -> bool:
    """Create a file; `FileExistsError` when the name is taken. False where no bucket has it."""
    place = place_of(path)
    if place is None:
        return False
    forget(path)
    place.bucket.create(place.name, content)
    _write(path, content)
    return True


def replace(path: Path, content: bytes) -> bool:
    """Replace a file. False where no bucket has it."""
    place = place_of(path)
    if place is None:
        return False
    place.bucket.replace(place.name, content)
    _write(path, content)
    _versions.pop(path, None)
    return True


def replace_same(path: Path, content: bytes) -> bool:
    """Replace a file that nobody else has written or removed since; False where somebody has."""
    place = place_of(path)
    if place is None:
        return False
    version = _known_version(path)
    if version is None:
        try:
            version = place.bucket.read(place.name)[1].version
        except FileNotFoundError:
            return False
    try:
        place.bucket.replace_version(place.name, content, version)
    except FileExistsError:
        return False
    _keep(path, *place.bucket.read(place.name))
    return True


def delete(path: Path, first: str | None = None) -> bool:
    """Delete a file, or a folder with its contents; of these one comes first, and the reservation
    of its name last. False where no bucket has it.
    """
    place = place_of(path)
    if place is None:
        return False
    if first is not None:
        place.bucket.delete([(place / first).name])
    names = [one.name for one in place.bucket.below(place.prefix)]
    reserved = (place / RESERVED).name
    place.bucket.delete([one for one in names if one != reserved])
    place.bucket.delete([reserved if reserved in names else place.name])
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
    forget(path)
    return True


def upload(path: Path) -> None:
    """Write every file of a folder to its bucket; nothing where no bucket has it."""
    place = place_of(path)
    if place is None:
        return
    for one in sorted(one for one in path.rglob("*") if one.is_file()):
        place.bucket.replace((place / str(one.relative_to(path))).name, one.read_bytes())


def set_aside(path: Path, suffix: str) -> bool:
    """Give a file a hidden name. False where no bucket has it."""
    place = place_of(path)
    if place is None:
        return False
    content, _ = place.bucket.read(place.name)
    folder = place.name.rpartition("/")[0]
    place.bucket.replace(f"{folder}/.{path.name}{suffix}", content)
    place.bucket.delete([place.name])
    path.unlink(missing_ok=True)
    forget(path)
    return True


def check_writable(folder: Path) -> bool:
    """Try what a journal needs of a bucket: an object that is there is not created again.

    `OSError` says what fails. False where no bucket has the folder.
    """
    place = place_of(folder)
    if place is None:
        return False
    trial = place / f"{TRIAL}-{uuid.uuid4().hex}"
    place.bucket.create(trial.name, b"first")
    try:
        place.bucket.create(trial.name, b"second")
    except FileExistsError:
        return True
    else:
        raise OSError(errno.ENOTSUP, NO_CONDITIONS, str(folder))
    finally:
        place.bucket.delete([trial.name])


def trial(folder: Path) -> Path | None:
    """A new file in a folder: who finds it uses the same bucket. None where no bucket has it."""
    place = place_of(folder)
    if place is None:
        return None
    mark = folder / f"{TRIAL}-{uuid.uuid4().hex}"
    create(mark, b"")
    return mark


def exists(path: Path) -> bool:
    """Whether a bucket has that object now."""
    place = place_of(path)
    return place is not None and place.bucket.has(place.name)


def publish(prepared: Path, path: Path, last: str) -> bool:
    """Give the files of a folder their names in a bucket; `FileExistsError` when they are taken.

    Its name is reserved first, and the file that makes it what it is comes last: without that one
    there is nothing yet. False where no bucket has it.
    """
    place = place_of(path)
    if place is None:
        return False
    _reserve(place, last)
    inside = sorted(one for one in prepared.rglob("*") if one.is_file())
    inside = [one for one in inside if one != prepared / last]

    def put(one: Path) -> None:
        name = str(one.relative_to(prepared))
        place.bucket.replace((place / name).name, one.read_bytes())

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(put, inside))
    place.bucket.create((place / last).name, (prepared / last).read_bytes())
    prepared.rename(path) if not path.exists() else shutil.rmtree(prepared)
    forget(path)
    return True


def _reserve(place: Place, last: str) -> None:
    """Be the one process that writes there."""
    mine = uuid.uuid4().hex.encode()
    reservation = (place / RESERVED).name
    try:
        place.bucket.create(reservation, mine)
    except FileExistsError:
        _, found = place.bucket.read(reservation)
        begun = place.bucket.has((place / last).name)
        if begun or time.time() - found.at_s < ABANDONED_S:
            raise
        place.bucket.replace_version(reservation, mine, found.version)
