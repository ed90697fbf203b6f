"""What a preflight learns from a host: the process on that host calls this."""

import os
from collections.abc import Iterable
from pathlib import Path

from orchestrator.launch import provenance
from orchestrator.launch.preflight import PreflightHost


def describe(name: str, file: str, secrets: Iterable[str]) -> PreflightHost:
    """This host: its versions, whether it can write beside that file, the variables it lacks."""
    path = Path(file)
    return PreflightHost(
        name=name,
        versions=provenance.versions(),
        reaches=path.exists() and os.access(path.parent, os.W_OK),
        lacks=tuple(variable for variable in secrets if not os.environ.get(variable)),
    )
