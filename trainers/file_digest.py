"""The sha256 of a file, for token sets and checkpoints."""

import hashlib
from pathlib import Path

from orchestrator.storage.inputs import StoredInput, stored_input
from trainers.regular_files import check_regular

PIECE_BYTES = 64 << 20


def file_digest(path: Path) -> str:
    """The sha256 of a file or an object, which is read in pieces."""
    check_regular(path)
    if stored := stored_input(path):
        return _object_digest(stored)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _object_digest(stored: StoredInput) -> str:
    digest = hashlib.sha256()
    for start in range(0, stored.size, PIECE_BYTES):
        digest.update(stored.read(start, min(start + PIECE_BYTES, stored.size)))
    return digest.hexdigest()
