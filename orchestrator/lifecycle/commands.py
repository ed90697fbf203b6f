"""The commands that a message proposes to type next about a run."""

import shlex
from pathlib import Path

RUNS = Path("runs")  # where runs are stored when nothing else is said


def run_command(name: str, run: str, storage: Path, *more: str) -> str:
    """A command about a run."""
    return shlex.join(["orch", name, run, *storage_option(storage), *more])


def storage_command(name: str, storage: Path) -> str:
    """A command about all runs of a storage directory."""
    return shlex.join(["orch", name, *storage_option(storage)])


def storage_option(storage: Path) -> tuple[str, ...]:
    """The option that names a storage directory, where it must be named."""
    return () if storage.absolute() == RUNS.absolute() else ("--storage", str(storage))
