"""The commands that a message proposes to type next."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.storage.addresses import address, folder, is_copy

if TYPE_CHECKING:
    from orchestrator.values.run import Run

RUNS = Path("runs")  # where runs are stored by default


def spec_command(name: str, spec: Path, overrides: Sequence[str], *more: str) -> str:
    """Return a command about a spec, with the same overrides."""
    settings = [word for override in overrides for word in ("--set", override)]
    return shlex.join(["orch", name, str(spec), *settings, *more])


def stage_option(stage: int | None) -> tuple[str, ...]:
    return ("--stage", str(stage)) if stage else ()


def offer_command(spec: Path, overrides: Sequence[str], chosen: Sequence[str]) -> str:
    """Return the command that plans an offer, whose overrides replace those for other slices."""
    keys = {override.partition("=")[0] for override in chosen}
    others = [text for text in overrides if text.partition("=")[0] not in keys]
    return spec_command("plan", spec, (*others, *chosen))


def run_command(name: str, run: str, storage: Path, *more: str) -> str:
    return shlex.join(["orch", name, run, *_storage_option(storage), *more])


def storage_command(name: str, storage: Path) -> str:
    return shlex.join(["orch", name, *_storage_option(storage)])


def _storage_option(storage: Path) -> tuple[str, ...]:
    """Return the option that names a storage directory; none where it is the default."""
    return () if storage.absolute() == RUNS.absolute() else ("--storage", address(storage))


def storage_of(run: "Run") -> Path:
    """Return where a run is stored, relative to the working directory where that is shorter."""
    path, here = folder(run.journal).parent, Path.cwd()
    if is_copy(path) or not path.is_relative_to(here):
        return path
    return path.relative_to(here)
