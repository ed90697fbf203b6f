"""What a preflight learns from a host: the process on that host calls this."""

import os
from collections.abc import Iterable
from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.launch import provenance
from orchestrator.launch.preflight import PreflightHost
from orchestrator.storage import copies
from orchestrator.storage.addresses import folder, is_copy


def describe(name: str, file: str, secrets: Iterable[str]) -> PreflightHost:
    """Describe this host: versions, whether it can write next to `file`, the secrets it lacks."""
    path = folder(file)
    return PreflightHost(
        name=name,
        versions=provenance.versions(),
        reaches=_reaches(path),
        lacks=tuple(variable for variable in secrets if not os.environ.get(variable)),
    )


def _reaches(path: Path) -> bool:
    """Whether this host sees a file and can write next to it."""
    if not is_copy(path):
        return path.exists() and os.access(path.parent, os.W_OK)
    try:
        return copies.exists(path) and copies.check_writable(path.parent)
    except (OSError, OrchError):
        return False
