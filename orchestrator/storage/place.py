"""Which object a file of a copy is a copy of, and which files are this machine's alone."""

from dataclasses import dataclass
from pathlib import Path

from orchestrator.storage import addresses
from orchestrator.storage.bucket import Bucket, bucket

# Of each run and storage: what a tracker keeps here, and Ray's own files.
OF_THIS_MACHINE = {
    "tracking-here.json", "sync.json", "sync.lock", "sync.log", "ray",
    "mlflow.db", "mlflow-artifacts",
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """An object, or all below a prefix, and the path of its copy here."""

    bucket: Bucket
    name: str
    path: Path

    def __truediv__(self, name: str) -> "Place":
        return Place(self.bucket, f"{self.name}/{name}".lstrip("/"), self.path / name)

    @property
    def prefix(self) -> str:
        """What the names of all objects in this folder begin with."""
        return f"{self.name}/" if self.name else ""


def place_of(path: Path) -> Place | None:
    """The place of a copied file or folder; None for a path that no bucket has."""
    parts = addresses.parts_of(path)
    if parts is None:
        return None
    scheme, name, *inside = parts
    if any(is_of_this_machine(one) for one in inside):
        return None
    return Place(bucket(scheme, name), "/".join(inside), path)


def is_of_this_machine(name: str) -> bool:
    """Whether a file or folder of that name is not copied: it is hidden, or a tracker's."""
    return name.startswith(".") or name in OF_THIS_MACHINE


def reserved_name(address: str) -> str | None:
    """The part of an address that no runs can be below: it would be taken for this machine's."""
    _, _, inside = address.partition("://")
    return next((one for one in inside.split("/")[1:] if is_of_this_machine(one)), None)
