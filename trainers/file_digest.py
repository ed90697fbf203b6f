"""The sha256 of a file, for token sets and checkpoints."""

import hashlib
from pathlib import Path

from trainers.regular_files import check_regular


def file_digest(path: Path) -> str:
    """The sha256 of a file, which is read in pieces."""
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
