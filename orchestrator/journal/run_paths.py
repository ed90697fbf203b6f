"""The layout of a run's folder."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.journal.boundary import settled
from orchestrator.storage.addresses import is_copy
from orchestrator.values.codec import short
from orchestrator.values.run import SavedCheckpoint, TrackedRun

FIRST_EVENT = "events/000001.json"  # without it there is no run
UNCOMMITTED = "uncommitted.diff"  # a document that only its owner can read, and that is never sent


@dataclass(frozen=True)
class RunPaths:
    """Where each file of a run is."""

    root: Path

    def __post_init__(self) -> None:
        """Follow the links above the run's folder, which are the user's own."""
        object.__setattr__(self, "root", settled(self.root))

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that every run has."""
        written_once = (self.plans, self.proofs, self.documents)
        return (
            self.events,
            self.requests,
            self.driver_heartbeats,
            *written_once,
            self.attempts,
            self.driver_logs,
        )

    def name_of(self, path: Path) -> str:
        """The path of a file inside the run's folder."""
        return str(path.relative_to(self.root))

    @property
    def events(self) -> Path:
        """Changes of state, numbered."""
        return self.root / "events"

    @property
    def newest_event(self) -> Path:
        """The number and the sha256 of the newest event."""
        return self.root / "newest_event.json"

    @property
    def requests(self) -> Path:
        """Requests to the driver, numbered."""
        return self.root / "requests"

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def tracking(self) -> Path:
        """Where a tracker keeps its record of the run."""
        return self.root / "tracking.json"

    @property
    def sync_state(self) -> Path:
        """How much of the run the tracker has."""
        return self.root / "sync.json"

    @property
    def sync_lock(self) -> Path:
        """Held by the one process that records the run."""
        return self.root / "sync.lock"

    @property
    def sync_log(self) -> Path:
        """What the process that records in the background wrote."""
        return self.driver_logs / "sync.log"

    @property
    def plans(self) -> Path:
        return self.root / "plans"

    @property
    def proofs(self) -> Path:
        return self.root / "proofs"

    @property
    def submitted_spec(self) -> Path:
        """The spec's text, as it was submitted."""
        return self.documents / "spec.yaml"

    @property
    def documents(self) -> Path:
        """Other files of the run: its spec as written, uncommitted changes, a report."""
        return self.root / "documents"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    @property
    def checkpoints(self) -> Path:
        """The trainer's, each in a folder of its own."""
        return self.root / "checkpoints"

    def checkpoint(self, saved: SavedCheckpoint) -> Path:
        return self.checkpoints / saved.folder

    def checkpoint_sums(self, saved: SavedCheckpoint) -> Path:
        """What says that a checkpoint is whole, whose sha256 its event has."""
        return self.checkpoint(saved) / ("manifest.json" if is_copy(self.root) else "sha256.json")

    @property
    def driver_heartbeats(self) -> Path:
        return self.root / "heartbeats"

    @property
    def driver_logs(self) -> Path:
        return self.root / "logs"

    def plan(self, digest: str) -> Path:
        return self.plans / f"{short(digest)}.json"

    def proof(self, plan_digest: str) -> Path:
        """The proof of the plan with that digest."""
        return self.proofs / f"{short(plan_digest)}.json"

    def driver_heartbeat(self, writer: int) -> Path:
        """The file whose time is the last heartbeat of a writer."""
        return self.driver_heartbeats / f"{writer:06d}"

    def driver_log(self, writer: int) -> Path:
        return self.driver_logs / f"driver-{writer:06d}.log"

    def attempt(self, number: int) -> Path:
        return self.attempts / f"{number:03d}"

    def steps(self, attempt: int) -> Path:
        return self.attempt(attempt) / "steps.jsonl"

    def heartbeats(self, attempt: int) -> Path:
        """The folder with the last heartbeat of each rank."""
        return self.attempt(attempt) / "heartbeats"

    def heartbeat(self, attempt: int, rank: int) -> Path:
        return self.heartbeats(attempt) / f"rank-{rank}"

    def logs(self, attempt: int) -> Path:
        """The folder with a log of each rank."""
        return self.attempt(attempt) / "logs"

    def rank_log(self, attempt: int, rank: int) -> Path:
        return self.logs(attempt) / f"rank-{rank}.log"


# Addresses inside a storage directory, stored relative to it: a moved or copied folder then
# means its own files, and never those of the place where it came from.


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
