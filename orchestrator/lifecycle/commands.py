"""The commands that a message proposes to type next about a run."""

import shlex
from pathlib import Path

from orchestrator.journal.run_logs import list_logs
from orchestrator.types.run import LIVE, Run

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


def storage_of(run: Run) -> Path:
    """Where a run is stored, relative to the working directory where that is shorter."""
    path, here = Path(run.journal).parent, Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def next_step(run: Run, named: str, storage: Path) -> str:
    """What to type next about a run: follow it, compare it with its plan, or resume it.

    The logs come first for a run that failed before its first step and left some.
    """
    if run.state in LIVE:
        return run_command("logs", named, storage, "-f")
    if run.state == "succeeded":
        return run_command("report", named, storage)
    logs = list_logs(Path(run.journal), run, attempt=None)
    unclear = run.state == "failed" and not run.steps_done and any(not log.empty for log in logs)
    return run_command("logs" if unclear else "resume", named, storage)
