"""The commands that a message proposes to type next."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.storage.addresses import address, folder, is_copy

if TYPE_CHECKING:
    from orchestrator.values.run import Run

RUNS = Path("runs")  # where runs are stored by default


def spec_command(name: str, spec: Path, overrides: Sequence[str], *more: str) -> str:
    """A command about a spec, with the same overrides."""
    settings = [word for override in overrides for word in ("--set", override)]
    return shlex.join(["orch", name, str(spec), *settings, *more])


def stage_option(stage: int | None) -> tuple[str, ...]:
    """The option that names a stage, where one is named."""
    return ("--stage", str(stage)) if stage else ()


def offer_command(spec: Path, overrides: Sequence[str], chosen: Sequence[str]) -> str:
    """The command that plans an offer, whose overrides take the place of those for other slices."""
    keys = {one.partition("=")[0] for one in chosen}
    others = [one for one in overrides if one.partition("=")[0] not in keys]
    return spec_command("plan", spec, (*others, *chosen))


def run_command(name: str, run: str, storage: Path, *more: str) -> str:
    """A command about a run."""
    return shlex.join(["orch", name, run, *storage_option(storage), *more])


def storage_command(name: str, storage: Path) -> str:
    """A command about all runs of a storage directory."""
    return shlex.join(["orch", name, *storage_option(storage)])


def storage_option(storage: Path) -> tuple[str, ...]:
    """The option that names a storage directory, where it must be named."""
    return () if storage.absolute() == RUNS.absolute() else ("--storage", address(storage))


def storage_of(run: "Run") -> Path:
    """Where a run is stored, relative to the working directory where that is shorter."""
    path, here = folder(run.journal).parent, Path.cwd()
    if is_copy(path) or not path.is_relative_to(here):
        return path
    return path.relative_to(here)


def as_typed(
    *without: str, more: Sequence[str] = (), changed: Mapping[str, str] | None = None
) -> str:
    """The command that was typed, without some of its words, with more, and with some changed."""
    words = [word for word in sys.argv[1:] if word not in without]
    for old, new in (changed or {}).items():
        mended = {old: new, f"--set={old}": f"--set={new}"}
        words = [mended.get(word, word) for word in words]
    return shlex.join(["orch", *words, *more])
