"""Which checkpoints of a run count: as its driver has recorded them, or all that a folder has.

Several attempts at a run may write to one folder at a time, since a process that was stopped or cut
off does not know that another took over. So each attempt saves into folders of its own, and a
checkpoint counts only when it is recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trainers.checkpoint.step_folders import step_of


class RecordedSave(Protocol):
    """A checkpoint that counts. `sha256` is that of its sums, None where nobody recorded it."""

    @property
    def step(self) -> int: ...
    @property
    def folder(self) -> str: ...
    @property
    def sha256(self) -> str | None: ...


class SaveLog(Protocol):
    """The checkpoints of a run, for one of its attempts."""

    def recorded(self) -> Sequence[RecordedSave]:
        """The newest checkpoints that count, the newest last."""
        ...

    def folder(self, step: int) -> str:
        """The name of the folder of a checkpoint that this attempt saves."""
        ...

    def report(self, step: int, sha256: str) -> None:
        """Report that a checkpoint of this attempt is whole."""
        ...

    def settle(self) -> None:
        """Wait a moment until the last report is recorded."""
        ...


class NamedSteps(Protocol):
    """The saved steps in a folder, or on a bucket."""

    def names(self) -> list[str]:
        """Their names, oldest first."""
        ...


@dataclass(frozen=True)
class ListedSave:
    """A checkpoint that was found in a folder."""

    step: int
    sha256: str | None = None

    @property
    def folder(self) -> str:
        return str(self.step)


@dataclass(frozen=True)
class ListedSaves:
    """Every checkpoint in a folder counts: one attempt at a time uses it."""

    folders: NamedSteps

    def recorded(self) -> Sequence[RecordedSave]:
        return [ListedSave(step_of(name)) for name in self.folders.names() if name.isdecimal()]

    def folder(self, step: int) -> str:
        return str(step)

    def report(self, step: int, sha256: str) -> None:
        """Its folder says that it is there."""

    def settle(self) -> None:
        """Nobody records."""
