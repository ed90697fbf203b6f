"""The saved steps of a run on a bucket: objects, and a manifest that makes them a step.

The manifest is created last, by the primary process, and lists every object with its size and the
sum that the store made of it: so nothing is read back to be summed. Each shard has a CRC of its
own, which reading verifies.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.storage.bucket import Bucket, StoredObject
from orchestrator.storage.place import Place, place_of
from orchestrator.types import codec
from trainers.checkpoint.step_folders import NAME, Owner, owner_of, step_of

MANIFEST = "manifest.json"
NOTES = "written/"  # by each process, once its shards are there
# An object's size, and the sum that the store made of its bytes.
Sum = tuple[int, str]


class Leaf(msgspec.Struct, frozen=True):
    """An array of a state: its type, its shape, and the shape of the chunks that objects hold."""

    dtype: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]


class StepManifest(msgspec.Struct, frozen=True):
    """What a step consists of."""

    leaves: dict[str, Leaf]
    objects: dict[str, Sum]


@dataclass(frozen=True)
class StepObjects:
    """The steps below a folder of a bucket, each named by its number and by whose it is."""

    place: Place

    @property
    def folder(self) -> Path:
        return self.place.path

    @property
    def bucket(self) -> Bucket:
        return self.place.bucket

    def names(self) -> list[str]:
        """The names of the saved steps, oldest first; those that are not whole too."""
        _, prefixes = self.bucket.inside(self.place.prefix)
        names = [one.rstrip("/").rpartition("/")[2] for one in prefixes]
        names = [one for one in names if NAME.fullmatch(one)]
        return sorted(names, key=lambda name: (step_of(name), owner_of(name)))

    def prefix(self, name: str) -> str:
        """What the names of a step's objects begin with."""
        return f"{self.place.prefix}{name}/"

    def prepare(self) -> None:
        """A bucket has no folders to make."""

    def delete(self, name: str) -> None:
        """Remove a step: without its manifest it is none."""
        manifest = self.prefix(name) + MANIFEST
        self.bucket.delete([manifest])
        self.bucket.delete([one.name for one in self.bucket.below(self.prefix(name))])

    def set_aside(self, name: str) -> None:
        """A damaged step stays where it is, as another attempt saves under another name."""

    def sweep(self, owner: Owner) -> None:
        """Remove the steps that an owner and those before it did not finish."""
        for name in self.names():
            if owner_of(name) <= owner and not self.is_whole(name):
                self.delete(name)

    # --- the identity of a run

    def read_small(self, name: str) -> bytes:
        return self.bucket.read(self.place.prefix + name)[0]

    def create_small(self, name: str, content: bytes) -> None:
        """Create a file beside the steps, unless it is there."""
        try:
            self.bucket.create(self.place.prefix + name, content)
        except FileExistsError:
            return

    # --- whether a step is whole

    def is_whole(self, name: str) -> bool:
        """Whether a step has its manifest: it comes last."""
        return self.bucket.has(self.prefix(name) + MANIFEST)

    def manifest(self, name: str) -> StepManifest:
        return codec.from_json(self.bucket.read(self.prefix(name) + MANIFEST)[0], StepManifest)

    def write_manifest(self, name: str, leaves: dict[str, Leaf]) -> None:
        """Make a step of the objects that are there."""
        manifest = StepManifest(leaves=leaves, objects=self._sums(name))
        content = msgspec.json.encode(manifest, order="sorted")
        self.bucket.create(self.prefix(name) + MANIFEST, content)

    def sums_digest(self, name: str) -> str:
        """The sha256 of a step's manifest."""
        return hashlib.sha256(self.bucket.read(self.prefix(name) + MANIFEST)[0]).hexdigest()

    def fault(
        self, name: str, *, sha256: str | None = None, share: int = 0, of: int = 1
    ) -> str | None:
        """What is wrong with a step, or None. The first of several readers looks for all."""
        assert of > share
        if share:
            return None
        try:
            expected = self.manifest(name).objects
        except FileNotFoundError:
            return f"{MANIFEST} is missing"
        except (OSError, msgspec.DecodeError) as error:
            return f"{MANIFEST} cannot be read: {error}"
        if sha256 is not None and self.sums_digest(name) != sha256:
            return f"{MANIFEST} is not the one that was recorded"
        found = self._sums(name)
        if lost := sorted(set(expected) - set(found)):
            return f"{lost[0]} is missing"
        if changed := sorted(one for one, summed in expected.items() if found[one] != summed):
            return f"{changed[0]} is not as it was written"
        return None

    def _sums(self, name: str) -> dict[str, Sum]:
        prefix = self.prefix(name)
        inside = {one.name.removeprefix(prefix): one for one in self.bucket.below(prefix)}
        return {
            one: (found.size, _sum_of(found))
            for one, found in inside.items()
            if one != MANIFEST and not one.startswith(NOTES)
        }

    # --- what processes tell one another

    def note_written(self, name: str, process: int, error: str = "") -> None:
        self.bucket.replace(f"{self.prefix(name)}{NOTES}{process}", error.encode())

    def notes(self, name: str) -> Sequence[str]:
        """What the processes that have written said: an error, or nothing."""
        found = self.bucket.below(self.prefix(name) + NOTES)
        return [self.bucket.read(one.name)[0].decode() if one.size else "" for one in found]


def _sum_of(found: StoredObject) -> str:
    versions: dict[str, str | None] = msgspec.json.decode(found.version)
    return versions["e_tag"] or versions["version"] or ""


def step_objects(folder: Path) -> StepObjects | None:
    """The steps of a folder that a bucket has; None for one of a file system."""
    place = place_of(folder)
    return None if place is None else StepObjects(place)
