"""The layout of a run's folder, and addresses inside a storage directory."""

import re
from pathlib import Path

from orchestrator.journal.boundary import settled
from orchestrator.storage.addresses import is_copy
from orchestrator.values.codec import short
from orchestrator.values.run import SavedCheckpoint

FIRST_EVENT = "events/000001.json"  # without it there is no run
UNCOMMITTED = "uncommitted.diff"  # a document that only its owner can read, and that is never sent
TRACKED = "tracking.json"  # where a tracker keeps its record of a run or study
TRACKED_HERE = "tracking-here.json"  # the same, where that is a database of this machine


class RunPaths:
    """Where each file of a run is. Links above its folder are the user's, and are followed."""

    def __init__(self, root: Path) -> None:
        self.root = root = settled(root)
        self.spec = root / "spec.json"
        self.documents = root / "documents"  # the spec as written, uncommitted changes, a report
        self.submitted_spec = self.documents / "spec.yaml"
        self.plans, self.proofs = root / "plans", root / "proofs"
        self.events = root / "events"  # changes of state, numbered
        self.newest_event = root / "newest_event.json"  # its number and its sha256
        self.requests = root / "requests"  # to the driver, numbered
        self.driver_heartbeats = root / "heartbeats"
        self.driver_logs = root / "logs"
        self.attempts = root / "attempts"
        self.checkpoints = root / "checkpoints"  # the trainer's, each in a folder of its own
        self.tracking = root / TRACKED
        self.sync_state = root / "sync.json"  # how much of the run the tracker has
        self.sync_lock = root / "sync.lock"  # held by the one process that records the run
        self.sync_log = self.driver_logs / "sync.log"  # of the process that records in background

    def name_of(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def plan(self, digest: str) -> Path:
        return self.plans / f"{short(digest)}.json"

    def proof(self, plan_digest: str) -> Path:
        return self.proofs / f"{short(plan_digest)}.json"

    def checkpoint(self, saved: SavedCheckpoint) -> Path:
        return self.checkpoints / saved.folder

    def checkpoint_sums(self, saved: SavedCheckpoint) -> Path:
        """Return what says that a checkpoint is whole; its event has the sha256 of this file."""
        return self.checkpoint(saved) / ("manifest.json" if is_copy(self.root) else "sha256.json")

    def driver_heartbeat(self, writer: int) -> Path:
        """Return the file whose time is the last heartbeat of a writer."""
        return self.driver_heartbeats / f"{writer:06d}"

    def driver_log(self, writer: int) -> Path:
        return self.driver_logs / f"driver-{writer:06d}.log"

    def attempt(self, number: int) -> Path:
        return self.attempts / f"{number:03d}"

    def steps(self, attempt: int) -> Path:
        return self.attempt(attempt) / "steps.jsonl"

    def heartbeats(self, attempt: int) -> Path:
        return self.attempt(attempt) / "heartbeats"

    def heartbeat(self, attempt: int, rank: int) -> Path:
        return self.heartbeats(attempt) / f"rank-{rank}"

    def logs(self, attempt: int) -> Path:
        return self.attempt(attempt) / "logs"

    def rank_log(self, attempt: int, rank: int) -> Path:
        return self.logs(attempt) / f"rank-{rank}.log"


# Addresses inside a storage directory, stored relative to it: a moved or copied folder then
# means its own files, and never those of the place where it came from.

_HERE, _HERE_QUOTED = "{storage}", "{storage-uri}"  # a path, and a file URI with its quoting
_SCHEME = r"((?:[a-z][a-z0-9+.-]*:(?:///)?)?)"  # `sqlite:///` before an absolute path, or nothing


def relative_uri(uri: str, storage: Path) -> str:
    """Return the address as it is stored; one outside the storage stays as it is."""
    for path in dict.fromkeys((storage.absolute(), storage.resolve())):
        if uri.startswith(f"{path.as_uri()}/"):
            return _HERE_QUOTED + uri.removeprefix(path.as_uri())
        if match := re.match(rf"{_SCHEME}{re.escape(str(path))}(/.*)", uri, re.DOTALL):
            return f"{match[1]}{_HERE}{match[2]}"
    return uri


def absolute_uri(stored: str, storage: Path) -> str:
    """Return the address that a storage directory means by what is stored."""
    path = storage.absolute()
    if stored.startswith(_HERE_QUOTED):
        return path.as_uri() + stored.removeprefix(_HERE_QUOTED)
    match = re.match(rf"{_SCHEME}{re.escape(_HERE)}(/.*)", stored, re.DOTALL)
    return f"{match[1]}{path}{match[2]}" if match else stored
