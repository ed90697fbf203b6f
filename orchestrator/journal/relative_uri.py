"""Addresses inside a storage directory, stored relative to it: a moved or copied folder then means
its own files, and never those of the place where it came from.
"""

import re
from dataclasses import replace
from pathlib import Path

from orchestrator.storage import is_copy
from orchestrator.types.run import TrackedRun

TRACKED, TRACKED_HERE = "tracking.json", "tracking-here.json"
HERE, HERE_QUOTED = "{storage}", "{storage-uri}"  # as a path, and as a file URI with its quoting
SCHEME = r"((?:[a-z][a-z0-9+.-]*:(?:///)?)?)"  # `sqlite:///` before an absolute path, or nothing


def relative_uri(uri: str, storage: Path) -> str:
    """Return the address as it is stored; one that is not inside the storage stays as it is."""
    for path in dict.fromkeys((storage.absolute(), storage.resolve())):
        if uri.startswith(f"{path.as_uri()}/"):
            return HERE_QUOTED + uri.removeprefix(path.as_uri())
        if match := re.match(rf"{SCHEME}{re.escape(str(path))}(/.*)", uri, re.DOTALL):
            return f"{match[1]}{HERE}{match[2]}"
    return uri


def absolute_uri(stored: str, storage: Path) -> str:
    """Return the address that a storage directory means by what is stored."""
    path = storage.absolute()
    if stored.startswith(HERE_QUOTED):
        return path.as_uri() + stored.removeprefix(HERE_QUOTED)
    match = re.match(rf"{SCHEME}{re.escape(HERE)}(/.*)", stored, re.DOTALL)
    return f"{match[1]}{path}{match[2]}" if match else stored


def note_of(folder: Path, tracking: TrackedRun) -> Path:
    """The file of a run or study that notes a tracker's record.

    A database beside the copy of a bucket is of this machine, and so is its note.
    """
    own = is_copy(folder) and as_stored(tracking, folder.parent).uri != tracking.uri
    return folder / (TRACKED_HERE if own else TRACKED)


def as_stored(tracking: TrackedRun, storage: Path) -> TrackedRun:
    return replace(tracking, uri=relative_uri(tracking.uri, storage))


def as_meant(stored: TrackedRun, storage: Path) -> TrackedRun:
    return replace(stored, uri=absolute_uri(stored.uri, storage))
